"""The error of a method's aggregates and the bits that they take: two measures that papers report."""

from collections.abc import Sequence

from torch import Tensor


def squares(aggregate: Tensor, mean: Tensor) -> tuple[float, float]:
    """|aggregate - mean|^2 and |mean|^2 of one step; ``mean``: the mean of the workers' true gradients."""
    return (aggregate - mean).square().sum().item(), mean.square().sum().item()


def vnmse(aggregates: Sequence[Tensor], means: Sequence[Tensor]) -> float:
    """E |aggregate - mean|^2 / E |mean|^2 over steps: 0 is an exact mean, 1 is the error of an aggregate of zeros."""
    errors, sizes = zip(*map(squares, aggregates, means), strict=True)
    return sum(errors) / sum(sizes)


def bits_per_entry(sent_bytes: float, entries: int) -> float:
    """The bits that one worker sends in one step, divided by the gradient's entries; 32 if it is uncompressed."""
    return 8 * sent_bytes / entries
