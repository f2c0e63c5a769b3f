"""The clock: splits an iteration into parts that add up to it, reading time on the main thread."""

import itertools
import time
from contextlib import contextmanager

import torch

PARTS = ("forward", "backward", "sparsify", "communication", "optimizer", "other")


def moment(device: torch.device) -> torch.cuda.Event | float:
    """Now: by the host's clock, or on CUDA an event in the current stream, to be read when it has passed."""
    if device.type != "cuda":
        return time.perf_counter()
    now = torch.cuda.Event(enable_timing=True)
    now.record()
    return now


def seconds(begun: torch.cuda.Event | float, ended: torch.cuda.Event | float) -> float:
    """From one moment to another of the same device."""
    return ended - begun if isinstance(begun, float) else begun.elapsed_time(ended) / 1000


class Clock:
    """One label is in force at any time; the time until the next change of label is that label's.

    Nested labels suspend the outer one, so nothing counts twice and the parts add up by
    construction. On CUDA the marks are events in the current stream, read after the iteration has
    ended, so that no synchronisation disturbs the overlap being measured.
    """

    def __init__(self, device: torch.device):
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
    def __call__(self, label: str):
        self._labels.append(label)
        self._mark(label)
        try:
            yield
        finally:
            self._labels.pop()
            self._mark(self._labels[-1])

    def stop(self) -> dict[str, float]:
        """Seconds by part (``forward_s``, ...), and of the whole (``iteration_s``)."""
        self._mark("end")
        if self._device.type == "cuda":
            self._marks[-1][1].synchronize()
        parts = dict.fromkeys(PARTS, 0.0)
        for (label, begun), (_, ended) in itertools.pairwise(self._marks):
            parts[label] += seconds(begun, ended)
        whole = seconds(self._marks[0][1], self._marks[-1][1])
        return {f"{part}_s": of_part for part, of_part in parts.items()} | {"iteration_s": whole}

    def intervals(self) -> list[tuple[str, float, float]]:
        """The stopped iteration as (part, begin, end), in seconds from its start."""
        zero = self._marks[0][1]
        return [
            (label, seconds(zero, begun), seconds(zero, ended))
            for (label, begun), (_, ended) in itertools.pairwise(self._marks)
        ]
