"""Start one run and wait until it ends; Snakemake calls this program for each run."""

import argparse
import signal
import sys
from pathlib import Path

from dlgs_bench.launch.launcher import STOPS, launch
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.timemodel import plans
from dlgs_bench.timemodel.length import with_length
from dlgs_bench.timemodel.slowdown import with_rate


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
    arguments = argparse.ArgumentParser("python -m dlgs_bench.launch", description=__doc__)
    add = arguments.add_argument
    add("spec", type=RunSpec.from_json, help="what to run, a RunSpec as JSON")
    add("settings", type=LaunchSettings.from_json, help="where to run it, LaunchSettings as JSON")
    add("folder", type=Path, help="the folder that the results of the run are written to")
    add("log", type=Path, help="the log file")
    add("--plan", type=Path, nargs="*", default=[], help="files with the groups of merged layers, one per scheme")
    # Snakemake writes the option without a value if the run has no such file.
    add("--rate", type=Path, nargs="?", help="the file with the rate of the links")
    add("--length", type=Path, nargs="?", help="the file with the number of epochs that fit into the budget")
    return arguments


def clean_up_when_ended() -> None:
    """Make the signals ``STOPS`` exit this process through the launcher's clean-up, which later signals do not stop."""

    def leave(*_: object) -> None:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    for number in STOPS:
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # nohup ignores SIGHUP
            signal.signal(number, leave)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
