"""The clock: splits an iteration into parts that add up to the iteration. It is read on the main thread."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dlgs_bench.device import moment, seconds

PARTS = ("forward", "backward", "sparsify", "communication", "optimizer", "other")


class Clock:
    """Assigns the time between two marks to the label that is active.

    Exactly one label is active at any time. A nested label suspends the outer label, so no time counts twice and the
    parts add up by construction. On CUDA the marks are events in the current stream. They are read after the iteration,
    so that no synchronisation disturbs the overlap that is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._labels: list[str] = []
        self._marks: list = []

    def _mark(self, label: str) -> None:
        self._marks.append((label, moment(self._device)))

    def start(self) -> None:
        self._labels, self._marks = ["other"], []
        self.started_at = time.perf_counter()
        self._mark("other")

    @contextmanager
    def __call__(self, label: str) -> Iterator[None]:
        self._labels.append(label)
        self._mark(label)
        try:
            yield
        finally:
            self._labels.pop()
            self._mark(self._labels[-1])

    def stop(self) -> dict[str, float]:
        """The seconds of each part (``forward_s``, ...) and of the iteration (``iteration_s``)."""
        self._mark("end")
        if self._device.type == "cuda":
            self._marks[-1][1].synchronize()
        parts = dict.fromkeys(PARTS, 0.0)
        for (label, begun), (_, ended) in itertools.pairwise(self._marks):
            parts[label] += seconds(begun, ended)
        whole = seconds(self._marks[0][1], self._marks[-1][1])
        return {f"{part}_s": part_s for part, part_s in parts.items()} | {"iteration_s": whole}

    def intervals(self) -> list[tuple[str, float, float]]:
        """The stopped iteration as (part, begin, end), in seconds from its start."""
        zero = self._marks[0][1]
        return [
            (label, seconds(zero, begun), seconds(zero, ended))
            for (label, begun), (_, ended) in itertools.pairwise(self._marks)
        ]
