"""One process of one run, whatever its role; the launcher starts them: python -m harness.training.run <folder>.

Reads ``spec.json`` and ``place.json`` in the folder; rank 0 leaves the results there.
"""

import importlib
import sys
from pathlib import Path

import torch

from harness import comm as engines
from harness import data as datasets
from harness.code import KINDS
from harness.launch.liveness import Progress, as_rank
from harness.spec import Place, RunSpec
from harness.training.results import write_run

PLACED = ("accuracy", "timing", "planners", "layers")  # kinds that make checkpoints or have a budget of seconds


def main(folder: Path) -> None:
    spec = RunSpec.from_json((folder / "spec.json").read_text())
    place = Place.from_json((folder / "place.json").read_text())
    training, cluster = spec.training, spec.cluster
    torch.set_num_threads(cluster.threads)
    # What cuDNN takes otherwise may add in another order each time; an accuracy run repeats its bits.
    torch.backends.cudnn.deterministic = spec.kind == "accuracy"
    device = torch.device(cluster.device)
    comm = engines.connect(cluster.engine, device, shared=place.per_gpu > 1)
    if comm.world_size != spec.processes:
        raise RuntimeError(f"{comm.world_size} processes joined, the run asks for {spec.processes}")
    data = datasets.load(training.data)(Path(place.data[training.data]), device) if spec.trains else None
    work = getattr(importlib.import_module(f"harness.training.{KINDS[spec.kind]}"), spec.kind)
    where = {"place": place} if spec.kind in PLACED else {}
    found = work(spec, comm, data, device, Progress(folder, comm.rank), **where)
    if comm.rank == 0:
        write_run(folder, spec, found, data)
    comm.close()


if __name__ == "__main__":
    as_rank(Path(sys.argv[1]), main)
