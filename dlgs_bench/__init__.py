"""Everything except methods, models and the workflow: runs, hooks, predictions, reports."""

__version__ = "0.1.0"
