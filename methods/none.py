"""Uncompressed: every gradient, summed in buckets merged to a fixed size, overlapping backward."""

from dataclasses import dataclass

from harness.exchange import At, Bucket, Method, Sum


@dataclass
class Uncompressed(Method):
    """Dense all-reduce (paper, Section 1: wait-free back-propagation)."""

    title = "uncompressed"
    scope = "size"
    baseline = True
    one_sum = "dense"
    elementwise = True
    exact_when = {}  # noqa: RUF012 - a constant, read by tests

    def exchange(self, bucket: Bucket, at: At):
        return (yield Sum(bucket.gradient))
