"""What several test files share: simulated workers, and copies of the project to change and run."""

import csv
import fcntl
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import yaml
from conftest import world_of
from equal_worker import VARIANTS as EVERY_VARIANT
from hypothesis import settings
from PIL import Image
from world import World

from dlgs_bench import plugins
from dlgs_bench.data.fetch import cifar10, imagenet100
from dlgs_bench.engines import ENGINES
from dlgs_bench.exchange import Bucket, LocalSteps, Sparsifier, StepContext
from dlgs_bench.exchange.driver import Exchange, ServerExchange, WorkerExchange
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.topology import ALL_GATHER, Topology
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.optimizer import SGD

ROOT = Path(__file__).resolve().parent.parent


def examples(times: float) -> settings:
    """Settings with ``times`` times the examples of the profile, for a test that is cheaper or slower than others."""
    return settings(max_examples=max(3, round(times * settings.default.max_examples)))


@contextmanager
def alone(what: str):
    """Hold a lock, so that only one test process at a time uses ``what``."""
    with (Path(tempfile.gettempdir()) / f"dlgs-bench-{os.getuid()}-{what}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


torch.set_num_threads(1)  # as ranks have, whose bits tests compare
METHODS = plugins.names("methods")
with alone("plugins"):  # one process describes all, before tests ask for one after another
    plugins.describe_all((kind, name) for kind in plugins.FOLDERS for name in plugins.names(kind))
CLASSES = {name: method_class(name) for name in METHODS}
# A copy of the project may have few methods, or others with the same names.
VARIANTS = {
    name: (method, parameters)
    for name, (method, parameters) in EVERY_VARIANT.items()
    if method in METHODS and parameters.keys() <= plugins.describe("methods", method)["fields"].keys()
}
CLASSES |= {variant: CLASSES[method] for variant, (method, _) in VARIANTS.items()}
# What a hook takes: methods that exchange gradients, and do not need a plan for it.
HOOKED = [name for name in METHODS if not (issubclass(CLASSES[name], LocalSteps) or CLASSES[name].ratios_from_plan)]
SPARSIFIERS = [name for name in METHODS if issubclass(CLASSES[name], Sparsifier)]
CPU = torch.device("cpu")
HOROVOD = find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not installed; `make env` builds it")
NEEDS = {name: [needs_horovod] if name == "horovod" else [] for name in ENGINES}  # the marks of what starts its ranks
every_engine = pytest.mark.parametrize("engine", [pytest.param(name, marks=NEEDS[name]) for name in ENGINES])
horovod_is_slow = pytest.mark.parametrize(
    "engine", ["torch_dist", pytest.param("horovod", marks=[pytest.mark.slow, *NEEDS["horovod"]])]
)
# More values may follow. The report must see the name: under the configuration's own there are no runs.
TINY = ["--configfile", "config/tiny.yaml", "--config", "name=tested"]
WORLDS = {engine: World(engine, 2) for engine in ENGINES}
SMOKE = ["--configfile", "config/smoke.yaml", "--config", "name=tested"]
PATIENCE_S = 300  # for one launch, or another program of less than a minute: after this it hangs
WORKFLOW_TIMEOUT_S = 600  # of a workflow of a few runs, which takes less than a minute on 2 quiet cores


def refused_by(command, name: str, capsys, *arguments) -> str:
    """The one-line error of a command that exits with status 2. ``name``: how the line begins."""
    try:
        status = command.main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = end.code
    out, line = capsys.readouterr()
    assert status == 2 and not out and line.startswith(f"{name}: ")
    assert line.endswith("\n") and line.count("\n") == 1
    return line


def read(name: str) -> dict:
    """A configuration as it is in its file."""
    return yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())


def options_of(name: str) -> dict:
    """The ratio of a method, if it has one, and a warm-up that ends within a few steps."""
    return {key: value for key, value in {"ratio": 0.1, "warmup_steps": 2}.items() if key in plugins.fields(name)}


def make(name: str, **options):
    """A method or variant with the parameters of ``options_of``, and defaults."""
    method, parameters = VARIANTS.get(name, (name, {}))
    return CLASSES[method](**options_of(method) | parameters | options)


