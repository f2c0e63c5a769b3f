"""Uncompressed: the whole gradient is summed, in buckets of a fixed size, while backward runs."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, Method, Requests, StepContext, Sum


@dataclass
class Uncompressed(Method):
    """Dense all-reduce (DLGS paper, Section 1: wait-free back-propagation)."""

    title = "uncompressed"
    scope = "size"
    baseline = True
    sum_kind = "dense"
    elementwise = True
    exact_when = {}  # noqa: RUF012 - a constant, read by tests

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        return (yield Sum(bucket.gradient))
