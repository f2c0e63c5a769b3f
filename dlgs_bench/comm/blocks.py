"""Search for blocks of zeros in a tensor on a CPU, by one compiled pass at memory speed."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


@njit(cache=True, nogil=True)
def _mark(bits: np.ndarray, block: int, nonzero: np.ndarray) -> None:
    """Write to ``nonzero`` whether each block of ``bits`` has a bit that is set.

    In most blocks that are not zero, the first element is enough to decide this.
    """
    # Unsigned: for signed counters numba adds a test for negative indices to every access.
    size, width = np.uint64(bits.size), np.uint64(block)
    for number in range(np.uint64(nonzero.size)):
        start = number * width
        seen = bits[start]
        if seen == 0:
            for i in range(start, min(start + width, size)):
                seen |= bits[i]
        nonzero[number] = seen != 0


def nonzero_blocks(tensor: Tensor, block: int) -> Tensor:
    """Whether each block of ``block`` entries of ``tensor``, shape (n,), has a bit that is set.

    Returns bool, shape (ceil(n / block),); the last block may be shorter. A block of -0.0 is not zero: it is sent, so
    that the sum has the same bits as a sum of whole tensors.
    """
    nonzero = np.empty(-(-len(tensor) // block), np.bool_)
    _mark(tensor.view(INTEGERS[tensor.element_size()]).numpy(), block, nonzero)
    return torch.from_numpy(nonzero)
