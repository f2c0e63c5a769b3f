"""What a method's aggregates are worth, and what they took: two measures that papers print of every method."""

from collections.abc import Sequence

from torch import Tensor


def vnmse(aggregates: Sequence[Tensor], means: Sequence[Tensor]) -> float:
    """E |aggregate - mean|^2 / E |mean|^2 over steps, the mean being that of the workers' true gradients.

    0: nothing was lost. 1: as much as by sending nothing.
    """
    pairs = zip(aggregates, means, strict=True)
    lost = sum((aggregate - mean).square().sum().item() for aggregate, mean in pairs)
    return lost / sum(mean.square().sum().item() for mean in means)


def bits_per_entry(sent_bytes: float, entries: int) -> float:
    """Of one worker in one step, for each of the gradient's ``entries``; 32 where it is sent as it is."""
    return 8 * sent_bytes / entries
