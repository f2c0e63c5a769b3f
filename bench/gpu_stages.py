"""The stages of ``gpu.py`` that are programs of this project. Each row of a table has the machine, date and commit."""

import argparse
import importlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml
from torch import Tensor

from dlgs_bench import data, plugins
from dlgs_bench.comm import Communicator
from dlgs_bench.comm.local import run_workers
from dlgs_bench.data import DataSet
from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.device import moment, seconds
from dlgs_bench.exchange.async_device import synchronize
from dlgs_bench.exchange.selection import TopK, compiled_backend, torch_backend
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.stats import repeatable
from dlgs_bench.training.build import build, to_device
from dlgs_bench.training.checkpoint import Checkpoints, Stopped, identity
from dlgs_bench.training.results import machine, write_rows
from dlgs_bench.training.train import advance, begin

VERSIONS = ("torchvision", "triton", "numba", "numpy", "horovod")
BLOCKS, BLOCK_MS = 12, 100  # about the time of one block of iterations
SIZES, RATIOS, ROUNDS = [2**power for power in range(16, 28)], (0.1, 0.01), 15
EXACT = ("torch.topk", "top-k, torch", "top-k, compiled", "threshold, torch", "threshold, compiled")
MODELS, METHODS, RATIO, WORKERS = ("resnet20", "vgg16"), ("none", "topk", "lags", "dlgs"), 0.1, 2
CHECKPOINT_EVERY_S = 20


def nvidia_smi(*arguments: str) -> str:
    with suppress(OSError):
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True).stdout.strip()
    return "none"


