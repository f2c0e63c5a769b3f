"""Training on noise, for tests of sessions; as a program, a process of test_testbed (see ``main``)."""

import copy
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench import plugins
from dlgs_bench.comm import connect
from dlgs_bench.spec import Cluster, RunSpec, Scheme, Training
from dlgs_bench.training.session import Session, make_method

STEPS = 4
# Methods with parameters that change what they send: name -> (method, parameters). Tests use them like methods.
VARIANTS: dict[str, tuple[str, dict]] = {
    **{f"quantised-{code}": ("quantised", {"code": code}) for code in ("bf16", "e4m3", "e5m2")},
    "quantised-rotated": ("quantised", {"rotated": True}),
    **{f"demo-{pick}": ("demo", {"pick": pick}) for pick in ("random", "stride")},
    **{f"dlgs-{reuse}": ("dlgs", {"reuse": reuse}) for reuse in ("rms", "checked")},
    "majority-lion": ("majority", {"momentum": 0.9, "lion_beta": 0.99}),
    "diloco-streaming": ("diloco", {"fragments": 2, "delay": 1, "mixing": 0.5}),
}
TRAINING = Training("small", momentum=0.9)
CPU = torch.device("cpu")


def small_model() -> nn.Module:
    """Convolutions, BatchNorm and a fully connected layer in 11 parameters: a method by layers sends few messages."""
    widths = ((3, 16), (16, 32), (32, 64))
    blocks = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o in widths]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def perceptron() -> nn.Module:
    """Two fully connected layers. One is hidden: a matrix for Muon."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 20), nn.ReLU(), nn.Linear(20, 10))


for name, build in {"small": small_model, "perceptron": perceptron}.items():
    module = ModuleType(f"models.{name}")
    module.build, module.loss = build, F.cross_entropy
    sys.modules[module.__name__] = module  # where ``plugins.load`` finds it


class Noise:
    """Random images instead of CIFAR-10, another batch for each worker and step, the same on every device."""

    train_size = 640

    def __init__(self, device: torch.device = CPU):
        self._device = device

    def batch(self, step, shard):
        generator = torch.Generator().manual_seed(1000 * step + shard.rank)
        images, labels = torch.randn(4, 3, 32, 32, generator=generator), torch.randint(0, 10, (4,), generator=generator)
        return images.to(self._device), labels.to(self._device)


def session_of(
    comm, method: str, topology: str = "allgather", collective: str = "engine",
    training: Training = TRAINING,
) -> Session:  # fmt: skip
    """A session that has prepared the method or variant, at ratio 0.1, or with an exchange of weights after the last
    step, or with a warm-up of two steps."""
    given = {"ratio": 0.1, "local_steps": STEPS, "warmup_steps": 2}
    method, parameters = VARIANTS.get(method, (method, {}))
    options = {key: value for key, value in given.items() if key in plugins.fields(method)} | parameters
    scheme = Scheme(method=method, options=options, topology=topology, collective=collective)
    servers = RunSpec("accuracy", training, scheme).topology.servers
    spec = RunSpec("accuracy", training, scheme, Cluster(workers=comm.world_size - servers))
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


def trained(
    comm, methods: Sequence[str], topologies: Sequence[str] = ("allgather",), stops: Sequence[int] = (STEPS,),
    begun: Sequence[dict] = (),
) -> list[dict]:  # fmt: skip
    """The states of all sessions at each of ``stops``, by "<method> <topology>".

    A topology may be followed by a collective; ``begun``: by rank, the states from which sessions go on.
    """
    states: list[dict] = [{} for _ in stops]
    for method, topology in product(methods, topologies):
        session, key = session_of(comm, method, *topology.split()), f"{method} {topology}"
        if begun:
            session.load_state_dict(begun[comm.rank][key])
        for stop, found in zip(stops, states, strict=True):
            found[key] = copy.deepcopy(go_on(session, stop).state_dict())
    return states


def main(engine: str, target: str, methods: str, topologies: str) -> None:
    """Train with each of the methods (a JSON list) over each of the topologies (another), and save the states to
    <target>.<rank>."""
    torch.set_num_threads(1)
    comm = connect(engine, CPU)
    torch.save(trained(comm, json.loads(methods), json.loads(topologies))[0], f"{target}.{comm.rank}")
    comm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
