"""Heavy ball: the velocities of the workers are summed densely. They replace the optimizer's momentum."""

from dataclasses import dataclass

from dlgs_bench.exchange import Momentum, Sum


@dataclass
class HeavyBall(Momentum):
    title = "heavy ball"
    sum_kind = "dense"
    exact_when = {"momentum": 0.0}  # noqa: RUF012

    def exchange(self, bucket, context):
        return (yield Sum(bucket.gradient.copy_(self.velocity(bucket))))
