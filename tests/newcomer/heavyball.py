"""Heavy ball: every worker's velocity, summed densely, in the place of the optimizer's momentum."""

from dataclasses import dataclass

from harness.exchange import Momentum, Sum


@dataclass
class HeavyBall(Momentum):
    title = "heavy ball"
    one_sum = "dense"
    exact_when = {"momentum": 0.0}  # noqa: RUF012

    def exchange(self, bucket, at):
        return (yield Sum(bucket.gradient.copy_(self.velocity(bucket))))