def at(step: int, rank: int = 0, workers: int = 1) -> StepContext:
    return StepContext(step, rank, workers, lr=0.1)


def sgd(parameters: torch.Tensor) -> SGD:
    return SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


def shapes_of(size: int, scope: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of a bucket of ``size`` entries: a matrix, and a vector if a bucket may hold several layers."""
    rows = math.isqrt(size)
    if scope == "layer":
        rows = max(n for n in range(1, rows + 1) if size % n == 0)
        return ((rows, size // rows),)
    columns = (size - 1) // rows
    return ((rows, columns), (size - rows * columns,)) if columns else ((size,),)


def exchange_of(comm, method, first: list[torch.Tensor], topology: Topology = ALL_GATHER, **how) -> Exchange:
    """This rank's part in the exchanges of ``method`` on buckets shaped as ``first``; a server has zeros as weights."""
    flat = torch.cat(first)
    parts = flat.split([len(g) for g in first])
    buckets = [Bucket(i, part, shapes_of(len(part), method.scope)) for i, part in enumerate(parts)]
    groups = [(i, i + 1) for i in range(len(buckets))]
    answering = transport(topology, comm, **how)
    if topology.serves(comm.rank, comm.world_size - topology.servers):
        return ServerExchange(method, groups, buckets, answering, flat, sgd(torch.zeros_like(flat)))
    return WorkerExchange(method, groups, buckets, answering, Clock(CPU))


def one_step(comm, exchange: Exchange, gradients: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Send the gradients through; return the aggregates."""
    for bucket, gradient in zip(exchange.buckets, gradients, strict=True):
        bucket.gradient.copy_(gradient)
    if isinstance(exchange, WorkerExchange):
        exchange._clock.start()
    exchange.begin(at(number, comm.rank, comm.world_size - exchange.transport.topology.servers))
    for layer in range(len(exchange.buckets)):
        exchange.ready(layer)
    exchange.finish()
    return [b.gradient.clone() for b in exchange.buckets]


def exchange_steps(
    comm, method, steps: list[list[torch.Tensor]], first: int = 1, **options
) -> list[list[torch.Tensor]]:
    """Send ``steps`` (a list of per-bucket gradients) through ``method``; return the aggregates."""
    exchange = exchange_of(comm, method, steps[0], **options)
    return [one_step(comm, exchange, gradients, number) for number, gradients in enumerate(steps, start=first)]


def gradients(
    rank: int, steps: int, sizes=(7, 300, 1), seed: int = 0, device: torch.device = CPU
) -> list[list[torch.Tensor]]:
    """Random gradients, the same on every device."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return [[torch.randn(n, generator=generator).to(device) for n in sizes] for _ in range(steps)]


@pytest.fixture
def device() -> torch.device:
    """Where the tensors of a law are; test_cuda.py holds the same laws elsewhere."""
    return CPU


@pytest.fixture
def fault(record_property) -> Callable:
    """Notes a fault and how long it took until the run had ended. bench/faults.py shows all of them."""
    return lambda what, since: record_property("fault", {"fault": what, "seconds": time.monotonic() - since})


@pytest.fixture
def measured(record_property) -> Callable:
    """Notes the number that a test measures of a method, which must lie between two others: bench/properties.py shows
    all of them."""

    def note(
        method: str, what: str, figure: float, *, at_least: float = -math.inf, at_most: float = math.inf, hint: str = ""
    ) -> None:
        """``hint``: where and why it may fail, for the message."""
        figure = float(figure)
        record_property("measured", {"method": method, "what": what, "figure": figure, "bounds": (at_least, at_most)})
        assert at_least <= figure <= at_most, (
            f"{method}: {what}: {figure}, not from {at_least} to {at_most}{hint and '; '}{hint}"
        )

    return note


@pytest.fixture(scope="session")
def worlds() -> Callable[[str], World]:
    """The two ranks of an engine, started once."""
    return WORLDS.__getitem__


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop a world after its last test: an idle rank of Horovod takes a fifth of a core."""
    for engine, world in WORLDS.items():
        if nextitem is None or world_of(nextitem.nodeid) != engine:
            world.stop()


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of CIFAR-10, which is fetched if it is not there."""
    path = ROOT / "data" / "cifar10.npz"
    with alone("data"):
        if not path.exists():
            cifar10.fetch(path)
    return path.parent


def make_imagenet(folder: Path, train: int = 2) -> Path:
    """A small tree in ImageNet's layout: of each class ``train`` training images, tall and wide, and one test image."""
    numbers = np.random.default_rng(0)
    for i, name in enumerate(imagenet100.CLASSES):
        for split, count in (("train", train), ("val", 1)):
            (folder / split / name).mkdir(parents=True)
            for j in range(count):
                pixels = numbers.integers(0, 256, (40 + i % 19, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{j}.JPEG")
    (folder / "train" / "n99999999").mkdir()  # a class that is not among the 100
    return folder


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory) -> Path:
    """A folder with a small tree in ImageNet's layout, ``images``, and its copy, ``imagenet100``."""
    root = tmp_path_factory.mktemp("imagenet")
    imagenet100.copy(make_imagenet(root / "images"), root / "imagenet100", threads=2)
    return root


# Of workflows: this project's Python comes first, and no launch is repeated because the machine became slower.
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "DLGS_BENCH_MAX_SPEED_CHANGE": "1000",
}


@pytest.fixture(scope="session")
def environment(data) -> dict[str, str]:
    """The environment of workflows that train on CIFAR-10. It is fetched before them, since a workflow that fetched it
    would remove it meanwhile from the tests that run at the same time."""
    return ENVIRONMENT


def edit(path: Path, old: str, new: str) -> None:
    """Change a file in one place."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old}"
    path.write_text(text.replace(old, new))


def copy_project(folder: Path, methods: Iterable[str] = METHODS) -> Path:
    """A copy of the project with only ``methods``, without what it produced. The data are shared."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv", ".tools", ".snakemake", "data", ".hypothesis", ".pytest_cache", ".ruff_cache", "mypy",
        "results", "smoke",
    )  # fmt: skip
    shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
    shutil.copytree(ROOT / "dlgs_bench" / "data", folder / "dlgs_bench" / "data", dirs_exist_ok=True)
    for path in (folder / "methods").glob("*.py"):
        if path.stem not in methods:
            path.unlink()
    (ROOT / "data").mkdir(exist_ok=True)
    (folder / "data").symlink_to(ROOT / "data")
    return folder


def copy_tiny(folder: Path, methods: Iterable[str] = METHODS) -> Path:
    """A copy of the project which has the tiny model, its data set and its configuration (``TINY``)."""
    copy_project(folder, methods)
    files = {"tiny.py": "models", "vectors.py": "dlgs_bench/data", "tiny.yaml": "config", "studies.yaml": "config"}
    for name, target in files.items():
        shutil.copy(ROOT / "tests" / "tiny" / name, folder / target)
    return folder


# Describes plug-ins and tries the engine once, so that no workflow in a copy repeats it. The models are those of the
# fast tests.
LOOK_AT_PLUG_INS = """
from dlgs_bench import plugins
from dlgs_bench.config import checks
known = [(kind, name) for kind in ("methods", "collectives") for name in plugins.names(kind)]
plugins.describe_all([*known, *(("models", name) for name in ("tiny", "resnet20", "resnet50", "vgg16"))])
checks._lacks("torch_dist", "cpu", shared=False)
"""


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory) -> Path:
    """A copy of the project with the tiny model, in which nothing has run. Its plug-ins are described. Tests only read
    it."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # one folder for all of a session
    project = root / "tiny-source"
    with alone("tiny-source"):
        if not project.exists():
            made = copy_tiny(root / "tiny-source.partial")
            done = subprocess.run([sys.executable, "-c", LOOK_AT_PLUG_INS], cwd=made)
            assert done.returncode == 0
            for folder in ("plugins", "engines"):  # for the next session: names of files hold digests of the sources
                shutil.copytree(made / ".cache" / folder, ROOT / ".cache" / folder, dirs_exist_ok=True)
            made.rename(project)
    return project


@pytest.fixture(scope="session")
def tiny_made(tiny_source) -> Path:
    """``tiny_source`` after ``TINY`` has run from configuration to report. It is made once per session, for reading
    only."""
    project = tiny_source.with_name("tiny-made")
    with alone("tiny-made"):
        if not project.exists():
            made = clone(tiny_source, project.with_name("tiny-made.partial"))
            done = snakemake(made, ENVIRONMENT, *TINY)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            (made / "said.txt").write_text(done.stdout + done.stderr)
            made.rename(project)
    return project


def documented(section: str) -> str:
    """The lines of Python in a section of the documentation of hooks."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "hooks.md").read_text(), re.S | re.M)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    return code


