"""What an iteration takes by hybrid parallelism, and by data parallelism on the same samples: pure functions. No torch.

The time is that of computing, which was measured, and of the bytes on the busiest full-duplex link at its rate.
"""

from collections.abc import Sequence

from dlgs_bench.topology import DENSE


def around_head(layers: Sequence[int], columns: Sequence[int]) -> tuple[int, int]:
    """The entries of a row of features, which the head takes, and of the backbone's gradient.

    ``layers``: entries of each parameter, the last first. ``columns``: of each layer of the head.
    """
    place, features = 0, 0
    for width in reversed(columns):
        place += layers[place] == width  # its bias
        features = layers[place] // width
        place += 1
    return features, sum(layers[place:])


def link_bytes(workers: int, heads: int, rows: int, features: int, columns: Sequence[int], backbone: int) -> float:
    """Bytes that the busiest link carries in an iteration of a hybrid, one communication after the other.

    ``heads`` of the workers hold the head, the others the backbone, each with ``rows`` rows of the batch.
    """
    others = workers - heads
    between = max(others, heads) * rows * (2 * features + 1)  # there with the class of each row, and back
    # Each head worker gets the others' columns of all layers, and gives them the input gradients of all but the first.
    within = (heads - 1) / heads * others * rows * (sum(columns) + sum(columns[:-1]))
    return DENSE * (between + within + 2 * (others - 1) / others * backbone)


def data_parallel_s(forward_s: float, computing_s: float, buckets_s: Sequence[float]) -> float:
    """An iteration in which each bucket is sent as soon as its gradient is known: the link has nothing to do before
    forward is over, and the last bucket once all is computed. ``buckets_s``: how long the link takes for each."""
    return max(forward_s + sum(buckets_s), computing_s + buckets_s[-1])
