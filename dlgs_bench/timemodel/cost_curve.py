"""Curves through measured costs. No torch and no pandas, since the installed package uses them too."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)


class Cost(Protocol):
    """Seconds of a group by its number of entries, or an array of seconds by an array of numbers."""

    def __call__(self, entries: Number) -> Number: ...


@dataclass(frozen=True)
class Curve:
    """Seconds by entries, interpolated linearly between measured sizes.

    Above the measured sizes the cost of an entry is constant. Below them the cost of a bucket is constant.
    """

    entries: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, entries: Number) -> Number:
        inside: Any = np.interp(entries, self.entries, self.seconds)
        return inside * np.maximum(1.0, np.asarray(entries) / self.entries[-1])