DOCUMENTED = {"roundrobin": "add-a-method.md", "strided": "tutorial.md"}  # method -> the page that shows its file


def documented_method(name: str) -> str:
    """The file of a method, as its page shows it."""
    text = (ROOT / "docs" / DOCUMENTED[name]).read_text(encoding="utf-8")
    (code,) = re.findall(rf"`methods/{name}\.py`.*?```python\n(.*?)```", text, re.S)
    return code


def python_in(project: Path, *arguments: str, timeout_s: float = PATIENCE_S) -> str:
    """What a Python program prints in a copy of the project."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def clone(project: Path, folder: Path) -> Path:
    """A copy of a project with all its outputs, and with the same file times."""
    return Path(shutil.copytree(project, folder, symlinks=True))


def launch_tiny(project: Path, spec: RunSpec, folder: Path, **place) -> int:
    """Run ``spec`` with the model and data of a copy of the project, which holds the tiny ones; return the status."""
    place = LaunchSettings(**place)
    program = ["env", "-C", str(project), sys.executable, "-m", "dlgs_bench.training.run"]
    return launch(spec, place, folder, folder.with_suffix(".log"), program)


@pytest.fixture
def tiny_project(tiny_source, tmp_path) -> Path:
    """A copy of ``tiny_source`` for one test."""
    return clone(tiny_source, tmp_path / "project")


def numbers(folder: Path) -> list[pd.DataFrame]:
    """The tables in a run's folder, without times."""
    tables = [pd.read_csv(folder / f"{name}.csv") for name in ("points", "iterations", "sent", "groups")]
    return [table[[column for column in table if not column.endswith("_s")]] for table in tables]


