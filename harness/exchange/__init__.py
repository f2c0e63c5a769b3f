"""The contract of compression methods: what a file in ``methods/`` imports."""

from harness.exchange.feedback import ErrorFeedback, Momentum
from harness.exchange.method import At, Bucket, Gather, Max, Method, Request, Round, Sum
from harness.exchange.selection import Threshold, TopK
from harness.exchange.sparsifier import Sparsifier

__all__ = [
    "At",
    "Bucket",
    "ErrorFeedback",
    "Gather",
    "Max",
    "Method",
    "Momentum",
    "Request",
    "Round",
    "Sparsifier",
    "Sum",
    "Threshold",
    "TopK",
]
