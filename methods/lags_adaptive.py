"""LAGS with a ratio of its own for each layer, as its authors choose it."""

from dataclasses import dataclass

from .lags import LAGS


@dataclass
class AdaptiveLAGS(LAGS):
    """Each layer has the largest ratio whose communication hides behind the next layer's backward (Shi et al.,
    ECAI 2020, Section 5). The plan finds it; ``ratio`` is the smallest."""

    title = "LAGS, adaptive"
    ratios_from_plan = True