def until(condition: Callable, timeout_s: float = 180):
    """What ``condition`` returns as soon as it is true, or at the timeout."""
    end = time.monotonic() + timeout_s
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return held


def checkpointed(run: Path, ranks: int = 2) -> int:
    """The step of the newest checkpoint that ``ranks`` ranks of a run have written, 0 before there is one."""
    with suppress(OSError):  # ranks take old ones away meanwhile
        for step in sorted(run.with_name(f"{run.name}.checkpoints").glob("*"), key=lambda path: -int(path.name)):
            if len(list(step.glob("rank?"))) == ranks:
                return int(step.name)
    return 0


def of_run(folder: Path) -> list[psutil.Process]:
    """The processes that have the folder of the run in ``folder`` among their arguments: ranks, on whatever host, and
    what started them."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder / "run") in argument for argument in process.info["cmdline"] or [])
    ]


def rows_of(path: Path) -> list[dict]:
    """The lines of a table, each a text by column."""
    with path.open() as file:
        return list(csv.DictReader(file))


def snakemake(
    project: Path, environment: dict, *arguments: str, timeout_s: float = WORKFLOW_TIMEOUT_S
) -> subprocess.CompletedProcess:
    """Run a workflow in a copy of the project, to its end."""
    command = ["snakemake", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=timeout_s)


def watched(coroutine, note: Callable):
    """The same rounds; ``note`` gets each round before it is answered."""
    answer = None
    while True:
        try:
            peer_exchange = coroutine.send(answer)
        except StopIteration as end:
            return end.value
        note(peer_exchange)
        answer = yield peer_exchange


def script_module(name: str):
    """A script of the workflow as a module."""
    spec = spec_from_file_location(name, ROOT / "workflow" / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
