"""Hooks: the project installed, and a script in another folder that trains with every method on either engine.

What the script does is in hook_script.py. Its aggregates must have the bits of our own loop, Session, on local threads.
"""

import json
import os
import re
import shutil
import subprocess
import sysconfig
import venv
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import CLASSES, CPU, METHODS, PATIENCE_S, ROOT
from equal_worker import Noise
from hook_script import LR, STEPS, STOP, Given, batch, built, flat, given
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from harness import plugins
from harness.comm.local import run_workers
from harness.engines import ENGINES
from harness.exchange import At, LocalSteps
from harness.hooks.ddp import DDPHook, _ends
from harness.spec import Cluster, RunSpec, Scheme, Training
from harness.training.session import Session, make_method

EXCHANGED = [name for name in METHODS if not issubclass(CLASSES[name], LocalSteps)]  # a hook exchanges gradients
OPTIONS = {name: {"ratio": 0.1} if "ratio" in plugins.fields(name) else {} for name in EXCHANGED}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The Python of a new environment with the project in it; torch and the others are this environment's."""
    folder = tmp_path_factory.mktemp("installed")
    for name in ("harness", "methods"):
        shutil.copytree(ROOT / name, folder / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "project")
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    others = sysconfig.get_path("purelib")
    (site / "others.pth").write_text(others)
    before = {path.name for path in site.iterdir()}
    python = folder / "venv" / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "."]
    # The new environment has a setuptools of its own, Python's, which is too old.
    settings = {"env": os.environ | {"PYTHONPATH": others}, "cwd": folder / "project", "timeout": PATIENCE_S}
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    new = {path.name for path in site.iterdir()} - before
    assert {name for name in new if not name.endswith(".dist-info")} == {"harness"}
    return python


@pytest.fixture(scope="module", params=ENGINES)
def ranks(request, installed, tmp_path_factory, environment) -> tuple[str, list[dict]]:
    """The engine, and by rank what the script saved."""
    engine, folder = ENGINES[request.param], tmp_path_factory.mktemp("elsewhere")
    shutil.copy(ROOT / "tests" / "hook_script.py", folder)
    program = [str(installed), "hook_script.py", engine.name, "found", json.dumps(OPTIONS)]
    done = subprocess.run(
        engine.command(2, program), env=environment | engine.environment(threads=1),
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return engine.name, [torch.load(folder / f"found.{rank}", weights_only=True) for rank in range(2)]


class PlainSGD:
    """In the place of a session's optimizer: torch.optim.SGD's arithmetic, and a note of every aggregate."""

    def __init__(self, parameters: torch.Tensor):
        self.parameters, self.lr, self.aggregates = parameters, LR, []

    def step(self, gradients: torch.Tensor) -> None:
        self.aggregates.append(gradients.clone())
        self.parameters.add_(gradients, alpha=-self.lr)


@pytest.fixture(scope="module")
def ours(ranks) -> dict[str, list[torch.Tensor]]:
    """By method, the aggregates of our own loop over the same buckets."""
    load = plugins.load
    model = type("Model", (), {"build": staticmethod(built), "loss": staticmethod(F.cross_entropy)})

    def work(comm, method: str) -> list[torch.Tensor]:
        training, cluster = Training("net", lr=LR, momentum=0.0), Cluster(workers=comm.world_size)
        spec = RunSpec("accuracy", training, Scheme(method=method), cluster)
        session = Session(spec, comm, Noise(), CPU)
        session.optimizer = PlainSGD(session.flat.parameters)
        ends = [0, *accumulate(ranks[1][0][method][2])]
        groups = [(session.flat.starts.index(a), session.flat.starts.index(b)) for a, b in pairwise(ends)]
        exchange = session.prepare(method, make_method(method, OPTIONS[method]), groups)
        for number in range(1, STEPS + 1):
            session.step(exchange, number)
        return session.optimizer.aggregates

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "load", lambda kind, name: model if kind == "models" else load(kind, name))
        return {method: run_workers(2, lambda comm, m=method: work(comm, m))[0] for method in EXCHANGED}


@pytest.mark.engine
@pytest.mark.parametrize("method", EXCHANGED)
def test_a_script_elsewhere_gets_the_bits_of_our_own_loop(ranks, ours, method):
    for found in ranks[1]:
        whole, _, _ = found[method]
        assert len(whole) == STEPS and all(map(torch.equal, whole, ours[method]))


@pytest.mark.engine
@pytest.mark.parametrize("method", EXCHANGED)
def test_a_script_that_is_saved_and_loaded_goes_on_as_if_never_stopped(ranks, method):
    for found in ranks[1]:
        whole, resumed, _ = found[method]
        assert len(resumed) == STEPS - STOP and all(map(torch.equal, whole[STOP:], resumed))


@pytest.mark.engine
def test_the_script_imports_what_was_installed_and_horovod_only_to_use_it(ranks, installed):
    engine, (found, _) = ranks
    assert Path(found["harness"]).is_relative_to(installed.parent.parent)
    assert found["horovod"] == (engine == "horovod")


@pytest.mark.unit
@drawn(
    st.lists(st.integers(1, 2**19), min_size=1, max_size=30), st.integers(2**10, 2**22), st.booleans(),
)  # fmt: skip
def test_ddp_will_end_its_buckets_where_the_hook_expects_it(entries, cap, default):
    """By torch's own function, given gradients that arrive in our order."""
    model = SimpleNamespace(bucket_bytes_cap=cap, bucket_bytes_cap_default=default)
    tensors = [torch.empty(n, device="meta") for n in entries]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, cap] if default else [cap]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    assert [0, *_ends([4 * n for n in entries], model)] == [bucket[0] for bucket in buckets]


