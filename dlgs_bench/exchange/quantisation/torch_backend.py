"""Quantisation by torch operations, on any device."""

import math

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.exchange.packing import pack, unpack
from dlgs_bench.exchange.quantisation import levels
from dlgs_bench.exchange.randomness import uniform


def norms(vector: Tensor, ends: np.ndarray, p: float) -> Tensor:
    if p == math.inf:
        return torch.segment_reduce(vector.abs(), "max", lengths=_lengths(vector, ends), initial=0, unsafe=True)
    powers = vector.double().abs_().pow_(p)  # squares of float32 would overflow and underflow
    return (
        torch.segment_reduce(powers, "sum", lengths=_lengths(vector, ends), initial=0, unsafe=True).pow_(1 / p).float()
    )


def encode(vector: Tensor, units: Tensor, ends: np.ndarray, bits: int, seed: tuple[int, ...]) -> Tensor:
    to = levels(bits)
    divisors = torch.where(units > 0, units, 1).repeat_interleave(_lengths(vector, ends))
    more = uniform(vector.device, len(vector), *seed) if seed else to.half
    rounded = (vector / divisors).add_(more).floor_()
    codes = rounded.clamp_(to.lowest, to.highest).sub_(to.lowest).nan_to_num_(0)
    return pack(units, codes.to(torch.uint8), bits)


def decode(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    out.zero_()
    for one, codes in zip(units, packed, strict=True):
        out += _vector(one, codes, ends, bits, out)
    return out


def subtract(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    return out.sub_(_vector(units[0], packed[0], ends, bits, out))


def _vector(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, like: Tensor) -> Tensor:
    to, (_, codes) = levels(bits), unpack(packed, 0, bits, len(like))
    return codes.to(torch.float32).mul_(to.step).add_(to.lowest).mul_(units.repeat_interleave(_lengths(like, ends)))


def _lengths(vector: Tensor, ends: np.ndarray) -> Tensor:
    return torch.from_numpy(np.diff(ends, prepend=0)).to(vector.device)
