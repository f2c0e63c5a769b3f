"""Starts one run: python -m harness.launch '<spec as JSON>' '<place as JSON>' <run folder> <log file> [<plan file>]."""

import signal
import sys
from pathlib import Path

from harness.launch.launcher import launch
from harness.spec import Place, RunSpec
from harness.timemodel import plans

ENDS = (signal.SIGTERM, signal.SIGINT)


def main(spec_json: str, place_json: str, folder: str, log: str, plan: str = "") -> int:
    spec, place = RunSpec.from_json(spec_json), Place.from_json(place_json)
    if plan:
        try:
            spec = plans.read(Path(plan), spec)
        except ValueError as error:
            sys.exit(f"error: {error}; delete the plan and let the workflow make it again")
    clean_up_when_ended()
    return launch(spec, place, Path(folder), Path(log))


def clean_up_when_ended() -> None:
    """Have SIGTERM and SIGINT end this process by way of the launcher's clean-up, which no second one cuts short."""

    def leave(*_) -> None:
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    for number in ENDS:
        signal.signal(number, leave)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