def installed(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return "not installed"


@cache
def facts(label: str, device: str, commit: str) -> dict[str, str]:
    """The first columns of all tables."""
    driver = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    metadata = {"device": label, "machine": machine(device), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    return metadata | {"commit": commit, "driver": driver, "torch": torch.__version__}


def write(asked: argparse.Namespace, rows: list[dict]) -> None:
    """Write the table of a stage. Stages do so after each part, and a cut stage leaves what it has measured."""
    metadata = facts(asked.label, asked.device, asked.commit)
    write_rows(asked.folder / f"{asked.stage}.csv", [metadata | row for row in rows])


def recipes() -> dict[str, dict]:
    """The paper's models with their recipes."""
    return yaml.safe_load((ROOT / "config" / "paper.yaml").read_text(encoding="utf-8"))["models"]


def environment(asked: argparse.Namespace) -> None:
    """What is installed, and whether the compiled selection works on the device."""
    print(nvidia_smi())
    row = {"python": platform.python_version()} | {name: installed(name) for name in VERSIONS}
    if asked.device == "cuda":
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        row |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "nccl": nccl}
    corrected = torch.randn(100_000, device=asked.device)
    expected, values = (
        one.take(corrected.clone(), TopK(1000))[0].abs().sort().values for one in (torch_backend, compiled_backend)
    )
    row["compiled_selection"] = "correct" if torch.equal(values, expected) else "wrong"
    write(asked, [row])
    print(*row.items(), sep="\n")
    if row["compiled_selection"] == "wrong":
        sys.exit("the compiled selection does not choose the k largest magnitudes on this device")


def times(asked: argparse.Namespace) -> None:
    """Forward and backward of the paper's models at the paper's batches and input sizes, on random inputs."""
    rows: list[dict] = []
    computation_ms: dict[str, float] = {}
    for name, recipe in recipes().items():
        module = plugins.load("models", name)
        shape = (2, 3, 32, 32) if asked.tiny else (recipe["batch"], *data.load(module.DATA).example().shape[1:])
        inputs = torch.randn(shape).to(asked.device, memory_format=torch.channels_last)
        labels = torch.randint(0, 10, shape[:1]).to(asked.device)
        net = to_device(build(module), inputs.device)
        # By default, torch uses TF32 in convolutions on a GPU, also in this project's runs in float32.
        for precision in ("tf32", "float32", "bfloat16") if inputs.is_cuda else ("float32", "bfloat16"):
            torch.backends.cudnn.allow_tf32 = precision != "float32"
            blocks = timed_blocks(partial(gradient, net, module.loss, inputs, labels, precision), inputs, asked.tiny)
            for part, values in zip(("forward", "backward", "iteration"), zip(*blocks, strict=True), strict=True):
                ms = repeatable(values)
                row = {"model": name, "batch": shape[0], "input": "x".join(map(str, shape[1:])), "precision": precision}
                row |= {"part": part, "ms": ms.value, "ms_low": ms.low, "ms_high": ms.high, "blocks": len(blocks)}
                rows.append(row)
            print(f"{name}, {precision}: {ms.value:.4g} ms [{ms.low:.4g}, {ms.high:.4g}]", flush=True)
            computation_ms.setdefault(name, ms.value)
            write(asked, rows)
        words = ", ".join(facts(asked.label, asked.device, asked.commit).values())
        (asked.folder / "times.yaml").write_text(nodes(computation_ms, words), encoding="utf-8")


def gradient(net, loss, inputs: Tensor, labels: Tensor, precision: str) -> tuple:
    """Compute one gradient; the moments before forward, between forward and backward, and after backward."""
    net.zero_grad(set_to_none=True)
    begun = moment(inputs.device)
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        outputs = net(inputs).float()
    total = loss(outputs, labels)
    between = moment(inputs.device)
    total.backward()
    return begun, between, moment(inputs.device)


def timed_blocks(step: Callable[[], tuple], inputs: Tensor, tiny: bool) -> list[tuple[float, float, float]]:
    """The mean milliseconds of forward, of backward and of both, in each block of iterations."""

    def block(repeats: int) -> tuple[float, float, float]:
        moments = [step() for _ in range(repeats)]
        synchronize(inputs.device)
        forward, backward = (1e3 * statistics.fmean(seconds(one[i], one[i + 1]) for one in moments) for i in (0, 1))
        return forward, backward, forward + backward

    block(2)  # libraries choose kernels
    if tiny:
        return [block(1) for _ in range(3)]
    repeats = min(50, max(1, round(BLOCK_MS / block(2)[2])))
    return [block(repeats) for _ in range(BLOCKS)]


def nodes(computation_ms: dict[str, float], words: str) -> str:
    """The part of a configuration that describes nodes like this machine."""
    measured = ", ".join(f"{model}: {ms:.4g}" for model, ms in computation_ms.items())
    return f"# {words}\ntestbed:\n  nodes:\n    computation_ms: {{{measured}}}\n"


def selection(asked: argparse.Namespace) -> None:
    """The selections of this project compared with torch.topk, in turns."""
    import selection as bench

    print(device_topk())
    torch.set_num_threads(1)
    rows: list[dict] = []
    for size in SIZES[:1] if asked.tiny else SIZES:
        for ratio in RATIOS:
            measured = bench.measure(size, ratio, 3 if asked.tiny else ROUNDS, partial(candidates, bench))
            rows += measured
            write(asked, rows)
            print(size, ratio, *(f"{row['selection']}: {row['median_ms']:.4g} ms" for row in measured), sep="; ")


def candidates(bench, residual: Tensor, gradient: Tensor, k: int) -> dict[str, Callable]:
    """The exact selections of bench/selection.py, and Top-K for which the host does not wait, as in runs on a GPU."""
    candidates = bench.candidates(residual, gradient, k)
    return {name: candidates[name] for name in EXACT} | {
        "top-k without wait, torch": lambda corrected: torch_backend.take_at_most(corrected, TopK(k), k, gradient),
        "top-k without wait, compiled": lambda corrected: compiled_backend.take_at_most(
            corrected, TopK(k), k, gradient
        ),
    }


def device_topk() -> str:
    """One line: whether an installed Python package offers cub's DeviceTopK."""
    names = []
    for package in ("cuda.compute", "cupy"):
        with suppress(ImportError):
            attributes = dir(importlib.import_module(package))
            names += [f"{package}.{name}" for name in attributes if "topk" in name.lower().replace("_", "")]
    offered = f"{', '.join(names)} may be it: add it to candidates" if names else "not in cuda.compute or cupy here"
    return f"cub's DeviceTopK is not measured: {offered}"


def accuracy(asked: argparse.Namespace) -> None:
    """CIFAR-10 with the paper's recipes, two workers as threads on one device; all runs share the time that is left.

    A run continues from its checkpoint when the command is called again. Nothing is timed here.
    """
    images, rows = Cifar10(asked.data, torch.device(asked.device)), []
    runs = list(product(MODELS, METHODS))
    runs = runs[: len(METHODS) + 1] if asked.tiny else runs  # checkpoints of VGG16 are large
    for number, (model, method) in enumerate(runs):
        share_s = (asked.until - time.time()) / (len(runs) - number)
        spec = spec_of(model, method, asked.device, asked.tiny)
        metadata = {"model": model, "method": method, "ratio": spec.ratio, "workers": WORKERS}
        metadata |= {"batch": spec.training.batch, "lr": spec.training.lr, "precision": spec.training.precision}
        points = train(spec, images, asked.folder / "checkpoints" / f"{model}-{method}", time.time() + share_s)
        rows += [metadata | point for point in points]
        if rows:
            write(asked, rows)


def spec_of(model: str, method: str, device: str, tiny: bool) -> RunSpec:
    """The accuracy run of a method; all layers are merged."""
    recipe = recipes()[model]
    recipe |= {"batch": 4} if tiny else {}
    recipe |= {"lr_steps": tuple(recipe["lr_steps"]), "train_epochs": recipe["epochs"], "train_steps": 4 if tiny else 0}
    scheme = Scheme(method, options={} if method == "none" else {"ratio": RATIO}, planner="all")
    cluster = Cluster("torch_dist", workers=WORKERS, device=device)
    measured = Measurement(2, 20, 40) if tiny else Measurement(recipe["epochs"], test_samples=2000)
    return RunSpec("accuracy", Training(model, **recipe), scheme, cluster, measured)


def train(spec: RunSpec, images: DataSet, folder: Path, until: float) -> list[dict]:
    """The points of a run so far. It trains from its checkpoint in ``folder`` to its end or to ``until``, and saves."""

    def work(comm: Communicator) -> list[dict]:
        def say(text: str) -> None:
            if comm.rank == 0:
                print(f"{spec.training.model}, {spec.variant}: {text}", flush=True)

        session, exchange = begin(spec, comm, copy(images), torch.device(spec.cluster.device))  # they share the images
        total = spec.steps(images.train_size)
        checkpoints = Checkpoints(folder, CHECKPOINT_EVERY_S, identity(spec), say)
        checkpoints.resume(session)
        try:
            while True:
                if session.done < total:
                    advance(session, exchange, total)
                if session.done == total or time.time() > until:
                    checkpoints.stop()
                checkpoints.save_if_due(session)
        except Stopped as stopped:
            say(f"{stopped}; the run has {total} steps")
        return [point | {"total_steps": total} for point in session.rows["points"]]

    return run_workers(spec.cluster.workers, work)[0]


def main() -> None:
    programs = {stage.__name__: stage for stage in (environment, times, selection, accuracy)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=programs)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--until", type=float, required=True, help="seconds since the epoch")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    programs[asked.stage](asked)


if __name__ == "__main__":
    main()
