"""Detects what disturbed a measurement: other work on this machine, or a change of its speed. No torch."""

import csv
import os
import resource
import statistics
import time
from pathlib import Path

STATISTICS = Path("/proc/stat")  # a line per core: user, nice, system, idle, iowait, irq, softirq, steal, ...
WORKED = (0, 1, 2, 7)
# A launch is repeated above these limits. Tests raise the limits, because several tests run at the same time.
MAX_OTHER_WORK = float(os.environ.get("DLGS_BENCH_MAX_OTHER_WORK", 0.1))  # a fraction of the cores' time
MAX_SPEED_CHANGE = float(os.environ.get("DLGS_BENCH_MAX_SPEED_CHANGE", 0.25))  # relative change of a forward pass


class OtherWork:
    """Measures the work of other processes on the cores of this process, from now on."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._begun, self._all, self._own = time.monotonic(), self._worked_s(), _own_s()

    def fraction(self) -> float:
        """The fraction of the cores' time since the start that other processes took.

        The work of this process's children is not counted; call this when they have ended and were waited for. The
        kernel's work for the network is not counted either, because the run's packets cause it.
        """
        all_s, own_s = self._worked_s() - self._all, _own_s() - self._own
        return max(0.0, all_s - own_s) / (len(self._cores) * (time.monotonic() - self._begun))

    def _worked_s(self) -> float:
        """The seconds that the cores of this process have worked. A core that the kernel does not list counts as 0."""
        lines = [line.split() for line in STATISTICS.read_text(encoding="utf-8").splitlines()]
        of_core = {line[0]: line[1:] for line in lines if line}
        ticks = (of_core[f"cpu{core}"] for core in self._cores if f"cpu{core}" in of_core)
        return sum(int(one[part]) for one in ticks for part in WORKED) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def why_disturbed(others: float, iterations: Path, forward_s: float | None) -> str | None:
    """The reason why a measurement should be repeated, or None.

    ``others``: the result of ``OtherWork.fraction``. ``iterations``: the table of a timing run, if it exists; in its
    column ``slowdown``, the factor by which the machine was slower than in the calibration when the links were set.
    ``forward_s``: the calibrated time of a forward pass.
    """
    if others > MAX_OTHER_WORK:
        return f"other work took {others:.0%} of the machine"
    if forward_s and iterations.exists():
        with iterations.open(encoding="utf-8") as file:
            timed = [float(row["forward_s"]) / float(row["slowdown"]) for row in csv.DictReader(file)]
        ratio = statistics.median(timed) / forward_s
        if abs(ratio - 1) > MAX_SPEED_CHANGE:
            return f"a forward pass took {ratio:.2f} times the expected time"
    return None
