"""Packing on any device: several codes of a few bits in one byte, blocks of a vector, scales of layers."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def pack(floats: Tensor, codes: Tensor, bits: int) -> Tensor:
    """A message of ``floats``, float32 (s,), and ``codes``, uint8 (n,) below 2 ** bits; bits is 1 to 8.

    The message is uint8, shape (4 s + b,), with b as in ``packed_bytes``. Bits that are no power of two are packed in
    planes: 5 bits are the lowest 4 bits of all codes, then the highest bit of all codes. In a plane of m bytes, code i
    is in byte i mod m, so packing takes a few sequential passes over memory.
    """
    planes, low = [floats.view(torch.uint8)], 0
    for width in planes_of(bits):
        planes.append(_plane(codes >> low & 2**width - 1 if width < bits else codes, width))
        low += width
    return torch.cat(planes)


def unpack(message: Tensor, floats: int, bits: int, size: int) -> tuple[Tensor, Tensor]:
    """The float32 numbers, shape (floats,), and the uint8 codes, shape (size,), of a message of ``pack``."""
    widths = planes_of(bits)
    start, *planes = message.split([4 * floats, *(packed_bytes(size, width) for width in widths)])
    codes, low = _unpacked(planes[0], widths[0], size), widths[0]
    for plane, width in zip(planes[1:], widths[1:], strict=True):
        codes |= _unpacked(plane, width, size) << low
        low += width
    return start.clone().view(torch.float32), codes  # a clone is aligned


def planes_of(bits: int) -> list[int]:
    """The powers of two that add up to ``bits``, the largest first: the bits of each plane, from the lowest bit on."""
    return [width for width in (8, 4, 2, 1) if bits & width]


def packed_bytes(size: int, bits: int) -> int:
    """The number of bytes of ``size`` packed codes: each plane has whole bytes."""
    return sum(-(-size * width // 8) for width in planes_of(bits))


def _plane(codes: Tensor, width: int) -> Tensor:
    each = 8 // width
    rows = pad(codes, (0, -len(codes) % each)).view(each, -(-len(codes) // each))
    packed = rows[0].clone()
    for number, row in enumerate(rows[1:], start=1):
        packed |= row << width * number
    return packed


def _unpacked(plane: Tensor, width: int, size: int) -> Tensor:
    rows = [plane >> width * number & 2**width - 1 for number in range(8 // width)]
    return torch.cat(rows)[:size]


def join(*tensors: Tensor) -> Tensor:
    """A message, uint8 (bytes,), of tensors of any dtypes and shapes."""
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


def split(message: Tensor, *like: Tensor) -> list[Tensor]:
    """The tensors of a message of ``join``, with the dtypes and shapes of ``like``."""
    parts = cut(message, [tensor.nbytes for tensor in like], [tensor.dtype for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def cut(message: Tensor, lengths: list[int], dtypes: list[torch.dtype]) -> list[Tensor]:
    """The tensors of a message of ``join`` as vectors, from the number of bytes and the dtype of each."""
    parts = message.split(lengths)
    return [part.clone().view(dtype) for part, dtype in zip(parts, dtypes, strict=True)]  # a clone is aligned


def pack_indices(indices: Tensor) -> Tensor:
    """Indices below 4096, int64 of any shape, in 12 bits each: uint8, shape (n + ceil(n / 2),) for n indices."""
    low, high = (indices & 255).byte().view(-1), (indices >> 8).byte().view(-1)
    return torch.cat([low, pack(low.new_empty(0), high, 4)])


def unpack_indices(message: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Split a message that ends with the result of ``pack_indices``: the bytes before it, and the indices."""
    count = shape.numel()
    half = -(-count // 2)
    rest, low, high = message.split([len(message) - count - half, count, half])
    return rest, (low.long() | unpack(high, 0, 4, count)[1].long() << 8).view(shape)


def pack_signs(indices: Tensor, negative: Tensor) -> Tensor:
    """A message, int32 (n,), of indices below 2 ** 30, shape (n,), and of signs: ``negative`` is bool, shape (n,)."""
    return indices.to(torch.int32) << 1 | negative.to(torch.int32)


def add_signs(out: Tensor, message: Tensor, magnitude: float | Tensor) -> None:
    """Add ``magnitude``, with the sign of each entry of a message of ``pack_signs``, to ``out``, shape (d,)."""
    out.index_add_(0, message >> 1, (1 - 2 * (message & 1)).to(out.dtype) * magnitude)


def blocks(vector: Tensor, length: int) -> Tensor:
    """The vector, shape (d,), as blocks, shape (ceil(d / length), length); the last block is padded with zeros."""
    return pad(vector, (0, -len(vector) % length)).view(-(-len(vector) // length), length)


def times(vector: Tensor, scales: Tensor, sizes: Sequence[int]) -> Tensor:
    """Multiply each layer of ``vector`` by its scale, in place, and return the vector; ``sizes``: entries per layer."""
    for layer, scale in zip(vector.split(sizes), scales, strict=True):
        layer.mul_(scale)
    return vector
