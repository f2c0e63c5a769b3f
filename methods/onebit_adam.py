"""1-bit Adam: after a warm-up with dense Adam, workers send the signs of momenta, and the variance is frozen."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, PeerExchange, Requests, StepContext, Sum
from dlgs_bench.exchange.quantisation import decode, encode, ends, norms, subtract
from dlgs_bench.exchange.steps import all_to_all, state_for


@dataclass
class OneBitAdam(Method):
    """Adam with compressed momenta (Tang et al., 1-bit Adam, arXiv 2102.02888, ICML 2021, Algorithm 1).

    In the first ``warmup_steps`` steps, a dense sum gives the mean gradient g, and Adam updates m = beta1 m +
    (1 - beta1) g and v = beta2 v + (1 - beta2) g^2. Afterwards v is constant. Worker i adds its residual to beta1 m +
    (1 - beta1) g_i and sends the signs, with the rms of each ``block`` of entries. Each worker averages one part of the
    bucket, adds a second residual, and sends the result to all workers in the same format. This is the new m. The
    aggregate is m / (sqrt(v) + eps), or m with ``adaptive=False``.

    The optimizer's momentum is off, and its weight decay is applied to the weights directly. Learning rates are as
    large as with Adam. Both m and v are corrected for their bias, as in Adam; the authors' code does not correct them,
    and has one scale per layer. A sign cannot encode 0. So an entry of m / (sqrt(v) + eps) is set to 0 if its gradient
    was 0 in all steps of the warm-up, where v is 0. The paper does not mention such entries; the authors' code takes a
    mask from the user. With ``adaptive=False``, m is returned as it was sent: such an entry gets a sign times the rms
    of its block, and the residual subtracts it again in later steps.
    """

    title = "1-bit Adam"
    scope = "size"
    link_growth = "(N - 1) / N"
    owns_momentum = True
    exact_when = {"beta1": 0.0, "adaptive": False}  # noqa: RUF012 - a constant, read by tests
    conserves_mass = "rounding"
    conserves_when = {"beta1": 0.0, "adaptive": False, "warmup_steps": 1}  # noqa: RUF012 - a constant, read by tests
    summed_state = ("errors",)
    divided_state = ("sum_errors",)
    equal_state = ("means", "squares")

    warmup_steps: Annotated[int, ">= 1"] = 50
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9
    beta2: Annotated[float, ">= 0", "< 1"] = 0.999
    eps: Annotated[float, "> 0"] = 1e-8
    block: Annotated[int, ">= 1"] = 4096
    adaptive: bool = True
    means: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    squares: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    errors: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    sum_errors: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    warm: bool = field(default=False, init=False, repr=False)  # a timing run starts after the warm-up

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 if self._compresses(context) else 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        mean, square = (state_for(memory, bucket.index, bucket.gradient) for memory in (self.means, self.squares))
        if self._compresses(context):
            yield from self._send_signs(bucket, mean, context)
        else:
            gradient = yield Sum(bucket.gradient)
            mean.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
            square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        update = bucket.gradient.copy_(mean).div_(1 - self.beta1**context.step)
        if self.adaptive:
            variance = square / (1 - self.beta2 ** min(context.step, self.warmup_steps))
            update.div_(variance.sqrt_().add_(self.eps)).masked_fill_(square == 0, 0)
        return update

    def _send_signs(
        self, bucket: Bucket, mean: Tensor, context: StepContext
    ) -> Generator[PeerExchange | Gather, Any, None]:
        """Write the new mean of momenta to ``mean``, shape (d,)."""
        own = self.residual(bucket).add_(bucket.gradient, alpha=1 - self.beta1)
        own.add_(mean, alpha=self.beta1 / context.workers)
        parts = mean.tensor_split(context.workers)
        mine = parts[context.rank]
        messages = [self._encoded(part) for part in own.tensor_split(context.workers)]
        received = yield from all_to_all(messages, context, bucket.size - len(mine), lengths_known=True)
        total = state_for(self.sum_errors, bucket.index, mine).add_(decode(received, self.block, 1, mine))
        gathered = yield Gather(self._encoded(total), entries=len(mine))
        for part, message in zip(parts, gathered, strict=True):
            decode([message], self.block, 1, part)

    def _encoded(self, vector: Tensor) -> Tensor:
        """A message of the signs of ``vector`` and the rms of its blocks; what it encodes is subtracted from it."""
        counts = np.diff(ends(len(vector), self.block), prepend=0)
        units = norms(vector, self.block, 2) / vector.new_tensor(counts).sqrt_()
        message = encode(vector, units, self.block, bits=1)
        subtract(message, self.block, 1, vector)
        return message

    def residual(self, bucket: Bucket) -> Tensor:
        """The entries of this worker's momenta that were not sent, shape (d,)."""
        return state_for(self.errors, bucket.index, bucket.gradient)

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        self.warm = True
        state_for(self.squares, bucket.index, bucket.gradient).fill_(1.0)  # the same on all workers

    def _compresses(self, context: StepContext) -> bool:
        return self.warm or context.step > self.warmup_steps