@pytest.mark.engine
def test_powersgd_is_that_of_torchs_own_hook(ranks):
    engine, everyone = ranks
    for found in everyone if engine == "torch_dist" else []:
        for theirs, mine in found["power"].values():
            assert len(theirs) == len(mine) == STEPS
            for a, b in zip(theirs, mine, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.engine
def test_what_backward_says_in_ddps_group_is_not_mixed_up_with_exchanges(ranks):
    """With fixed parameters, against the mean of what each process finds alone."""
    engine, everyone = ranks
    if engine != "torch_dist":
        return
    for step in range(STEPS):
        alone = []
        for rank in range(2):
            net, (images, labels) = built(), batch(step, rank)
            F.cross_entropy(net(images), labels).backward()
            alone.append(flat(net) / 2)
        for found in everyone:
            assert torch.equal(found["spoken between"][step], sum(alone))


@pytest.mark.engine
def test_on_horovod_what_would_go_wrong_is_one_line(ranks):
    engine, everyone = ranks
    for found in everyone if engine == "horovod" else []:
        closure, twice, wrapped = found["said"]
        assert "closure" in closure and "second backward pass" in twice and "give the one it wraps" in wrapped


@pytest.fixture(scope="module")
def alone():
    """A world of one process, this one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def attached(method: str, optimizer: str = "SGD", settings: dict | None = None, net=None, **options) -> tuple:
    model = DistributedDataParallel(net or Given())
    steps = getattr(torch.optim, optimizer)(model.parameters(), **{"lr": LR} | (settings or {}))
    return model, DDPHook(model, steps, method, **options)


MISTAKES = {
    "no method 'topkk' (did you mean 'topk'?); known: ": {"method": "topkk"},
    "topk: 'ratio' is missing; give a value of type float": {"method": "topk"},
    "ratio: 1.5 is not valid; give a number in (0, 1]": {"method": "topk", "ratio": 1.5},
    "dlgs: unknown key 'refresh_evry' (did you mean 'refresh_every'?); known: ": {
        "method": "dlgs", "ratio": 0.1, "refresh_evry": 8,
    },
    "dlgs.refresh_every: 0 is not valid; give a value >= 1": {"method": "dlgs", "ratio": 0.1, "refresh_every": 0},
    "dgc applies momentum itself, and the optimizer has momentum=0.9: give one without": {
        "method": "dgc", "ratio": 0.1, "settings": {"momentum": 0.9},
    },
    "demo applies momentum itself, and the optimizer has betas=(0.9, 0.999): give one without": {
        "method": "demo", "optimizer": "Adam",
    },
    "parameters must all be float32 on one device; here are torch.float64 on cpu": {
        "method": "none", "net": torch.nn.Linear(2, 2, dtype=torch.float64),
    },
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("expected", MISTAKES)
def test_a_mistake_is_one_line(alone, expected):
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        attached(**MISTAKES[expected])
    assert "\n" not in str(error.value)


@pytest.mark.unit
def test_a_state_of_another_hook_is_refused(alone):
    state = attached("topk", ratio=0.1)[1].state_dict()
    with pytest.raises(ValueError, match=r"the state is of topk, rank 0 of 1, .*; here is lags, rank 0 of 1"):
        attached("lags", ratio=0.1)[1].load_state_dict(state)
    with pytest.raises(ValueError, match=r"buckets of \[3396\] entries; here is topk"):
        attached("topk", ratio=0.1, net=torch.nn.Linear(2, 2))[1].load_state_dict(state)


@pytest.mark.unit
def test_a_loaded_state_is_a_copy(alone):
    _, hook = attached("topk", ratio=0.1)
    hook.method.residuals[0] = torch.ones(3396)
    state, (_, other) = hook.state_dict(), attached("topk", ratio=0.1)
    other.load_state_dict(state)
    other.method.residuals[0].zero_()
    assert state["method"]["residuals"][0].all()


@pytest.mark.unit
def test_a_method_sees_the_step_and_the_optimizers_rate_in_it(alone, monkeypatch):
    model, hook = attached("none")
    optimizer, seen, exchange = hook._optimizer, [], hook.method.exchange
    monkeypatch.setattr(hook.method, "exchange", lambda bucket, at: seen.append(at) or exchange(bucket, at))
    for step, lr in enumerate((0.5, 0.25)):
        optimizer.param_groups[0]["lr"] = lr
        model(given(step, 0)).backward()
    assert seen == [At(1, 0, 1, 0.5), At(2, 0, 1, 0.25)]


@pytest.mark.unit
def test_gradients_that_accumulated_without_synchronising_are_exchanged_together(alone):
    net = built()
    plain = built()
    model, hook = attached("none", net=net)
    for step, (inputs, targets) in enumerate(batch(step, 0) for step in range(4)):
        if step % 2 == 0:
            with model.no_sync():
                F.cross_entropy(model(inputs), targets).backward()
        else:
            F.cross_entropy(model(inputs), targets).backward()
        F.cross_entropy(plain(inputs), targets).backward()
    assert hook.step == 2 and torch.equal(flat(net), flat(plain))


@pytest.mark.unit
def test_the_readme_says_how(alone, tmp_path, monkeypatch):
    """Its lines are run."""
    section = (ROOT / "README.md").read_text().split("## Use a method in your own training script")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.S)
    monkeypatch.chdir(tmp_path)
    model = DistributedDataParallel(built())
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=LR), "torch": torch, "rank": 0}
    exec(code, names)
    hook = names["hook"]
    inputs, targets = batch(0, 0)
    F.cross_entropy(model(inputs), targets).backward()
    assert hook.step == 1 and (flat(model.module) == 0).any()
    (saved,) = tmp_path.iterdir()
    assert torch.load(saved, weights_only=True)["hook"]["step"] == 0
