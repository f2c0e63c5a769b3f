"""A process for test_launch, which replaces dlgs_bench.training.run: <what it does> <seconds> <folder>.

The seconds: after how many without a heartbeat of the launcher it leaves.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench.launch.liveness import Progress, run_as_rank
from dlgs_bench.spec import LaunchSettings, RunSpec

STEPS = 50


def work(what: str, folder: Path) -> None:
    spec = RunSpec.from_json((folder / "spec.json").read_text())
    place = LaunchSettings.from_json((folder / "launch_settings.json").read_text())
    rank = int(os.environ.get("HOROVOD_RANK") or os.environ["RANK"])
    report = Progress(folder, rank)
    if what in ("ends", "shows its GPUs"):
        report(STEPS, STEPS)
        if rank == 0:
            seen = f"batch,data\n{spec.training.batch},{place.data_root}\n"
            if what == "shows its GPUs":
                seen = f"gpus\n{os.environ['CUDA_VISIBLE_DEVICES']}\n"
            (folder / "points.csv").write_text(seen)
            (folder / "run.json").write_text('{"provenance": {"commit": "1234567"}}')
        return
    for step in range(1, 10**6):
        report(step, STEPS)
        if rank == 1 and step == 4:
            if what == "fails":
                raise ArithmeticError("broken on purpose")
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hangs":
                time.sleep(600)
        if rank == 0 and (folder / "error").exists():
            raise RuntimeError("the other rank is gone")
        time.sleep(0.1)


if __name__ == "__main__":
    what, after_s, folder = sys.argv[1:]
    run_as_rank(Path(folder), partial(work, what), float(after_s))
