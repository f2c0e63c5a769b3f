"""Everything that a run needs and that is neither a method nor a model."""

__version__ = "0.1.0"
