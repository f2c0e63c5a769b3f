"""What users write into ``models/mine.py`` trains as in plain PyTorch, or is one line when it is described."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from equal_worker import Noise
from support import CPU
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dlgs_bench import describe, plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Cluster, RunSpec, Scheme, Training
from dlgs_bench.training.session import Session, make_method

pytestmark = pytest.mark.unit

WORKERS, STEPS = 2, 3


class Net(nn.Module):
    """A small model for changes: a convolution and a classifier."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 8, 3, stride=4), nn.Linear(8, classes)

    def features(self, images):
        return self.convolution(images).relu().mean((2, 3))

    def forward(self, images):
        return self.head(self.features(images))


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.convolution.requires_grad_(False)


class LowRank(Net):
    """A model like LoRA: a frozen matrix, and two thin ones that are trained."""

    def __init__(self):
        super().__init__()
        self.head.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 10, bias=False)

    def forward(self, images):
        features = self.features(images)
        return self.head(features) + self.up(self.down(features))


class FrozenHalf(Frozen):
    """A model with frozen 16-bit weights, as quantised backbones have."""

    def __init__(self):
        super().__init__()
        self.convolution.half()

    def features(self, images):
        return F.conv2d(images, self.convolution.weight.float(), stride=4).mean((2, 3))


class Unused(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(8, 10)


class StochasticDepth(Net):
    """A layer that takes part in some steps. These steps differ between workers."""

    def __init__(self):
        super().__init__()
        self.block = nn.Linear(8, 8)

    def forward(self, images):
        features = self.features(images)
        if self.training and torch.rand(1).item() < 0.5:
            features = features + self.block(features)
        return self.head(features)


class Lazy(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(10))


class Item(Net):
    def __init__(self):
        super().__init__()
        self.scale = 1 / torch.ones(3).sum().item()


class Branch(Net):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs * 2 if images.abs().sum() > 1 else outputs


class NumpyBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(np.full((3, 1, 1), 0.1, np.float32)))

    def features(self, images):
        return super().features(images - self.mean)


class Deep(Net):
    """Conv3d, next to a Conv2d."""

    def __init__(self):
        super().__init__()
        self.volume = nn.Conv3d(1, 4, 3, stride=4)
        self.head = nn.Linear(12, 10)

    def features(self, images):
        volume = self.volume(images[:, None]).mean((2, 3, 4))
        return torch.cat([super().features(images), volume], 1)


class SparseTable(Net):
    """An embedding whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 8, sparse=True)

    def features(self, images):
        return super().features(images) + self.table((images.sum((1, 2, 3)) > 0).long())


class Transposed(Net):
    """A dense parameter with its dimensions in another order."""

    def __init__(self):
        super().__init__()
        self.head.weight = nn.Parameter(torch.randn(8, 10).t() / 8)


TRAINS = [
    Net, Frozen, LowRank, FrozenHalf, Unused, StochasticDepth, Lazy, Item, Branch, NumpyBuffer, Deep, SparseTable,
    Transposed,
]  # fmt: skip


def file_of(net: type[nn.Module], monkeypatch) -> str:
    """The name of a model file whose ``build`` is ``net``."""
    module = ModuleType(f"models.{net.__name__.lower()}")
    vars(module).update(TITLE=net.__name__, DATA="cifar10", build=net, loss=F.cross_entropy)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return net.__name__.lower()


def train(comm, model: str) -> tuple[dict, list]:
    """The parameters after some steps with the mean gradient, and the names of those that are trained."""
    spec = RunSpec("accuracy", Training(model, momentum=0.9, weight_decay=0.01), Scheme(), Cluster(workers=WORKERS))
    session = Session(spec, comm, Noise(), CPU)
    exchange = session.prepare("none", make_method("none", {}))
    for step in range(STEPS):
        session.step(exchange, step + 1)
    return {name: p.detach().clone() for name, p in session.flat.model.named_parameters()}, session.flat.names


def expected(net: nn.Module) -> dict:
    """The same in plain PyTorch, one process with both workers' batches; gradients that are missing count as zeros."""
    spec = Training("any", momentum=0.9, weight_decay=0.01)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, spec.lr, spec.momentum, weight_decay=spec.weight_decay)
    noise = Noise()
    for step in range(STEPS):
        total = [torch.zeros_like(p) for p in trained]
        for rank in range(WORKERS):
            images, labels = noise.batch(step, SimpleNamespace(rank=rank))
            net.zero_grad()
            (F.cross_entropy(net(images), labels) / WORKERS).backward()
            for one, p in zip(total, trained, strict=True):
                if p.grad is not None:
                    one += p.grad.to_dense() if p.grad.is_sparse else p.grad
        for one, p in zip(total, trained, strict=True):
            p.grad = one
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


