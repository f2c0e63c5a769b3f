"""The core of the contract of compression methods, for files in ``methods/``. Helpers are in the other modules."""

from dlgs_bench.exchange.feedback import ErrorFeedback, Momentum
from dlgs_bench.exchange.method import Bucket, Gather, Max, Method, PeerExchange, Request, Requests, StepContext, Sum
from dlgs_bench.exchange.selection import Threshold, TopK
from dlgs_bench.exchange.sparsifier import Estimator, Ratio, Selects, Sparsifier
from dlgs_bench.exchange.weight_changes import LocalSteps

__all__ = [
    "Bucket",
    "ErrorFeedback",
    "Estimator",
    "Gather",
    "LocalSteps",
    "Max",
    "Method",
    "Momentum",
    "PeerExchange",
    "Ratio",
    "Request",
    "Requests",
    "Selects",
    "Sparsifier",
    "StepContext",
    "Sum",
    "Threshold",
    "TopK",
]
