"""Uncompressed: every gradient, summed in buckets merged to a fixed size, overlapping backward."""

from dataclasses import dataclass

from harness.exchange.method import Bucket, Method, Sum


@dataclass
class Uncompressed(Method):
    """Dense all-reduce (paper, Section 1: wait-free back-propagation)."""

    scope = "size"
    exact = True
    one_sum = "dense"

    def exchange(self, bucket: Bucket, step: int):
        return (yield Sum(bucket.gradient))