STEADY = [net for net in TRAINS if net is not StochasticDepth]


@pytest.mark.parametrize("net", STEADY, ids=lambda net: net.__name__)
def test_a_users_model_trains_as_in_plain_pytorch(net, monkeypatch):
    results = run_workers(WORKERS, lambda comm: train(comm, file_of(net, monkeypatch)))
    torch.manual_seed(Training("any").seed)
    plain = net()
    if net is Lazy:
        plain.eval()(torch.zeros(1, 3, 32, 32))
        plain.train()
    right = expected(plain)
    for found, names in results:
        assert found.keys() == right.keys()
        assert names == [name for name, p in plain.named_parameters() if p.requires_grad][::-1]
        for name, values in found.items():
            torch.testing.assert_close(values, right[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", TRAINS, ids=lambda net: net.__name__)
def test_a_users_model_is_described_as_it_trains(net, monkeypatch):
    """The description counts layers, bytes and plans of trained parameters only."""
    found = describe.model(file_of(net, monkeypatch))
    plain = net()
    plain.eval()(torch.zeros(1, 3, 32, 32))
    trained = [p.numel() for p in plain.parameters() if p.requires_grad]
    assert (found["layers"], found["parameters"]) == (trained[::-1], sum(trained))
    assert found["takes"] == ["cifar10"] and found["multiply_adds"] > 0


def test_layers_that_only_one_worker_uses_in_a_step_keep_all_workers_equal(monkeypatch):
    """Stochastic depth draws separately on each worker."""
    model = file_of(StochasticDepth, monkeypatch)

    def work(comm):
        spec = RunSpec("accuracy", Training(model), Scheme(), Cluster(workers=WORKERS))
        session = Session(spec, comm, Noise(), CPU)
        exchange = session.prepare("topk", make_method("topk", {"ratio": 0.1}))
        block = dict(session.flat.model.named_parameters())["block.weight"]
        before, moved = block.detach().clone(), []
        for step in range(12):
            session.step(exchange, step + 1)
            moved.append(not torch.equal(block, before))
        return session.flat.checksum(), moved

    (one, moved), (other, _) = run_workers(WORKERS, work)
    assert one == other and moved[-1]


class Part(Net):
    """A BatchNorm that its author keeps in evaluation mode while training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3).eval()

    def features(self, images):
        return super().features(self.norm(images))


def test_a_layer_that_its_author_keeps_in_evaluation_mode_stays_there(monkeypatch):
    model = file_of(Part, monkeypatch)

    class Tested(Noise):
        def test(self, batch, shard, limit):
            yield self.batch(0, shard)

    def work(comm):
        spec = RunSpec("accuracy", Training(model), Scheme(), Cluster(workers=WORKERS))
        session = Session(spec, comm, Tested(), CPU)
        exchange = session.prepare("none", make_method("none", {}))
        for step in range(2):
            session.step(exchange, step + 1)
            session.evaluate(8)
        return session.flat.model.norm, session.flat.model.training

    for norm, training in run_workers(WORKERS, work):
        assert training and not norm.training and not norm.num_batches_tracked


Outputs = namedtuple("Outputs", "logits aux")


def returning(what):
    """A model that returns its scores so in training, and as one tensor in evaluation."""

    class Returns(Net):
        def forward(self, images):
            outputs = super().forward(images)
            return what(outputs) if self.training else outputs

    return Returns


def with_parameter(make, **options):
    class Own(Net):
        def __init__(self):
            super().__init__()
            self.own = nn.Parameter(make(), **options)

    return Own


class Shared(Net):
    """Tied by memory, which flattening would separate."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 10)
        self.other.weight.data = self.head.weight.data


class AllFrozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Late(Net):
    def forward(self, images):
        if not hasattr(self, "late"):
            self.late = nn.Linear(10, 10)
        return self.late(super().forward(images))


class FreezesLate(Net):
    def forward(self, images):
        self.convolution.requires_grad_(False)
        return super().forward(images)


REFUSED = {
    "late": (Late, "late.bias is added or frozen in forward; do this when the model is built"),
    "freezes late": (FreezesLate, "convolution.bias is added or frozen in forward"),
    "tuple": (returning(lambda y: (y, y)), "returns a tuple in training, not one tensor"),
    "named tuple": (returning(lambda y: Outputs(y, None)), "returns a Outputs in training, not one tensor"),
    "dict": (returning(lambda y: {"out": y}), "returns a dict in training, not one tensor"),
    "list": (returning(lambda y: [y]), "returns a list in training, not one tensor"),
    "no batch": (returning(lambda y: y[0]), r"returns float32 \(10,\) for 2 sample\(s\), not scores"),
    "5 outputs": (lambda: Net(5), "has 5 outputs, but CIFAR-10 has 10 classes; give at least 10"),
    "bfloat16": (lambda: Net().bfloat16(), "convolution.weight is bfloat16, not float32; .* precision: bfloat16"),
    "float64": (lambda: Net().double(), "convolution.weight is float64, not float32"),
    "empty": (with_parameter(lambda: torch.zeros(0, 3)), r"own of shape \(0, 3\) is empty"),
    "gaps": (with_parameter(lambda: torch.zeros(4, 8)[:, ::2]), "own has gaps in its memory"),
    "repeats": (with_parameter(lambda: torch.zeros(4, 1).expand(4, 3)), "own has gaps in its memory or repeats"),
    "on meta": (
        with_parameter(lambda: torch.zeros(3, device="meta")),
        "own is on the meta device, so it has no values",
    ),
    "shared": (Shared, "head.weight and other.weight share memory; tie them as one nn.Parameter"),
    "all frozen": (AllFrozen, "all parameters are frozen; leave requires_grad on for some"),
    "no parameters": (lambda: nn.Flatten(), "the model has no parameters"),
    "no module": (lambda: None, "returns a NoneType, not an nn.Module"),
    "detached": (returning(lambda y: y.detach()), "loss: does not depend on any parameter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_trained_is_one_line_when_described(case, monkeypatch):
    build, said = REFUSED[case]
    file = SimpleNamespace(TITLE="Mine", DATA="cifar10", build=build, loss=F.cross_entropy)
    monkeypatch.setattr(plugins, "load", lambda kind, name: file)
    found = json.loads(describe.described("models", "mine"))
    assert found.keys() == {"error"} and "\n" not in found["error"]
    with pytest.raises(ValueError, match=said):
        describe.model("mine")


@pytest.mark.parametrize("title", [None, 3, "", "a\nb", "cost in $", "_hidden"])
def test_a_title_that_no_figure_could_show_is_one_line_when_described(title, monkeypatch):
    file = SimpleNamespace(TITLE=title, DATA="cifar10", build=Net, loss=F.cross_entropy)
    monkeypatch.setattr(plugins, "load", lambda *_: file)
    with pytest.raises(ValueError, match=f"^TITLE: {re.escape(repr(title))} is not valid; give a line of text"):
        describe.model("mine")


LOSSES = {
    "no reduction": (lambda outputs, targets: F.cross_entropy(outputs, targets), "unexpected keyword .*'reduction'"),
    "a list": (lambda outputs, targets, reduction="mean": [1.0], "loss: returns a list, not one number"),
    "each sample's": (
        lambda outputs, targets, reduction="mean": F.cross_entropy(outputs, targets, reduction="none"),
        r"loss: returns a tensor \(1,\), not one number",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_that_is_not_one_number_is_one_line_when_described(case, monkeypatch):
    loss, said = LOSSES[case]
    monkeypatch.setattr(plugins, "load", lambda *_: SimpleNamespace(TITLE="Mine", DATA="cifar10", build=Net, loss=loss))
    with pytest.raises((ValueError, TypeError), match=said):
        describe.model("mine")


# Files that do something to the process that loads them, and what is said of them.
ENDING = {
    "exits": ("import sys\nsys.exit(3)\n", r"it ends Python \(SystemExit: 3 \(line 2\)\); what runs as a program "),
    "parses": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--must', required=True)\np.parse_args()\n",
        r"it ends Python \(SystemExit: 2 \(line 4\)\)",
    ),
    "leaves": ("import os\nos._exit(0)\n", r"it ends Python \(status 0\)"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", r"it ends Python \(SIGKILL\)"),
    "broken": ("def f(:\n", "SyntaxError: "),
    "hangs": ("import time\ntime.sleep(60)\n", "it was not described after 2 s"),
}
SOUND = """
from torch import nn
from torch.nn import functional as F
TITLE, DATA, loss = "Sound", "cifar10", F.cross_entropy
def build():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 10))
"""
NOISE = "import os\nprint('noise')\nos.write(1, b'noise')\nimport torch\ntorch.set_default_dtype(torch.float64)\n"


def test_a_file_that_ends_python_is_named_and_touches_no_other(tmp_path, monkeypatch):
    def load(kind: str, name: str) -> ModuleType:
        found = spec_from_file_location(f"models.{name}", tmp_path / "models" / f"{name}.py")
        module = module_from_spec(found)
        found.loader.exec_module(module)
        return module

    monkeypatch.setattr(plugins, "load", load)
    (tmp_path / "models").mkdir()
    sources = {name: source for name, (source, _) in ENDING.items()} | {"noisy": NOISE + SOUND, "sound": SOUND}
    described = {}
    for name, source in sources.items():
        (tmp_path / "models" / f"{name}.py").write_text(source, encoding="utf-8")
        described[name] = describe.in_fork("models", name, 2.0 if name == "hangs" else 120.0)
    for name, (_, said) in ENDING.items():
        assert described[name].keys() == {"error"} and len(described[name]["error"].splitlines()) == 1
        assert re.search(said, described[name]["error"]), described[name]
    assert described["sound"]["parameters"] == 130
    assert "is float64, not float32" in described["noisy"]["error"]


def test_plug_ins_are_described_at_the_same_time_and_end_by_themselves(monkeypatch):
    """A fast fork, started while a slow one runs, does not wait for it, nor the other way round."""
    monkeypatch.setattr(describe, "described", lambda kind, name: time.sleep({"slow": 1.5, "fast": 0.1}[name]) or "{}")
    ended = {}
    with ThreadPoolExecutor(2) as pool:
        begun = time.monotonic()

        def timed(name: str) -> None:
            assert describe.in_fork("models", name) == {}
            ended[name] = time.monotonic() - begun

        list(pool.map(timed, ("slow", "fast")))
    assert ended["fast"] < ended["slow"] and not describe.FORKS


def test_an_interrupt_ends_forks_that_ignore_it(monkeypatch):
    def described(kind: str, name: str) -> str:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(600)

    monkeypatch.setattr(describe, "described", described)
    monkeypatch.setattr(describe, "import_shared", lambda kinds: None)
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        describe.main(["models/one", "models/two", "models/three", "models/four"])
    assert time.monotonic() - begun < 60 and not describe.FORKS


def test_somebody_reads_what_takes_long_to_describe(capfd, monkeypatch):
    monkeypatch.setattr(describe, "NOTICE_S", 0.2)
    monkeypatch.setattr(describe, "described", lambda kind, name: time.sleep(0.6) or "{}")
    assert describe.in_fork("models", "slow", 30.0) == {}
    assert capfd.readouterr().err == "still describing models/slow.py, at most 30 s\n"


def test_two_uses_of_a_gradient_in_one_backward_are_one_line(monkeypatch):
    """Reentrant checkpoints give a shared layer's gradient in parts, of which the last would replace the others."""

    class Reentrant(Net):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(8, 8)

        def forward(self, images):
            features = self.features(images)
            for _ in range(2):
                features = checkpoint(self.block, features, use_reentrant=True)
            return self.head(features)

    model = file_of(Reentrant, monkeypatch)
    with pytest.raises(Exception, match=r"gradient of block\.(bias|weight) in several parts"):
        run_workers(1, lambda comm: train(comm, model))
