"""Wire formats: how the chosen entries of a bucket become one int32 message, and how messages are added up.

- ``indices``: the bits of the values, then the indices: 64 bits per entry.
- ``smallest``: one word with the number of entries and the code, the bits of the values, then the indices in one of
  four codes, whichever is the smallest: indices (32 bits per entry), a bitmap (1 bit per entry of the bucket), or the
  gaps between indices in 8 or 16 bits. The largest number (255 or 65535) means that the gap continues in the next one.
- ``run-length``: pairs of a number of zeros and the value that follows them, for every message.

For entries at random indices, the smallest code is the bitmap above a density of 1/8, gaps of 8 bits (8 to 16 bits per
entry) down to about 1/370, and gaps of 16 bits (16 to 32 bits per entry) down to about 1/95,000. ``smallest`` and
``run-length`` work on CPUs only.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

INDICES, BITMAP, BYTES, SHORTS = range(4)
MOST = 1 << 30  # the first word has 30 bits for the number of entries, and 2 bits for the code


class Indices:
    """Uncoded indices, on any device."""

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The message, int32 (2k,), of float32 values (k,) and unique indices (k,) of a bucket of ``size`` entries.

        If the indices follow the values in memory, the message is a view of this memory, not a copy.
        """
        bits, indices = values.view(torch.int32), indices.to(torch.int32)
        one_memory = bits.untyped_storage().data_ptr() == indices.untyped_storage().data_ptr()
        if one_memory and indices.storage_offset() == bits.storage_offset() + bits.numel():
            return bits.as_strided((2 * bits.numel(),), (1,))
        return torch.cat([bits, indices])

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """Add the entries of a message to ``out``, shape (size,)."""
        values, indices = message.tensor_split(2)
        out.index_add_(0, indices, values.view(torch.float32))


