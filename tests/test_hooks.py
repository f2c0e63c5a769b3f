"""Hooks: somebody's training script on either engine, in this project and where it is installed.

What the script does is in hook_script.py. Its aggregates must have the bits of our own loop, Session, on local threads.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from equal_worker import Noise
from hook_script import LR, STEPS, STOP, Branches, Given, batch, built, flat, given, in_world, inputs_of
from support import CLASSES, CPU, HOOKED, NEEDS, PATIENCE_S, ROOT, VARIANTS, documented, every_engine, options_of
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench import cli, plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.engines import ENGINES
from dlgs_bench.exchange import StepContext
from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.spec import Cluster, RunSpec, Scheme, Training
from dlgs_bench.training.session import Session, make_method

FEW = ("none", "topk", "dlgs", "powersgd")
OPTIONS = {name: options_of(name) for name in HOOKED}


STALE = ("dlgs_bench/methods/deleted.py", "dlgs_bench/renamed.py", "dlgs_bench/moved/__init__.py")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The Python of a new environment with the project in it; torch and the others are this environment's."""
    folder = tmp_path_factory.mktemp("installed")
    for name in ("dlgs_bench", "methods"):
        shutil.copytree(ROOT / name, folder / "project" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "project" / "setup").mkdir()
    for stale in STALE:  # an earlier build had it
        (folder / "project" / "build" / "lib" / stale).parent.mkdir(parents=True, exist_ok=True)
        (folder / "project" / "build" / "lib" / stale).touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", "setup/wheel.py"):
        shutil.copy(ROOT / name, folder / "project" / name)
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
    assert {name for name in new if not name.endswith(".dist-info")} == {"dlgs_bench"}
    return python


WORLDS = {name: pytest.param(name, marks=[pytest.mark.engine, *NEEDS[name]]) for name in ENGINES}


@pytest.fixture(scope="module")
def observed(worlds) -> Callable[[str], list[dict]]:
    """What the script observes on an engine in a few methods, one for each kind of bucket and state."""
    methods = {name: OPTIONS[name] for name in FEW}
    return cache(lambda engine: worlds(engine).run(in_world, engine, methods))


@pytest.fixture(params=WORLDS.values())
def ranks(request, observed) -> list[dict]:
    """What each rank observed."""
    return observed(request.param)


def on(engine: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ranks", [WORLDS[engine]], indirect=True)


class PlainSGD:
    """Replaces a session's optimizer: torch.optim.SGD's arithmetic, and a note of every aggregate."""

    def __init__(self, parameters: torch.Tensor):
        self.parameters, self.lr, self.aggregates = parameters, LR, []

    def step(self, gradients: torch.Tensor) -> None:
        self.aggregates.append(gradients.clone())
        self.parameters.add_(gradients, alpha=-self.lr)


def of_our_own_loop(method: str, options: dict, buckets: list[int]) -> list[torch.Tensor]:
    """The aggregates of a session over the same buckets, on local threads."""
    load = plugins.load
    model = type("Model", (), {"build": staticmethod(built), "loss": staticmethod(F.cross_entropy)})

    def work(comm) -> list[torch.Tensor]:
        training, cluster = Training("net", lr=LR, momentum=0.0, weight_decay=0.0), Cluster(workers=comm.world_size)
        spec = RunSpec("accuracy", training, Scheme(method=method), cluster)
        session = Session(spec, comm, Noise(), CPU)
        session.optimizer = PlainSGD(session.flat.parameters)
        ends = [0, *accumulate(buckets)]
        groups = [(session.flat.starts.index(a), session.flat.starts.index(b)) for a, b in pairwise(ends)]
        exchange = session.prepare(method, make_method(method, options), groups)
        for number in range(1, STEPS + 1):
            session.step(exchange, number)
        return session.optimizer.aggregates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "load", lambda kind, name: model if kind == "models" else load(kind, name))
        return run_workers(2, work)[0]


def has_the_bits_of_our_own_loop(ranks: list[dict], methods: Mapping[str, dict]) -> None:
    """Whether every rank has them with each method; and, saved and loaded half-way, goes on as if never stopped."""
    for method, options in methods.items():
        ours = of_our_own_loop(method, options, ranks[0][method][2])
        for found in ranks:
            whole, resumed, _ = found[method]
            assert len(whole) == STEPS and all(map(torch.equal, whole, ours)), method
            assert len(resumed) == STEPS - STOP and all(map(torch.equal, whole[STOP:], resumed)), method


