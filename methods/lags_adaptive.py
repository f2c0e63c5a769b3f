"""LAGS with one ratio per layer, chosen as its authors describe."""

from dataclasses import dataclass

from .lags import LAGS


@dataclass
class AdaptiveLAGS(LAGS):
    """Each layer has the largest ratio at which the backward pass of the next layer hides its communication (Shi et
    al., ECAI 2020, Section 5). The plan computes the ratios; ``ratio`` is a lower bound."""

    title = "LAGS, adaptive"
    ratios_from_plan = True
