"""Starts one run: python -m dlgs_bench.launch '<spec as JSON>' '<settings as JSON>' <run folder> <log file>
[--plan <file> ...] [--rate <file>] [--length <file>]; the files say what was found out for the run: the groups of each
scheme that takes a plan, the rate of its links, the epochs that fit into its budget."""

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
    found = argparse.ArgumentParser("python -m dlgs_bench.launch")
    found.add_argument("spec", type=RunSpec.from_json)
    found.add_argument("settings", type=LaunchSettings.from_json)
    found.add_argument("folder", type=Path)
    found.add_argument("log", type=Path)
    found.add_argument("--plan", type=Path, nargs="*", default=[])
    found.add_argument("--rate", type=Path, nargs="?")  # without a value: there is none for this run
    found.add_argument("--length", type=Path, nargs="?")
    return found


def clean_up_when_ended() -> None:
    """Have ``ENDS`` end this process by way of the launcher's clean-up, which no second one cuts short."""

    def leave(*_) -> None:
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    for number in ENDS:
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # which nohup asks for
            signal.signal(number, leave)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
