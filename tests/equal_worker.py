"""A worker for test_engines: trains 20 steps and saves its parameters; argument: the target file."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import comm as engines
from harness.spec import RunSpec
from harness.train import Trainer, make_method

SIZE, STEPS = 64, 20


class Noise:
    """Random images in place of CIFAR-10; each worker draws its own."""

    def __init__(self, rank: int):
        self._generator = torch.Generator().manual_seed(rank)

    def __iter__(self):
        while True:
            images = torch.randn(4, 3, 32, 32, generator=self._generator)
            yield images, torch.randint(0, 10, (4,), generator=self._generator)


def parameters_after(comm, method: str) -> torch.Tensor:
    spec = RunSpec(kind="accuracy", model="resnet20", method=method, ratio=None if method == "none" else 0.1)
    trainer = Trainer(spec, comm, None, torch.device("cpu"))
    exchange = trainer.prepare(make_method(spec.method, spec.ratio, {}))
    stream = iter(Noise(comm.rank))
    for step in range(1, STEPS + 1):
        trainer.step(exchange, step, stream)
    return trainer.flat.parameters


if __name__ == "__main__":
    torch.set_num_threads(1)
    engine, target, methods = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    comm = engines.connect(engine, torch.device("cpu"))
    found = {method: parameters_after(comm, method) for method in methods}
    torch.save(found, f"{target}.{comm.rank}")
    comm.close()
