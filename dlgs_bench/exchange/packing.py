"""Packing: codes of a few bits side by side in bytes, blocks of a vector, scales of layers; on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def pack(floats: Tensor, codes: Tensor, bits: int) -> Tensor:
    """``floats``, float32 (s,), and ``codes``, uint8 (n,) below 2 ** bits, as one message.

    uint8, shape (4 s + ceil(n bits / 8),); bits is 1, 2, 4 or 8. With m bytes of codes, code i lies in byte i mod m:
    to pack is then a few passes over memory in order.
    """
    each = 8 // bits
    rows = pad(codes, (0, -len(codes) % each)).view(each, -(-len(codes) // each))
    packed = rows[0].clone()
    for place, row in enumerate(rows[1:], start=1):
        packed |= row << bits * place
    return torch.cat([floats.view(torch.uint8), packed])


def unpack(message: Tensor, floats: int, bits: int, size: int) -> tuple[Tensor, Tensor]:
    """The ``floats`` floats, float32, and the ``size`` codes, uint8, of a message of ``pack``."""
    packed = message[4 * floats :]
    rows = [packed >> bits * place & 2**bits - 1 for place in range(8 // bits)]
    return message[: 4 * floats].clone().view(torch.float32), torch.cat(rows)[:size]  # cloned, it is aligned


def join(*tensors: Tensor) -> Tensor:
    """Tensors of any dtypes and shapes as one message, uint8 (bytes,)."""
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


def split(message: Tensor, *like: Tensor) -> list[Tensor]:
    """The tensors of a message of ``join``, with the dtypes and shapes of ``like``."""
    parts = message.split([tensor.nbytes for tensor in like])
    return [p.clone().view(t.dtype).view(t.shape) for p, t in zip(parts, like, strict=True)]  # cloned, it is aligned


def pack_places(places: Tensor) -> Tensor:
    """Places below 4096, int64 of any shape, in 12 bits each: uint8, shape (n + ceil(n / 2),) for n places."""
    low, high = (places & 255).byte().view(-1), (places >> 8).byte().view(-1)
    return torch.cat([low, pack(low.new_empty(0), high, 4)])


def unpack_places(message: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """What is before the places that ``pack_places`` made the end of a message, uint8; the places, of this shape."""
    count = shape.numel()
    half = -(-count // 2)
    rest, low, high = message.split([len(message) - count - half, count, half])
    return rest, (low.long() | unpack(high, 0, 4, count)[1].long() << 8).view(shape)


def pack_signs(places: Tensor, negative: Tensor) -> Tensor:
    """Places, shape (n,), below 2 ** 30, and whether what is there is negative, bool (n,): int32 (n,)."""
    return places.to(torch.int32) << 1 | negative.to(torch.int32)


def add_signs(out: Tensor, message: Tensor, magnitude: float | Tensor) -> None:
    """Add ``magnitude`` with its sign at each place of a message of ``pack_signs`` to ``out``, shape (d,)."""
    out.index_add_(0, message >> 1, (1 - 2 * (message & 1)).to(out.dtype) * magnitude)


def blocks(vector: Tensor, length: int) -> Tensor:
    """The vector, shape (d,), as blocks, shape (ceil(d / length), length); the last is filled up with zeros."""
    return pad(vector, (0, -len(vector) % length)).view(-(-len(vector) // length), length)


def times(vector: Tensor, scales: Tensor, sizes: Sequence[int]) -> Tensor:
    """Multiply each layer of ``vector``, of ``sizes`` entries, by its scale, in place; return it."""
    for layer, scale in zip(vector.split(sizes), scales, strict=True):
        layer.mul_(scale)
    return vector
