"""Time stamps of a device, for which the host does not wait, and the name of the processor."""

import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch


def moment(device: torch.device) -> torch.cuda.Event | float:
    """The current time of the host's clock, or on CUDA an event in the device's current stream, which is read later."""
    if device.type != "cuda":
        return time.perf_counter()
    now = torch.cuda.Event(enable_timing=True)
    now.record(torch.cuda.current_stream(device))  # a script need not make its GPU the current one
    return now


def seconds(begun: torch.cuda.Event | float, ended: torch.cuda.Event | float) -> float:
    """The seconds between two moments of the same device. On CUDA, synchronise first."""
    if isinstance(begun, float):
        return cast(float, ended) - begun
    return begun.elapsed_time(cast(torch.cuda.Event, ended)) / 1000


def processor() -> str:
    """The name of the processor, such as "AMD EPYC"."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
