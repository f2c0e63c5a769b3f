"""What a method's aggregates are worth, and what they took: two measures that papers print of every method."""

from collections.abc import Sequence

from torch import Tensor


def squares(aggregate: Tensor, mean: Tensor) -> tuple[float, float]:
    """|aggregate - mean|^2 and |mean|^2 of one step, the mean being that of the workers' true gradients."""
    return (aggregate - mean).square().sum().item(), mean.square().sum().item()


def vnmse(aggregates: Sequence[Tensor], means: Sequence[Tensor]) -> float:
    """E |aggregate - mean|^2 / E |mean|^2 over steps. 0: nothing was lost. 1: as much as by sending nothing."""
    errors, sizes = zip(*map(squares, aggregates, means), strict=True)
    return sum(errors) / sum(sizes)


def bits_per_entry(sent_bytes: float, entries: int) -> float:
    """Of one worker in one step, for each of the gradient's ``entries``; 32 where it is sent as it is."""
    return 8 * sent_bytes / entries
