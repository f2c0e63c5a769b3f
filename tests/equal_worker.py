"""A process for test_engines: trains and saves its parameters; arguments: the engine, the target file,
the methods, the topologies and the steps."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import comm as engines
from harness.spec import RunSpec
from harness.training.train import join, make_method

STEPS = 20


class Noise:
    """Random images in place of CIFAR-10; each worker draws its own."""

    def __init__(self, rank: int):
        self._generator = torch.Generator().manual_seed(rank)

    def __iter__(self):
        while True:
            images = torch.randn(4, 3, 32, 32, generator=self._generator)
            yield images, torch.randint(0, 10, (4,), generator=self._generator)


def parameters_after(comm, method: str, topology: str = "allgather", steps: int = STEPS) -> torch.Tensor:
    spec = RunSpec(kind="accuracy", model="resnet20", method=method, ratio=None if method == "none" else 0.1,
                   topology=topology, workers=comm.world_size - (topology != "allgather"))  # fmt: skip
    trainer = join(spec, comm, None, torch.device("cpu"))
    exchange = trainer.prepare(make_method(spec.method, spec.ratio, {}))
    stream = iter(Noise(comm.rank))
    for step in range(1, steps + 1):
        trainer.step(exchange, step, stream)
    return trainer.flat.parameters


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine, target = sys.argv[1:3]
    methods, topologies = (words.split(",") for words in sys.argv[3:5])
    comm = engines.connect(engine, torch.device("cpu"))
    found = {f"{m} {t}": parameters_after(comm, m, t, int(sys.argv[5])) for m in methods for t in topologies}
    torch.save(found, f"{target}.{comm.rank}")
    comm.close()
