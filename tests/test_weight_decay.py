"""Weight decay under methods with momentum of their own acts as strongly as in SGD with momentum."""

import sys
from functools import cache
from types import ModuleType

import pytest
import torch
from equal_worker import Noise
from support import CLASSES, CPU, METHODS
from torch import nn
from torch.nn import functional as F

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Momentum
from dlgs_bench.spec import Cluster, RunSpec, Scheme, Training
from dlgs_bench.topology import ALL_GATHER
from dlgs_bench.training.session import Session, make_method

STEPS = 100
CONVEX = ModuleType("models.convex")  # rounding errors do not grow in a convex problem
CONVEX.build = CONVEX_LAYERS = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))
CONVEX.loss = F.cross_entropy
OPTIONS = {"none": {}, "dgc": {"ratio": 1.0, "masking": False}}  # DGC then sends its whole velocity


@pytest.fixture
def convex(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, CONVEX.__name__, CONVEX)


@cache
def weights(method: str, decay: float, topology: str = ALL_GATHER.name) -> torch.Tensor:
    """The weights after ``STEPS`` steps of the project's own loop on two workers. Tests only read them."""
    options = OPTIONS[method]

    def work(comm) -> torch.Tensor:
        training = Training("convex", batch=8, lr=0.05, momentum=0.9, weight_decay=decay)
        scheme = Scheme(method=method, options=options, topology=topology)
        session = Session(RunSpec("accuracy", training, scheme, Cluster(workers=2)), comm, Noise(), CPU)
        exchange = session.prepare(method, make_method(method, options))
        for number in range(1, STEPS + 1):
            session.step(exchange, number)
        return session.flat.parameters

    ranks = run_workers(3 if topology != ALL_GATHER.name else 2, work)
    assert all(torch.equal(ranks[0], other) for other in ranks[:2])
    return ranks[0]


class Unused(nn.Sequential):
    """The convex model, and a layer that no pass uses. Its 20 parameters come first in backward's order."""

    def __init__(self) -> None:
        super().__init__(CONVEX_LAYERS(), nn.Linear(3, 5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self[0](images)


@pytest.mark.unit
def test_layers_that_a_step_does_not_use_decay_as_in_sgd(convex, monkeypatch):
    monkeypatch.setattr(CONVEX, "build", Unused)
    found = {method: weights.__wrapped__(method, 0.1)[:20] for method in OPTIONS}
    torch.testing.assert_close(found["dgc"], found["none"], rtol=1e-4, atol=1e-5)
    assert found["none"].norm() < 0.9 * weights.__wrapped__("none", 0.0)[:20].norm()


@pytest.mark.unit
@pytest.mark.parametrize("topology", [ALL_GATHER.name, "ps-sparse", "ps-weights"])
def test_the_decay_of_our_own_loop_is_that_of_sgd_with_momentum(convex, topology):
    expected, dgc = weights("none", 0.1), weights("dgc", 0.1, topology)
    torch.testing.assert_close(dgc, expected, rtol=1e-4, atol=1e-5)
    without = weights("dgc", 0.0)
    assert without.norm() > 1.1 * expected.norm()  # so the test sees how strongly decay acts


@pytest.mark.unit
def test_decay_joins_the_gradient_of_every_method_with_sgds_momentum_and_of_no_other():
    for name in METHODS:
        joins = issubclass(CLASSES[name], Momentum)
        assert CLASSES[name].decay_joins_gradient == joins, name