def test_a_script_gets_the_bits_of_our_own_loop_stopped_or_not(ranks):
    has_the_bits_of_our_own_loop(ranks, {name: OPTIONS[name] for name in FEW})


@pytest.mark.engine
def test_variants_give_the_bits_of_our_own_loop(worlds):
    """Parameters that change what a method sends. The ranks get each method once per call."""
    left = {name: variant for name, variant in VARIANTS.items() if variant[0] in OPTIONS}
    while left:
        one_each = {method: name for name, (method, _) in left.items()}
        methods = {method: OPTIONS[method] | left.pop(name)[1] for method, name in one_each.items()}
        has_the_bits_of_our_own_loop(worlds("torch_dist").run(in_world, "torch_dist", methods), methods)


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_every_method_gives_the_bits_of_our_own_loop(engine, worlds):
    others = {name: options for name, options in OPTIONS.items() if name not in FEW}
    has_the_bits_of_our_own_loop(worlds(engine).run(in_world, engine, others, timeout_s=600), others)


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_a_script_elsewhere_uses_what_was_installed_and_imports_horovod_only_to_use_it(
    engine, installed, environment, tmp_path
):
    shutil.copy(ROOT / "tests" / "hook_script.py", tmp_path)
    methods = {name: OPTIONS[name] for name in FEW}
    program = ["env", "-C", str(tmp_path), str(installed), "hook_script.py", engine, "found", json.dumps(methods)]
    done = subprocess.run(
        ENGINES[engine].command(2, program), env=environment | ENGINES[engine].environment(threads=1),
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ranks = [torch.load(tmp_path / f"found.{rank}", weights_only=True) for rank in range(2)]
    has_the_bits_of_our_own_loop(ranks, methods)
    assert Path(ranks[0]["dlgs_bench"]).is_relative_to(installed.parent.parent)
    assert ranks[0]["horovod"] == (engine == "horovod")


@pytest.mark.unit
@pytest.mark.slow
def test_only_files_of_the_project_are_installed(installed):
    """``build`` holds files that the project no longer has."""
    (package,) = installed.parent.parent.glob("lib/python*/site-packages/dlgs_bench")
    files = {path.relative_to(package) for path in package.rglob("*.py")}
    known = {path.relative_to(ROOT) for path in (ROOT / "methods").glob("*.py")}
    known |= {path.relative_to(ROOT / "dlgs_bench") for path in (ROOT / "dlgs_bench").rglob("*.py")}
    assert {Path("methods/topk.py"), Path("hooks/ddp.py")} <= files <= known


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in ("pandas", "snakemake", "yaml", "psutil", "matplotlib", "jsonschema", "pyroute2"):
    sys.modules[name] = None
import dlgs_bench
for module in pkgutil.walk_packages(dlgs_bench.__path__, "dlgs_bench."):
    if "horovod" not in module.name:
        importlib.import_module(module.name)
"""


@pytest.mark.unit
@pytest.mark.slow
def test_every_installed_module_can_be_imported_with_the_declared_packages(installed, tmp_path):
    done = subprocess.run([installed, "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


INSTALLED_COMMANDS = {
    ("advise", str(ROOT / "tests" / "recorded_profile.json")): 0,
    ("rehearse", str(ROOT / "tests" / "recorded_profile.json")): 2,
    ("compare", ".", "."): 2,
    ("methods", "topk"): 0,
    ("check-testbed",): 2,
    ("check-set", "."): 1,
}


@pytest.mark.unit
@pytest.mark.slow
def test_every_command_works_without_the_repository_or_ends_in_one_line(installed, tmp_path):
    assert {name for name, *_ in INSTALLED_COMMANDS} == cli.COMMANDS.keys()
    for call, status in INSTALLED_COMMANDS.items():
        done = subprocess.run([installed.with_name("dlgs-bench"), *call], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert len(done.stderr.splitlines()) == (1 if status else 0)


@pytest.mark.engine
@pytest.mark.slow
def test_a_job_is_recorded_and_advised_without_the_repository(installed, tmp_path):
    shutil.copy(ROOT / "examples" / "probe_ddp.py", tmp_path / "own.py")
    launcher = [installed, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    advise = [installed.with_name("dlgs-bench"), "advise", "profile.json", "--workers", "8", "--link-gbyte-s", "6"]
    for command in ([*launcher, "own.py", "profile.json"], advise):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
    assert "8 workers, links of 48,000 Mb/s" in done.stdout


ONE_STEP = """
import os, torch, torch.distributed as dist
from dlgs_bench.hooks.ddp import DDPHook
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 30))
hook = DDPHook(model, torch.optim.SGD(model.parameters()), "topk", ratio=0.1, selection="compiled")
model(torch.ones(2, 40)).sum().backward()
print(os.environ["NUMBA_CACHE_DIR"], hook.step)
"""


@pytest.mark.unit
@pytest.mark.slow
def test_hooks_work_where_neither_the_package_nor_a_home_can_be_written(tmp_path):
    """A file in place of every ``__pycache__`` folder acts like a read-only disk, for root too."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("dlgs_bench", "methods"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        for folder in (tmp_path / name, *(p for p in (tmp_path / name).rglob("*") if p.is_dir())):
            (folder / "__pycache__").touch()
    homeless = {key: value for key, value in os.environ.items() if key not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", ONE_STEP], cwd=tmp_path, env=homeless | {"HOME": "/proc/nobody", "PYTHONPATH": ""},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    folder, step = done.stdout.split()
    assert step == "1" and not Path(folder).exists()


@pytest.mark.unit
@pytest.mark.parametrize("width, settings", [(20, {"bucket_cap_mb": 0.002}), (20, {"bucket_cap_mb": 0.004}), (400, {})])
def test_buckets_merged_by_size_end_where_ddps_do(alone, width, settings):
    """DDP assigns its buckets again after the first step. By default its first bucket ends at 1 MiB."""
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(9)]
    hooked, plain = (DistributedDataParallel(torch.nn.Sequential(*layers), **settings) for _ in range(2))
    ours = DDPHook(hooked, torch.optim.SGD(layers[0].parameters(), lr=LR), "dlgs", ratio=0.1).state_dict()
    sizes: dict[int, int] = {}

    def note(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sizes[bucket.index()] = bucket.buffer().numel()
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    plain.register_comm_hook(None, note)
    for _ in range(2):
        plain(torch.ones(1, width)).sum().backward()
    assert len(sizes) > 1 and ours["rank 0"][0]["buckets"] == [sizes[index] for index in sorted(sizes)]


@on("torch_dist")
def test_powersgd_is_that_of_torchs_own_hook(ranks):
    for found in ranks:
        for theirs, mine in found["power"].values():
            assert len(theirs) == len(mine) == STEPS
            for a, b in zip(theirs, mine, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@on("torch_dist")
def test_what_backward_says_in_ddps_group_is_not_mixed_up_with_exchanges(ranks):
    """The expected aggregate is the mean of the gradients that each process computes alone with fixed parameters."""
    for step in range(STEPS):
        alone = []
        for rank in range(2):
            net, (images, labels) = built(), batch(step, rank)
            F.cross_entropy(net(images), labels).backward()
            alone.append(flat(net) / 2)
        for found in ranks:
            assert torch.equal(found["spoken between"][step], sum(alone))


@on("horovod")
def test_on_horovod_what_would_go_wrong_is_one_line(ranks):
    for found in ranks:
        closure, wrapped, unknown = found["said"]
        assert "closure" in closure and "give the optimizer that it wraps" in wrapped
        assert unknown.startswith("1.weight has a gradient that the hook does not exchange") and "\n" not in unknown


def expected(passes: dict[int, list[tuple[str, ...]]]) -> list[torch.Tensor]:
    """The sum over passes of the mean over two ranks; ``passes``: step -> what each rank uses."""
    net = Branches()
    for step, used in passes.items():
        for rank, names in enumerate(used):
            (net(inputs_of(step, rank), *names) / 2).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]


@on("horovod")
def test_on_horovod_scripts_accumulate_skip_and_leave_out_layers_as_on_one_process(ranks):
    both = [("left", "right")] * 2
    wanted = {
        "accumulated": {0: both, 1: both},
        "after zeros": {2: both},
        "after a skipped step": {3: both},
        "by rank": {0: [("left",), ("right",)]},
        "unused": {1: [("left",)] * 2},
    }
    for found in ranks:
        for habit, passes in wanted.items():
            torch.testing.assert_close(found["habits"][habit], expected(passes), msg=habit)


@on("horovod")
def test_on_horovod_what_is_clipped_is_the_aggregate_and_two_hooks_do_not_disturb_each_other(ranks):
    first, second = (found["habits"] for found in ranks)
    for habits in (first, second):
        length = torch.cat([g.flatten() for g in habits["clipped"]]).norm()
        assert length == pytest.approx(1.0, abs=1e-3)
    for habit in ("clipped", "two hooks"):
        assert all(map(torch.equal, first[habit], second[habit]))


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


@pytest.mark.unit
@pytest.mark.parametrize("state", [None, "hook.pt"])
def test_what_is_no_state_is_refused_in_one_line(alone, state):
    _, hook = attached("topk", ratio=0.1)
    with hook, pytest.raises(ValueError, match=r"^state: (NoneType|str) is not a saved state; [^\n]+$"):
        hook.load_state_dict(state)


MISTAKES = {
    "method: 'topkk' is not a method (did you mean 'topk'?); known: ": {"method": "topkk"},
    "method: 'LAGS' is not a method (did you mean 'lags'?); known: ": {"method": "LAGS"},
    "none.ratio: none has no parameters; remove it": {"method": "none", "ratio": 0.1},
    "topk: 'ratio' is missing; give a value of type float": {"method": "topk"},
    "topk.ratio: 1.5 is not valid; give a number in (0, 1]": {"method": "topk", "ratio": 1.5},
    "dlgs: unknown key 'refresh_evry' (did you mean 'refresh_every'?); known: ": {
        "method": "dlgs", "ratio": 0.1, "refresh_evry": 8,
    },
    "dlgs.refresh_every: 0 is not valid; give a value >= 1": {"method": "dlgs", "ratio": 0.1, "refresh_every": 0},
    "optimizer: dgc applies momentum itself, and the optimizer has momentum=0.9; give an optimizer without momentum": {
        "method": "dgc", "ratio": 0.1, "settings": {"momentum": 0.9},
    },
    "optimizer: demo applies momentum itself, and the optimizer has betas=(0.9, 0.999); "
    "give an optimizer without momentum": {
        "method": "demo", "optimizer": "Adam",
    },
    "bucket_cap_mb: None is not a positive number; give a size in MiB": {
        "method": "topk", "ratio": 0.1, "bucket_cap_mb": None,
    },
    "weight: torch.float64 is not float32, bfloat16 or float16; convert the parameter": {
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
    with pytest.raises(ValueError, match=r"^state: saved by topk, here is lags; load a state of lags$"):
        attached("lags", ratio=0.1)[1].load_state_dict(state)
    with pytest.raises(ValueError, match=r"^state: layer 0, counted from the output, is \(.*\) in the state and \(2,"):
        attached("topk", ratio=0.1, net=torch.nn.Linear(2, 2))[1].load_state_dict(state)
    state = attached("dlgs", ratio=0.1)[1].state_dict()
    with pytest.raises(ValueError, match=r"^state: the size of bucket 0 is \d+ in the state and \d+ here; give the"):
        attached("dlgs", ratio=0.1, bucket_cap_mb=1e-3)[1].load_state_dict(state)


@pytest.mark.unit
@pytest.mark.parametrize("method, saved, here, expected", [
    ("powersgd", {"rank": 2}, {"rank": 4}, "state: saved by powersgd with rank=2, here it is 4; give rank=2"),
    ("topk", {"ratio": 0.1}, {"ratio": 0.01}, "state: saved by topk with ratio=0.1, here it is 0.01; give ratio=0.1"),
    ("dlgs", {"ratio": 0.1}, {"ratio": 0.1, "refresh_every": 8}, "with refresh_every=32, here it is 8"),
])  # fmt: skip
def test_a_state_with_other_parameters_is_refused_by_name(alone, method, saved, here, expected):
    state = attached(method, **saved)[1].state_dict()
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        attached(method, **here)[1].load_state_dict(state)
    assert "\n" not in str(error.value)
    attached(method, **saved)[1].load_state_dict(state)


@pytest.mark.unit
def test_what_is_no_model_or_no_optimizer_is_refused_in_one_line(alone):
    net = Given()
    optimizer, model = torch.optim.SGD(net.parameters(), lr=LR), DistributedDataParallel(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    wrong = {
        "model: Given is not a DistributedDataParallel; wrap the model first": (net, optimizer),
        "model: SGD is not a DistributedDataParallel": (optimizer, model),
        "optimizer: torch.optim.lr_scheduler.StepLR is not a torch.optim.Optimizer": (model, scheduler),
    }
    for expected, (first, second) in wrong.items():
        with pytest.raises(ValueError, match=re.escape(expected)) as error:
            DDPHook(first, second, "none")
        assert "\n" not in str(error.value)


@pytest.mark.unit
def test_sparse_gradients_are_refused_by_the_name_of_their_layer(alone):
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^0: sparse=True gives sparse gradients; give sparse=False$"):
        attached("none", net=net)


@pytest.mark.unit
def test_momentum_that_a_scheduler_adds_later_is_refused_in_the_step_that_sees_it(alone):
    model, hook = attached("dgc", net=built(), ratio=0.1)
    inputs, targets = batch(0, 0)
    F.cross_entropy(model(inputs), targets).backward()
    hook._optimizers[0].param_groups[0]["momentum"] = 0.93  # as OneCycleLR does
    model.zero_grad()
    with pytest.raises(ValueError, match=r"dgc applies momentum itself, and the optimizer has momentum=0\.93"):
        F.cross_entropy(model(inputs), targets).backward()
    assert hook.step == 1


@pytest.mark.unit
def test_a_class_is_a_method_too(alone):
    """It gives the bits of the same class in a file, and has the class's name in states and messages."""
    (model, hook), (other, named) = attached(CLASSES["topk"], ratio=0.1), attached("topk", ratio=0.1)
    for step in range(2):
        for one in (model, other):
            one.zero_grad()
            one(given(step, 0)).backward()
        assert torch.equal(flat(model.module), flat(other.module))
    attached(CLASSES["topk"], ratio=0.1)[1].load_state_dict(hook.state_dict())
    expected = {
        "state: saved by topk, here is GlobalTopK": lambda: hook.load_state_dict(named.state_dict()),
        "GlobalTopK: 'ratio' is missing": lambda: attached(CLASSES["topk"]),
        "method: DiLoCo exchanges weights": lambda: attached(CLASSES["diloco"]),
    }
    for line, call in expected.items():
        with pytest.raises(ValueError, match=f"^{line}"):
            call()


@pytest.mark.unit
def test_the_documentation_shows_a_class_of_a_script(alone):
    model = DistributedDataParallel(built())
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=LR)}
    exec(documented("A method of your own"), names)
    inputs, targets = batch(0, 0)
    F.cross_entropy(model(inputs), targets).backward()
    assert names["hook"].step == 1 and (flat(model.module) == 0).any()


@pytest.mark.unit
def test_a_loaded_state_is_a_copy(alone):
    _, hook = attached("topk", ratio=0.1)
    hook.method.residuals[0] = torch.ones(3396)
    state, (_, other) = hook.state_dict(), attached("topk", ratio=0.1)
    other.load_state_dict(state)
    other.method.residuals[0].zero_()
    assert state["rank 0"][2]["residuals"][0].all()


@pytest.mark.unit
@pytest.mark.parametrize("redistribute", [False, True])
def test_what_waits_for_a_use_of_a_layer_is_saved(alone, redistribute):
    torch.manual_seed(0)
    net = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(2)])
    net.forward = lambda layer: net[layer](torch.ones(1, 4)).sum()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    hook = DDPHook(model, torch.optim.SGD(net.parameters(), lr=LR), "topk", ratio=0.3)
    for layer, scale in ((1, 10.0), (0, 0.1)):
        model.zero_grad()
        (scale * model(layer)).backward()
    state = hook.state_dict()
    if redistribute:
        identity, step, kept = state["rank 0"]
        other = (identity | {"rank": 1, "workers": 2}, step, kept)
        state = {"rank 0": (identity | {"workers": 2}, step, kept), "rank 1": other}
    (held,) = hook._held.values()
    hook.close()
    hook = DDPHook(model, torch.optim.SGD(net.parameters(), lr=LR), "topk", ratio=0.3)
    hook.load_state_dict(state, redistribute)
    (loaded,) = hook._held.values()
    assert torch.equal(held, loaded) and held.any()


