"""Wire formats: how the chosen entries of one bucket become one int32 message, and are added up again.

``indices``: the values' bits, then the indices: 64 bits an entry. ``smallest``: a word that says how many
and which code, the values' bits, then the places in whichever of four codes is the smallest for them:
indices (32 bits an entry), a bitmap (1 bit for each entry of the bucket), or the gaps between places in
bytes or in 16 bits, where the largest number means "so much further, and more to come". For randomly
placed entries that is the bitmap above a density of 1/8, bytes (8 to 13 bits an entry) down to about 1/150,
16 bits down to 1/65,000. ``run-length``: pairs of a run of zeros and the value behind it, whatever is sent.
``smallest`` and ``run-length`` are for CPU.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

INDICES, BITMAP, BYTES, SHORTS = range(4)
MOST = 1 << 30  # entries that fit beside the code in one word


class Indices:
    """The plain list, on any device."""

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """float32 values (k,) and unique indices (k,) of a bucket of ``size`` as a message, int32 (2k,).

        Nothing is copied where the indices follow the values in memory already.
        """
        bits, indices = values.view(torch.int32), indices.to(torch.int32)
        one_memory = bits.untyped_storage().data_ptr() == indices.untyped_storage().data_ptr()
        if one_memory and indices.storage_offset() == bits.storage_offset() + bits.numel():
            return bits.as_strided((2 * bits.numel(),), (1,))
        return torch.cat([bits, indices])

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """Add a message's entries to ``out``, shape (size,)."""
        values, indices = message.tensor_split(2)
        out.index_add_(0, indices, values.view(torch.float32))


class Smallest:
    """The code that needs the fewest bytes, chosen anew for each message."""

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """As ``Indices.pack``; int32, shape (1 + k + words of the code,). ValueError for wrong indices."""
        values, places = _in_order(values, indices, size)
        n = len(places)
        if n >= MOST:
            raise ValueError(f"{n} entries in one message, fewer than {MOST} fit")
        in_bytes, in_shorts = _count_gaps(places)
        needed = [4 * n, -(-size // 8), in_bytes, 2 * in_shorts]
        code = int(np.argmin(needed))
        message = np.zeros(1 + n + -(-needed[code] // 4), np.uint32)
        message[0] = code << 30 | n
        message[1 : 1 + n] = values.numpy().view(np.uint32)
        _WRITE[code](places, message[1 + n :].view(_WORDS[code]))
        return torch.from_numpy(message.view(np.int32))

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """As ``Indices.add``."""
        words = message.numpy().view(np.uint32)
        code, n = int(words[0]) >> 30, int(words[0]) & MOST - 1
        _ADD[code](out.numpy(), words[1 : 1 + n].view(np.float32), words[1 + n :].view(_WORDS[code]))


class RunLength:
    """Pairs (run, value): how many zeros, and the entry that follows them.

    Two words say how many entries the bucket has and how many pairs there are; all values follow, then all runs, a
    byte each. A run of 255 zeros or more takes the byte 255 for each 255 of them, and the rest. The zeros behind the
    last value are not sent: the bucket's entries say where they end.
    """

    @staticmethod
    def pack(values: Tensor, indices: Tensor, size: int) -> Tensor:
        """As ``Indices.pack``; int32, shape (2 + k + words of the runs,). ValueError for wrong indices."""
        values, places = _in_order(values, indices, size)
        n, (in_bytes, _) = len(places), _count_gaps(places)
        message = np.zeros(2 + n + -(-in_bytes // 4), np.uint32)
        message[:2] = size, n
        message[2 : 2 + n] = values.numpy().view(np.uint32)
        _WRITE[BYTES](places, message[2 + n :].view(np.uint8))
        return torch.from_numpy(message.view(np.int32))

    @staticmethod
    def add(out: Tensor, message: Tensor) -> None:
        """As ``Indices.add``. ValueError for a message of another bucket."""
        words = message.numpy().view(np.uint32)
        size, n = int(words[0]), int(words[1])
        if size != out.numel():
            raise ValueError(f"a message of {size} entries for a bucket of {out.numel()}")
        _ADD[BYTES](out.numpy(), words[2 : 2 + n].view(np.float32), words[2 + n :].view(np.uint8))


FORMATS: dict[str, type[Indices] | type[Smallest] | type[RunLength]] = {
    "indices": Indices,
    "smallest": Smallest,
    "run-length": RunLength,
}


def _in_order(values: Tensor, indices: Tensor, size: int) -> tuple[Tensor, np.ndarray]:
    """The entries by rising index, the indices as int32; ValueError unless they are unique and in [0, size)."""
    if not _rise(indices.numpy(), size):
        indices, order = indices.sort()
        values = values[order]
        if not _rise(indices.numpy(), size):
            raise ValueError(f"indices are to be unique and in [0, {size})")
    return values, indices.to(torch.int32).numpy()


@njit(cache=True, nogil=True)
def _rise(places, size):
    """Whether ``places`` rise strictly, from 0 or above to below ``size``."""
    rising, last = True, -1
    for place in places:
        rising &= place > last
        last = place
    return rising and last < size


@njit(cache=True, nogil=True)
def _count_gaps(places):
    """How many bytes and how many 16-bit numbers the gaps take."""
    in_bytes, in_shorts, last = places.size, places.size, -1
    for place in places:
        gap = np.uint32(place - last - 1)
        in_bytes += gap // np.uint32(255)
        in_shorts += gap // np.uint32(65535)
        last = place
    return in_bytes, in_shorts


@njit(cache=True, nogil=True)
def _write_indices(places, words):
    for i in range(places.size):
        words[i] = places[i]


@njit(cache=True, nogil=True)
def _add_indices(out, values, words):
    for i in range(values.size):
        out[words[i]] += values[i]


@njit(cache=True, nogil=True)
def _write_bitmap(places, bitmap):
    for place in places:
        bitmap[place >> 3] |= np.uint8(1 << (place & 7))


@njit(cache=True, nogil=True)
def _add_bitmap(out, values, bitmap):
    n = 0
    for i in range(bitmap.size):
        byte = bitmap[i]
        for bit in range(8):
            if byte >> bit & 1:
                out[8 * i + bit] += values[n]
                n += 1


@njit(cache=True, nogil=True)
def _write_gaps(places, codes, largest):
    n, last = 0, -1
    for place in places:
        gap = place - last - 1
        while gap >= largest:
            codes[n] = largest
            gap -= largest
            n += 1
        codes[n] = gap
        n += 1
        last = place


@njit(cache=True, nogil=True)
def _add_gaps(out, values, codes, largest):
    c, place = 0, -1
    for value in values:
        while codes[c] == largest:
            place += largest
            c += 1
        place += np.int64(codes[c]) + 1
        c += 1
        out[place] += value


_WORDS = {INDICES: np.uint32, BITMAP: np.uint8, BYTES: np.uint8, SHORTS: np.uint16}
_WRITE = {
    INDICES: _write_indices,
    BITMAP: _write_bitmap,
    BYTES: lambda places, codes: _write_gaps(places, codes, 255),
    SHORTS: lambda places, codes: _write_gaps(places, codes, 65535),
}
_ADD = {
    INDICES: _add_indices,
    BITMAP: _add_bitmap,
    BYTES: lambda out, values, codes: _add_gaps(out, values, codes, 255),
    SHORTS: lambda out, values, codes: _add_gaps(out, values, codes, 65535),
}
