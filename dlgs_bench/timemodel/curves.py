"""Curves through measured costs. No torch, no pandas: they are used where only the package is installed."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Seconds by entries, along straight lines between measured sizes.

    Beyond the measured sizes the cost of an entry stays, below them that of a bucket.
    """

    entries: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, entries):
        inside = np.interp(entries, self.entries, self.seconds)
        return inside * np.maximum(1.0, np.asarray(entries) / self.entries[-1])
