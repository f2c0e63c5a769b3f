"""DLGS with a refresh interval of its own: a plug-in that inherits from a plug-in."""

from dataclasses import dataclass

from .dlgs import DLGS


@dataclass
class OftenDLGS(DLGS):
    title = "DLGS, refreshed often"

    refresh_every: int = 4
