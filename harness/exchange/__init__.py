"""The contract of compression methods: what a file in ``methods/`` imports."""

from harness.exchange.feedback import ErrorFeedback, Momentum
from harness.exchange.local_steps import LocalSteps
from harness.exchange.method import At, Bucket, Gather, Max, Method, Request, Round, Sum
from harness.exchange.selection import Threshold, TopK
from harness.exchange.sparsifier import Estimator, Ratio, Selects, Sparsifier

__all__ = [
    "At",
    "Bucket",
    "ErrorFeedback",
    "Estimator",
    "Gather",
    "LocalSteps",
    "Max",
    "Method",
    "Momentum",
    "Ratio",
    "Request",
    "Round",
    "Selects",
    "Sparsifier",
    "Sum",
    "Threshold",
    "TopK",
]
