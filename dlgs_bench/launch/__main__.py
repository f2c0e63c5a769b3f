"""Starts one run.

python -m dlgs_bench.launch '<spec as JSON>' '<settings as JSON>' <run folder> <log file>
    [--plan <file> ...] [--rate <file>] [--length <file>]

The files hold values that were computed for the run: ``--plan`` the groups of a scheme that uses a plan, ``--rate`` the
rate of its links, and ``--length`` the epochs that fit into its budget.
"""

import argparse
import signal
import sys
from pathlib import Path

from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.timemodel import plans
from dlgs_bench.timemodel.length import with_length
from dlgs_bench.timemodel.slowdown import with_rate

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    spec, forward_s = given.spec, None
    try:
        for plan in given.plan:
            spec = plans.read(plan, spec)
        if given.rate:
            spec, forward_s = with_rate(given.rate, spec)
        if given.length:
            spec = with_length(given.length, spec)
    except ValueError as error:
        sys.exit(f"error: {error}; delete the file and let the workflow make it again")
    clean_up_when_ended()
    return launch(spec, given.settings, given.folder, given.log, forward_s=forward_s)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser("python -m dlgs_bench.launch")
    result.add_argument("spec", type=RunSpec.from_json)
    result.add_argument("settings", type=LaunchSettings.from_json)
    result.add_argument("folder", type=Path)
    result.add_argument("log", type=Path)
    result.add_argument("--plan", type=Path, nargs="*", default=[])
    result.add_argument("--rate", type=Path, nargs="?")  # the option has no value if the run has no rate file
    result.add_argument("--length", type=Path, nargs="?")
    return result


def clean_up_when_ended() -> None:
    """Make the signals ``ENDS`` exit this process through the launcher's clean-up, which later signals do not stop."""

    def leave(*_) -> None:
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    for number in ENDS:
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # nohup ignores SIGHUP
            signal.signal(number, leave)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
