"""The time of an iteration of hybrid and of data parallelism on the same samples: pure functions. No torch.

It is the measured time of computing, and the time of the bytes on the busiest full-duplex link.
"""

from collections.abc import Sequence

from dlgs_bench.topology import FLOAT32_BYTES


def around_head(layers: Sequence[int], columns: Sequence[int]) -> tuple[int, int]:
    """The number of entries of a row of features, and of the backbone's gradient.

    ``layers``: entries of each parameter tensor, the last tensor first. ``columns``: the columns of each fully
    connected layer of the head.
    """
    index, features = 0, 0
    for width in reversed(columns):
        if layers[index] == width:  # the bias of the fully connected layer
            index += 1
        features = layers[index] // width
        index += 1
    return features, sum(layers[index:])


def link_bytes(workers: int, heads: int, rows: int, features: int, columns: Sequence[int], backbone: int) -> float:
    """The bytes on the busiest link in an iteration of hybrid parallelism, without overlap.

    ``heads`` workers hold the head. The other workers hold the backbone, each with ``rows`` rows of the batch.
    """
    others = workers - heads
    between = max(others, heads) * rows * (2 * features + 1)  # features and classes there, gradients back
    # A head worker gets the others' columns of all fully connected layers. It sends them the input gradients of all
    # but the first.
    within = (heads - 1) / heads * others * rows * (sum(columns) + sum(columns[:-1]))
    return FLOAT32_BYTES * (between + within + 2 * (others - 1) / others * backbone)


def data_parallel_s(forward_s: float, computing_s: float, buckets_s: Sequence[float]) -> float:
    """The time of an iteration in which each bucket is sent as soon as its gradient is ready.

    The link is idle during forward, and the last bucket is sent after backward. ``buckets_s``: seconds of each bucket
    on the link.
    """
    return max(forward_s + sum(buckets_s), computing_s + buckets_s[-1])
