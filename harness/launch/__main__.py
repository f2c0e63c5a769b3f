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
    for number in ENDS:
        signal.signal(number, _leave)
    return launch(spec, place, Path(folder), Path(log))


def _leave(*_) -> None:
    """Leave by way of the launcher's clean-up, which a second signal must not cut short."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
