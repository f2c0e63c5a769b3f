"""One process of one run, whatever its role; the launcher starts them: python -m dlgs_bench.training.run <folder>.

Reads ``spec.json`` and ``launch_settings.json`` in the folder; rank 0 leaves the results there.
"""

import importlib
import sys
from pathlib import Path

import torch

from dlgs_bench import comm as engines
from dlgs_bench import data as datasets
from dlgs_bench.fingerprint import KINDS
from dlgs_bench.launch.liveness import Progress, as_rank
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.training.results import write_run

# Kinds that make checkpoints or have a budget of seconds.
PLACED = ("accuracy", "timing", "planners", "layers", "exchanges")


def main(folder: Path) -> None:
    spec = RunSpec.from_json((folder / "spec.json").read_text(encoding="utf-8"))
    settings = LaunchSettings.from_json((folder / "launch_settings.json").read_text(encoding="utf-8"))
    training, cluster = spec.training, spec.cluster
    torch.set_num_threads(cluster.threads)
    # What cuDNN takes otherwise may add in another order each time; an accuracy run repeats its bits.
    torch.backends.cudnn.deterministic = spec.kind == "accuracy"
    device = torch.device(cluster.device)
    comm = engines.connect(cluster.engine, device, shared=settings.per_gpu > 1)
    if comm.world_size != spec.processes:
        raise RuntimeError(f"{comm.world_size} processes joined, the run asks for {spec.processes}")
    data = datasets.load(training.data)(Path(settings.data[training.data]), device) if spec.trains else None
    work = getattr(importlib.import_module(f"dlgs_bench.training.{KINDS[spec.kind]}"), spec.kind)
    where = {"settings": settings} if spec.kind in PLACED else {}
    found = work(spec, comm, data, device, Progress(folder, comm.rank), **where)
    if comm.rank == 0:
        write_run(folder, spec, found, data)
    comm.close()


if __name__ == "__main__":
    as_rank(Path(sys.argv[1]), main)
