"""Everything that needs a GPU, in one command of ten minutes: tests, times, selection and training.

    python bench/gpu.py results/gpu [--budget-s 540] [--only accuracy] [--device cpu --tiny]

The stages run in the order of their worth, each in a process with a time limit (most programs: ``gpu_stages.py``). The
output, the tables and the exit status of a stage are kept, also if this or another stage fails or is cut at its limit.
The archive is written again after every stage. The exit status is 0 only if every stage succeeded.
"""

import argparse
import csv
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench.fingerprint import ROOT, commit

STAGES = ("environment", "tests", "times", "selection", "accuracy")
GRACE_S = 15  # from SIGINT, after which pytest writes its report, to SIGKILL
LEAST_S = 5  # no stage is started with less time
MOST_BYTES, MOST_CHECKPOINT_BYTES = 10 * 2**20, 20 * 2**20  # of the archive, and of an archive of a run's checkpoints
ON_CPU = "share_a_gpu and allgather or nan_is_refused and not triton"  # the tests of a trial without a GPU
PACKAGES = {"PIL": "pillow", "xdist": "pytest-xdist", "yaml": "PyYAML"}  # module -> package, if the names differ


@dataclass(frozen=True)
class Stage:
    """A program with a time limit. ``modules``, ``files``: what it needs."""

    name: str
    limit_s: float
    command: Sequence[str]
    modules: str = ""
    files: Sequence[Path] = ()

    def missing(self) -> list[str]:
        """The packages and files that the stage needs and that are not here."""
        packages = [PACKAGES.get(module, module) for module in self.modules.split() if find_spec(module) is None]
        if "triton" in self.modules.split():  # it compiles a C extension before its first kernel
            header = Path(sysconfig.get_paths()["include"]) / "Python.h"
            packages += [] if any(map(shutil.which, ("gcc", "clang", "cc"))) else ["a C compiler"]
            packages += [] if header.exists() else [str(header)]
        return packages + [str(path) for path in self.files if not path.exists()]


def stages_of(asked: argparse.Namespace, until: float) -> list[Stage]:
    """The stages, the most valuable first. ``until``: when accuracy runs stop, in seconds since the epoch."""
    gpu, report = asked.device == "cuda", asked.folder / "tests.xml"
    base, patience = "numba numpy psutil yaml" + (" triton" if gpu else ""), 1 if gpu else 10
    shared = ["--folder", str(asked.folder), "--data", str(asked.data), "--device", asked.device]
    shared += ["--label", asked.label, "--commit", asked.commit]
    shared += ["--until", str(until), *(["--tiny"] if asked.tiny else [])]

    def own(name: str, limit_s: float, modules: str = "", files: Sequence[Path] = ()) -> Stage:
        program = [sys.executable, str(ROOT / "bench" / "gpu_stages.py"), name]
        return Stage(name, limit_s * patience, program + shared, f"{base} {modules}", files)

    pytest = [sys.executable, "-m", "pytest", "-v", "--durations=20", f"--junitxml={report}"]
    pytest += ["-o", f"junit_suite_name=test_cuda on {asked.label}", "tests/test_cuda.py"]
    pytest += [] if gpu else ["-k", ON_CPU]
    tested = f"{base} pytest xdist hypothesis pandas PIL torchvision"
    stages = [
        own("environment", 60),
        Stage("tests", 240 * patience, pytest, tested),
        own("times", 75, "torchvision"),
        own("selection", 75, "pandas tabulate"),
        own("accuracy", math.inf, files=[asked.data / "cifar10.npz"]),
    ]
    return [stage for stage in stages if stage.name in asked.only]


def run_stage(stage: Stage, output: Path, limit_s: float, environment: dict[str, str]) -> tuple[str, int]:
    """Run a stage, append what it prints to ``output``, and return "ok", "failed" or "cut", and its exit status.

    At the limit the stage gets SIGINT, and SIGKILL after ``GRACE_S``. No process of its group is left at the end.
    """
    cut = False
    with output.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            stage.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, process_group=0
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            cut = True
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    return "cut" if cut else "ok" if code == 0 else "failed", code