@pytest.mark.unit
def test_a_state_whose_method_was_given_a_number_of_numpy_can_be_read(alone):
    file, (_, hook) = io.BytesIO(), attached("topk", ratio=np.float64(0.1))
    torch.save(hook.state_dict(), file)
    file.seek(0)
    attached("topk", ratio=0.1)[1].load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.unit
def test_a_warm_up_may_start_with_a_rate_of_0(alone):
    model, _ = attached("demo", settings={"lr": 0.0}, sign=False)
    model(given(0, 0)).backward()
    assert not flat(model.module).any()


@pytest.mark.unit
def test_ddps_own_ways_to_leave_out_exchanges_are_refused(alone):
    model = DistributedDataParallel(Given(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
    with pytest.raises(ValueError, match=r"^model: skip_all_reduce_unused_params=True is not possible") as error:
        DDPHook(model, torch.optim.SGD(model.parameters()), "none")
    first, *others = (net := Given()).named_parameters()
    model = DistributedDataParallel(net, delay_all_reduce_named_params=others, param_to_hook_all_reduce=first[1])
    with pytest.raises(ValueError, match=r"^model: delay_all_reduce_named_params is not possible with a hook") as error:
        DDPHook(model, torch.optim.SGD(model.parameters()), "none")
    assert "\n" not in str(error.value)
    model = DistributedDataParallel(Given())
    model.register_comm_hook(None, fp16_compress_hook)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^model: it has another communication hook; wrap its module") as error:
            DDPHook(model, torch.optim.SGD(model.parameters()), "none")
    assert "\n" not in str(error.value)


@pytest.mark.unit
def test_a_model_that_is_converted_after_ddp_is_refused(alone):
    model, hook = attached("none", net=torch.nn.Linear(2, 2))
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"^bias: torch\.bfloat16 on cpu is not torch\.float32 on cpu, as") as error:
        model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    assert "\n" not in str(error.value) and hook.step == 0


@pytest.mark.unit
def test_a_method_sees_the_step_and_the_optimizers_rate_in_it(alone, monkeypatch):
    model, hook = attached("none")
    optimizer, seen, exchange = hook._optimizers[0], [], hook.method.exchange
    monkeypatch.setattr(hook.method, "exchange", lambda bucket, at: seen.append(at) or exchange(bucket, at))
    for step, lr in enumerate((0.5, 0.25)):
        optimizer.param_groups[0]["lr"] = lr
        model(given(step, 0)).backward()
    assert seen == [StepContext(1, 0, 1, 0.5), StepContext(2, 0, 1, 0.25)]


@pytest.mark.unit
@pytest.mark.parametrize("two", [False, True])
def test_layers_with_a_rate_of_0_do_not_stop_demo(alone, two):
    model = DistributedDataParallel(net := torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
    groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[1].parameters(), "lr": LR}]
    optimizers = [torch.optim.SGD([group]) for group in groups] if two else [torch.optim.SGD(groups)]
    hook = DDPHook(model, optimizers, "demo")
    model(torch.ones(1, 3)).sum().backward()
    assert hook.step == 1 and flat(net[1]).any()


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
def test_the_documentation_says_how(alone, tmp_path, monkeypatch):
    """The code of the documentation runs."""
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    model = DistributedDataParallel(built())
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=LR), "torch": torch, "rank": 0}
    exec(code, names)
    hook = names["hook"]
    inputs, targets = batch(0, 0)
    F.cross_entropy(model(inputs), targets).backward()
    assert hook.step == 1 and (flat(model.module) == 0).any()
    (saved,) = tmp_path.iterdir()
    assert torch.load(saved, weights_only=True)["hook"]["rank 0"][1] == 0
