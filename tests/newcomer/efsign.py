"""EF-signSGD: the signs of a layer's entries and one scale (Karimireddy et al., ICML 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.exchange import ErrorFeedback, Gather


@dataclass
class EFSign(ErrorFeedback):
    title = "EF-signSGD"
    conserves_mass = "rounding"

    def exchange(self, bucket, at):
        acc = self.accumulate(bucket)
        scale = acc.abs().mean().view(1)
        message = torch.cat([scale.view(torch.uint8), pack(acc >= 0)])
        received = yield Gather(message, entries=bucket.size)
        decoded = [decode(m, bucket.size) for m in received]
        acc -= decoded[at.rank]
        return sum(decoded)


def pack(bits: Tensor) -> Tensor:
    """8 of ``bits``, shape (d,), to a byte."""
    padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (padded * (1 << torch.arange(8))).sum(1).to(torch.uint8)


def decode(message: Tensor, size: int) -> Tensor:
    bits = (message[4:, None] >> torch.arange(8)) & 1
    return message[:4].clone().view(torch.float32) * (2.0 * bits.view(-1)[:size] - 1)