def run(stages: Sequence[Stage], folder: Path, ends: float, label: str, environment: dict[str, str]) -> list[dict]:
    """Run the stages in order until ``ends`` (``time.monotonic``); return one row per stage, as in ``stages.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for stage in stages:
        for path in folder.glob(f"{stage.name}.*"):  # of an earlier call
            path.unlink()
        output, begun = folder / f"{stage.name}.txt", time.monotonic()
        output.write_text(f"{stage.name} on {label}\n", encoding="utf-8")
        left_s = ends - GRACE_S - begun
        limit_s = min(stage.limit_s, left_s)
        status, code, why = "not run", None, ""
        if missing := stage.missing():
            why = f"missing: {', '.join(missing)}"
        elif left_s < LEAST_S:
            why = "the budget is spent"
        else:
            print(f"{stage.name}: at most {limit_s:.0f} s, output in {output}", flush=True)
            status, code = run_stage(stage, output, limit_s, environment)
            if status != "ok":
                why = output.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        row = {"device": label, "stage": stage.name, "status": status, "exit_status": code, "why": why}
        rows.append(row | {"seconds": round(time.monotonic() - begun, 1), "limit_s": round(limit_s, 1)})
        print(f"{stage.name}: {status}{why and f': {why}'}", flush=True)
        with (folder / "stages.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        for name in archive(folder):
            print(f"{folder / name}: not in the archive, which would have over {MOST_BYTES} bytes", flush=True)
    return rows


def archive(folder: Path, most: int = MOST_BYTES) -> list[str]:
    """Write ``<folder>.tar.gz`` with the files of the folder, the smallest first, but not its folder ``checkpoints``.

    Returns the names of the files that are left out because the archive would have more than ``most`` bytes.
    """
    files = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.stat().st_size)
    target = folder.with_name(f"{folder.name}.tar.gz")
    left_out, size = [], 0
    with tarfile.open(target.with_suffix(".partial"), "w:gz") as tar:
        for path in files:
            size += path.stat().st_size + 1024  # compressed, it has fewer
            if size > most:
                left_out.append(path.name)
            else:
                tar.add(path, f"{folder.name}/{path.name}")
    target.with_suffix(".partial").replace(target)
    return left_out


def archive_checkpoints(folder: Path, most: int = MOST_CHECKPOINT_BYTES) -> None:
    """Write ``<folder>-checkpoint-<run>.tar.gz`` for each accuracy run, unless it has more than ``most`` bytes."""
    for path in sorted((folder / "checkpoints").glob("*")):
        target = folder.with_name(f"{folder.name}-checkpoint-{path.name}.tar.gz")
        if sum(file.stat().st_size for file in path.rglob("*")) > most:
            target.unlink(missing_ok=True)
            print(f"{path}: no archive, since it has over {most} bytes; copy the folder to continue elsewhere")
            continue
        with tarfile.open(target, "w:gz") as tar:
            tar.add(path, f"{folder.name}/checkpoints/{path.name}")


def unusable(device: str) -> str:
    """Why no stage can run on a device, or an empty string."""
    if find_spec("torch") is None:
        return "torch is not installed; run `make env-without-horovod`"
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "--device: cuda is not usable, since torch finds no GPU; use a machine with a GPU, or --device cpu"
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the results are written; the archive is next to it")
    parser.add_argument("--budget-s", type=float, default=540, help="seconds for all stages together")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, help="the stages to run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few steps: a test of this command")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="the folder of cifar10.npz")
    parser.add_argument("--commit", default=commit(), help="for a machine without the history of the project")
    asked = parser.parse_args(arguments)
    if why := unusable(asked.device):
        print(f"gpu: {why}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # this ends the running stage, too
    asked.folder, asked.data = asked.folder.resolve(), asked.data.resolve()
    asked.label = asked.device + (" (tiny)" if asked.tiny else "")
    ends = time.monotonic() + asked.budget_s
    # Accuracy runs stop early enough to finish an evaluation and to save.
    stages = stages_of(asked, until=time.time() + asked.budget_s - 2 * GRACE_S)
    missing = [f"{name} ({stage.name})" for stage in stages for name in stage.missing()]
    missing += ["the commit (give --commit)"] if asked.commit == "unknown" else []
    print(f"gpu: missing: {', '.join(missing) or 'nothing'}", flush=True)
    on_both = {"PYTHONUNBUFFERED": "1", "DLGS_BENCH_TEST_DEVICE": asked.device}
    on_cpu = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if asked.device == "cpu" else {}
    rows = run(stages, asked.folder, ends, asked.label, os.environ | on_both | on_cpu)
    archive_checkpoints(asked.folder)
    print(f"results: {asked.folder}.tar.gz")
    return 0 if all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
