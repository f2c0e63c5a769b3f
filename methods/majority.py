"""signSGD with majority vote: every entry of the aggregate is the sign that most workers have for it."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, Requests, StepContext
from dlgs_bench.exchange.packing import pack, unpack
from dlgs_bench.exchange.randomness import uniform
from dlgs_bench.exchange.steps import all_to_all, state_for


@dataclass
class Majority(Method):
    """Send one bit per entry to the vote, and one bit back (Bernstein et al., signSGD with Majority Vote is
    Communication Efficient and Fault Tolerant, ICLR 2019, Algorithm 1).

    Workers replace the paper's server: each counts the votes of one part of the bucket, and sends the result to all.
    ``momentum`` 0.9 is the paper's Signum: workers send the signs of momentum * v + gradient. The optimizer's momentum
    is off, and its weight decay is applied to the weights directly. ``lion_beta`` above 0 is Distributed Lion with
    majority vote (Liu et al., Communication Efficient Distributed Training with Distributed Lion, NeurIPS 2024):
    workers send the signs of momentum v + (1 - momentum) gradient, and then v = lion_beta v + (1 - lion_beta) gradient.
    The paper's values are 0.9 and 0.99. A zero votes for plus and minus in turns, so that a layer without gradients
    does not drift; ties are broken at random. Both rules are not from the paper. The aggregate is +1 or -1, so learning
    rates are as small as 0.0001.
    """

    title = "signSGD, majority vote"
    scope = "size"
    link_growth = "(N - 1) / N"
    owns_momentum = True
    keeps_signs = True
    summed_state = ("velocities",)

    momentum: Annotated[float, ">= 0", "< 1"] = 0.0
    seed: Annotated[int, ">= 0"] = 0
    lion_beta: Annotated[float, ">= 0", "< 1"] = 0.0
    velocities: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.lion_beta and not self.momentum:
            raise ValueError(f"momentum: {self.momentum!r} is not valid with lion_beta; give a number in (0, 1)")

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        vector = bucket.gradient
        if self.lion_beta:
            velocity = state_for(self.velocities, bucket.index, vector)
            gradient, vector = vector, velocity * self.momentum + vector * (1 - self.momentum)
            velocity.mul_(self.lion_beta).add_(gradient, alpha=1 - self.lion_beta)
        elif self.momentum:
            vector = state_for(self.velocities, bucket.index, vector).mul_(self.momentum).add_(vector)
        parts = vector.tensor_split(context.workers)
        mine = len(parts[context.rank])
        turn = context.step % 2  # a zero at an odd place votes for plus in odd steps
        positive, zero = vector > 0, vector == 0
        positive[turn::2] |= zero[turn::2]
        ballots = [_packed(part) for part in positive.tensor_split(context.workers)]
        received = yield from all_to_all(ballots, context, bucket.size - mine, lengths_known=True)
        votes = torch.stack([_unpacked(message, mine) for message in received]).sum(0)
        tie = uniform(vector.device, mine, self.seed, context.step, bucket.index, context.rank) < 0.5
        won = torch.where(2 * votes == context.workers, tie, 2 * votes > context.workers)
        gathered = yield Gather(_packed(won), entries=mine)
        for part, message in zip(bucket.gradient.tensor_split(context.workers), gathered, strict=True):
            part.copy_(_unpacked(message, len(part)))
        return bucket.gradient.mul_(2).sub_(1)


def _packed(positive: Tensor) -> Tensor:
    """A message of bools, 8 per byte."""
    return pack(positive.new_empty(0, dtype=torch.float32), positive.to(torch.uint8), 1)


def _unpacked(message: Tensor, size: int) -> Tensor:
    """The bools of a message of ``_packed``, uint8, shape (size,)."""
    return unpack(message, 0, 1, size)[1]
