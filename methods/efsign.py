"""EF-signSGD: a bit for each entry, its sign, and one number for each layer, the mean of its magnitudes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.exchange import At, Bucket, ErrorFeedback, Gather
from harness.exchange.packing import pack, times, unpack


@dataclass
class EFSign(ErrorFeedback):
    """Signs with error feedback (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, Algorithm 1).

    Their residual is in units of the update, lr g, this one in g: the two differ where the learning rate drops,
    as theirs then sends what an earlier, larger rate had left over.
    """

    title = "EF-signSGD"
    scope = "size"
    conserves_mass = "rounding"

    def exchange(self, bucket: Bucket, at: At):
        acc = self.accumulate(bucket)
        scales = torch.stack([layer.abs().mean() for layer in acc.split(bucket.sizes)])
        message = pack(scales, (acc >= 0).view(torch.uint8), bits=1)
        acc -= _decoded(message, bucket)
        received = yield Gather(message, entries=bucket.size)
        aggregate = bucket.gradient.zero_()
        for message in received:
            aggregate += _decoded(message, bucket)
        return aggregate


def _decoded(message: Tensor, bucket: Bucket) -> Tensor:
    scales, bits = unpack(message, len(bucket.sizes), 1, bucket.size)
    return times(bits.to(torch.float32).mul_(2).sub_(1), scales, bucket.sizes)
