"""One process of one run, a worker or the server; the launcher starts them: python -m harness.training.run <folder>.

Reads ``spec.json`` in the folder; rank 0 leaves the results there.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch

from harness.training import calibrate
from harness import comm as engines
from harness.data import DATASETS
from harness.launch.progress import Progress
from harness.training.results import write_run
from harness.spec import RunSpec
from harness.training.timed import time_iterations, time_planners
from harness.training.train import train

WORK = {
    "accuracy": train,
    "timing": time_iterations,
    "planners": time_planners,
    "layers": calibrate.layers,
    "exchanges": calibrate.exchanges,
}


def main(folder: Path) -> None:
    spec = RunSpec.from_json((folder / "spec.json").read_text())
    torch.set_num_threads(spec.threads)
    _die_with(int(os.environ["LAUNCHER_PID"]))
    device = torch.device(spec.device)
    comm = engines.connect(spec.engine, device)
    if comm.world_size != spec.workers + spec.servers:
        raise RuntimeError(f"{comm.world_size} processes joined, the run asks for {spec.workers + spec.servers}")
    data = DATASETS[spec.data](Path(spec.data_root), device) if spec.model else None
    report = Progress(folder / "progress.json") if comm.rank == 0 else lambda done, total: None
    tables = WORK[spec.kind](spec, comm, data, device, report)
    if comm.rank == 0:
        write_run(folder, spec, tables)
    comm.close()


def _die_with(launcher: int) -> None:
    """Leave when the launcher is gone: a killed workflow must not leave workers behind."""

    def watch() -> None:
        while Path(f"/proc/{launcher}").exists():
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
