"""A process for test_engines and test_session: trains on noise and saves what it has; see ``main`` for arguments."""

import copy
import json
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import comm as engines
from harness import plugins
from harness.spec import Cluster, RunSpec, Scheme, Training
from harness.training.session import Session, make_method

STEPS = 4
CPU = torch.device("cpu")


def small_model() -> nn.Module:
    """Convolutions, BatchNorm and a fully connected layer in 11 parameters: a method by layers sends few messages."""
    widths = ((3, 16), (16, 32), (32, 64))
    blocks = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o in widths]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


SMALL = ModuleType("models.small")
SMALL.build, SMALL.loss = small_model, F.cross_entropy
sys.modules[SMALL.__name__] = SMALL  # where ``plugins.load`` finds it


class Noise:
    """Random images in place of CIFAR-10, another batch for each worker and step, the same on every device."""

    def __init__(self, device: torch.device = CPU):
        self._device = device

    def batch(self, step, shard):
        generator = torch.Generator().manual_seed(1000 * step + shard.rank)
        images, labels = torch.randn(4, 3, 32, 32, generator=generator), torch.randint(0, 10, (4,), generator=generator)
        return images.to(self._device), labels.to(self._device)


def session_of(comm, method: str, topology: str = "allgather", collective: str = "engine") -> Session:
    """A session that has prepared the method, at ratio 0.1, or with an exchange of weights after the last step."""
    given = {"ratio": 0.1, "local_steps": STEPS}
    options = {key: value for key, value in given.items() if key in plugins.fields(method)}
    scheme = Scheme(method=method, options=options, topology=topology, collective=collective)
    spec = RunSpec("accuracy", Training("small", momentum=0.9), scheme)
    spec = RunSpec("accuracy", spec.training, scheme, Cluster(workers=comm.world_size - spec.topology.servers))
    session = Session(spec, comm, Noise(), CPU)
    session.prepare(method, make_method(method, options))
    return session


def go_on(session: Session, until: int) -> Session:
    """The session after step ``until``."""
    (exchange,) = session.exchanges.values()
    while session.done < until:
        session.step(exchange, session.done + 1)
        session.done += 1
    return session


def parameters_after(comm, method: str, topology: str = "allgather", steps: int = STEPS) -> torch.Tensor:
    return go_on(session_of(comm, method, topology), steps).flat.parameters


def main(engine: str, target: str, methods: str, topologies: str, stops: str, resume: str = "") -> None:
    """Train, from the states in the file ``resume`` if given, and save all states at each of ``stops``.

    They go to <target>-<step>.<rank>, by "<method> <topology>"; a topology may be followed by a collective.
    """
    torch.set_num_threads(1)
    comm = engines.connect(engine, CPU)
    found = {stop: {} for stop in json.loads(stops)}
    begun = torch.load(f"{resume}.{comm.rank}", weights_only=True) if resume else {}
    for method in json.loads(methods):
        for topology in json.loads(topologies):
            session, key = session_of(comm, method, *topology.split()), f"{method} {topology}"
            if resume:
                session.load_state_dict(begun[key])
            for stop in found:
                found[stop][key] = copy.deepcopy(go_on(session, stop).state_dict())
    for stop, states in found.items():
        torch.save(states, f"{target}-{stop}.{comm.rank}")
    comm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
