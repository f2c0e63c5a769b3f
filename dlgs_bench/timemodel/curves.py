"""Curves through measured costs. No torch and no pandas, since the installed package uses them too."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)


@dataclass(frozen=True)
class Curve:
    """Seconds by entries, interpolated linearly between measured sizes.

    Above the measured sizes the cost of an entry is constant. Below them the cost of a bucket is constant.
    """

    entries: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, entries: Number) -> Number:
        inside = np.interp(entries, self.entries, self.seconds)
        return inside * np.maximum(1.0, np.asarray(entries) / self.entries[-1])