class Smallest:
    """The code that needs the fewest bytes, chosen for each message."""

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The message, as in ``Indices.pack``; int32 (1 + k + words of the code,). ValueError for invalid indices."""
        values, ordered = _in_order(values, indices, size)
        n = len(ordered)
        if n >= MOST:
            raise ValueError(f"wire smallest: {n} entries is not less than {MOST}; use smaller buckets")
        in_bytes, in_shorts = _count_gaps(ordered)
        needed = [4 * n, -(-size // 8), in_bytes, 2 * in_shorts]
        code = int(np.argmin(needed))
        message = np.zeros(1 + n + -(-needed[code] // 4), np.uint32)
        message[0] = code << 30 | n
        message[1 : 1 + n] = values.numpy().view(np.uint32)
        _WRITE[code](ordered, message[1 + n :].view(_WORDS[code]))
        return torch.from_numpy(message.view(np.int32))

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """Add the entries of a message to ``out``, shape (size,)."""
        words = message.numpy().view(np.uint32)
        code, n = int(words[0]) >> 30, int(words[0]) & MOST - 1
        _ADD[code](out.numpy(), words[1 : 1 + n].view(np.float32), words[1 + n :].view(_WORDS[code]))


class RunLength:
    """Pairs (run, value): a number of zeros, and the entry that follows them.

    Two words hold the size of the bucket and the number of pairs. Then follow all values, and then all runs, one byte
    each. A run of 255 zeros or more has one byte of 255 for each 255 zeros, and one byte for the rest. Zeros after the
    last value are not sent, because the size of the bucket determines their number.
    """

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The message, as in ``Indices.pack``; int32 (2 + k + words of the runs,). ValueError for invalid indices."""
        values, ordered = _in_order(values, indices, size)
        n, (in_bytes, _) = len(ordered), _count_gaps(ordered)
        message = np.zeros(2 + n + -(-in_bytes // 4), np.uint32)
        message[:2] = size, n
        message[2 : 2 + n] = values.numpy().view(np.uint32)
        _WRITE[BYTES](ordered, message[2 + n :].view(np.uint8))
        return torch.from_numpy(message.view(np.int32))

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """Add the entries of a message to ``out``, shape (size,); ValueError if the message has another size."""
        words = message.numpy().view(np.uint32)
        size, n = int(words[0]), int(words[1])
        if size != out.numel():
            raise ValueError(f"wire run-length: a message of {size} entries does not fit a bucket of {out.numel()}")
        _ADD[BYTES](out.numpy(), words[2 : 2 + n].view(np.float32), words[2 + n :].view(np.uint8))


FORMATS: dict[str, type[Indices] | type[Smallest] | type[RunLength]] = {
    "indices": Indices,
    "smallest": Smallest,
    "run-length": RunLength,
}


def _in_order(values: Tensor, indices: Tensor, size: int) -> tuple[Tensor, np.ndarray]:
    """The entries sorted by index, with int32 indices; ValueError unless indices are unique and in [0, size)."""
    if not _rise(indices.numpy(), size):
        indices, order = indices.sort()
        values = values[order]
        if not _rise(indices.numpy(), size):
            raise ValueError(f"indices are not unique or not in [0, {size}); select each entry once")
    return values, indices.to(torch.int32).numpy()


@njit(cache=True, nogil=True)
def _rise(indices: np.ndarray, size: int) -> bool:
    """Whether ``indices`` rise strictly and are all in [0, size)."""
    rising, last = True, -1
    for index in indices:
        rising &= index > last
        last = index
    return rising and last < size


@njit(cache=True, nogil=True)
def _count_gaps(indices: np.ndarray) -> tuple[int, int]:
    """The number of bytes, and of 16-bit numbers, that encode the gaps."""
    in_bytes, in_shorts, last = indices.size, indices.size, -1
    for index in indices:
        gap: Any = np.uint32(index - last - 1)
        in_bytes += gap // np.uint32(255)
        in_shorts += gap // np.uint32(65535)
        last = index
    return in_bytes, in_shorts


@njit(cache=True, nogil=True)
def _write_indices(indices: np.ndarray, words: np.ndarray) -> None:
    for i in range(indices.size):
        words[i] = indices[i]


@njit(cache=True, nogil=True)
def _add_indices(out: np.ndarray, values: np.ndarray, words: np.ndarray) -> None:
    for i in range(values.size):
        out[words[i]] += values[i]


@njit(cache=True, nogil=True)
def _write_bitmap(indices: np.ndarray, bitmap: np.ndarray) -> None:
    for index in indices:
        bitmap[index >> 3] |= np.uint8(1 << (index & 7))


@njit(cache=True, nogil=True)
def _add_bitmap(out: np.ndarray, values: np.ndarray, bitmap: np.ndarray) -> None:
    n = 0
    for i in range(bitmap.size):
        byte = bitmap[i]
        for bit in range(8):
            if byte >> bit & 1:
                out[8 * i + bit] += values[n]
                n += 1


@njit(cache=True, nogil=True)
def _write_gaps(indices: np.ndarray, codes: np.ndarray, largest: int) -> None:
    n, last = 0, -1
    for index in indices:
        gap = index - last - 1
        while gap >= largest:
            codes[n] = largest
            gap -= largest
            n += 1
        codes[n] = gap
        n += 1
        last = index


@njit(cache=True, nogil=True)
def _add_gaps(out: np.ndarray, values: np.ndarray, codes: np.ndarray, largest: int) -> None:
    c, index = 0, np.int64(-1)
    for value in values:
        while codes[c] == largest:
            index += largest
            c += 1
        index += np.int64(codes[c]) + 1
        c += 1
        out[index] += value


_WORDS = {INDICES: np.uint32, BITMAP: np.uint8, BYTES: np.uint8, SHORTS: np.uint16}
_WRITE = {
    INDICES: _write_indices,
    BITMAP: _write_bitmap,
    BYTES: lambda indices, codes: _write_gaps(indices, codes, 255),
    SHORTS: lambda indices, codes: _write_gaps(indices, codes, 65535),
}
_ADD = {
    INDICES: _add_indices,
    BITMAP: _add_bitmap,
    BYTES: lambda out, values, codes: _add_gaps(out, values, codes, 255),
    SHORTS: lambda out, values, codes: _add_gaps(out, values, codes, 65535),
}
