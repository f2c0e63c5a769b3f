"""The entry point of a rank. The launcher starts it: python -m dlgs_bench.training.run <folder>.

It reads ``spec.json`` and ``launch_settings.json`` in the folder. Rank 0 writes the results into the folder.
"""

import importlib
import sys
from pathlib import Path

import torch

from dlgs_bench import data as datasets
from dlgs_bench.comm import connect
from dlgs_bench.fingerprint import commit
from dlgs_bench.launch.liveness import Progress, run_as_rank
from dlgs_bench.spec import MODULES, LaunchSettings, RunSpec
from dlgs_bench.training.results import write_run

# Kinds of runs that make checkpoints or have a time budget.
NEED_SETTINGS = ("accuracy", "timing", "planners", "layers", "exchanges")


def main(folder: Path) -> None:
    """Make the run in the folder as one of its ranks."""
    spec = RunSpec.from_json((folder / "spec.json").read_text(encoding="utf-8"))
    settings = LaunchSettings.from_json((folder / "launch_settings.json").read_text(encoding="utf-8"))
    training, cluster = spec.training, spec.cluster
    torch.set_num_threads(cluster.threads)
    # Other algorithms of cuDNN may add in a different order each time, and an accuracy run must repeat its bits.
    torch.backends.cudnn.deterministic = spec.kind == "accuracy"
    device = torch.device(cluster.device)
    comm = connect(cluster.engine, device, shared=settings.per_gpu > 1)
    if comm.world_size != spec.processes:
        raise RuntimeError(f"{comm.world_size} processes joined, but the run needs {spec.processes}")
    begun_at = commit() if comm.rank == 0 else ""  # the files may change while the run goes on
    data = datasets.load(training.data)(Path(settings.data_root), device) if spec.trains else None
    work = getattr(importlib.import_module(f"dlgs_bench.training.{MODULES[spec.kind]}"), spec.kind)
    more = {"settings": settings} if spec.kind in NEED_SETTINGS else {}
    tables = work(spec, comm, data, device, Progress(folder, comm.rank), **more)
    if comm.rank == 0:
        write_run(folder, spec, tables, data, begun_at)
    comm.close()


if __name__ == "__main__":
    run_as_rank(Path(sys.argv[1]), main)
