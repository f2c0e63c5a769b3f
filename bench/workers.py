"""More workers: what 2, 4, 8 and 16 workers do to the accuracy of each method, at the same total batch.

    python bench/workers.py results/reference-workers --steps 1564

The workers are threads of one process and add gradients in rank order. There is no network, and nothing is timed. Every
run trains ResNet-20 with the recipe of the long training runs, whose schedule is scaled to the steps. A stopped run
continues from its last checkpoint, and a finished run is not repeated. The table, the figure and the page are written
after every run.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
import torch
import yaml

from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.data import DataSet
from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.exchange.plugin import method_info
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import last_points, with_uncompressed
from dlgs_bench.report.names import Names
from dlgs_bench.spec import LaunchSettings, Measurement, RunSpec
from dlgs_bench.training.checkpoint import identity
from dlgs_bench.training.results import provenance
from dlgs_bench.training.train import accuracy

CPU = torch.device("cpu")
RUNS = Path("results/runs/workers")
METHODS = ("none", "topk", "lags", "dlgs")
WORKERS = (2, 4, 8, 16)
TOTAL_BATCH, RATIO = 64, 0.01
CAPTION = """Accuracy by the number of workers: ResNet-20 at the same total batch, so more workers have fewer samples
each. Left: test accuracy after the last step. Right: the same minus the accuracy of uncompressed with as many workers.
Whiskers: the standard deviation over seeds, if there are several. BatchNorm takes its statistics from the samples of
one worker, which also changes what uncompressed learns. The right panel shows what a method adds to that."""


@cache
def recipes() -> dict[str, RunSpec]:
    """The runs of config/long_training.yaml, by name."""
    path = ROOT / "config" / "long_training.yaml"
    return config.load(yaml.safe_load(path.read_text(encoding="utf-8")), path.name).runs


def spec_of(method: str, workers: int, seed: int, steps: int, precision: str) -> RunSpec:
    """The run of config/long_training.yaml, with these workers, this seed and these steps."""
    spec = recipes()[f"accuracy/resnet20-{method}{'' if method == 'none' else f'-{RATIO:g}'}-seed0"]
    training = replace(
        spec.training,
        batch=TOTAL_BATCH // workers,
        train_epochs=steps * TOTAL_BATCH / Cifar10.train_size,
        train_steps=steps,
        seed=seed,
        precision=precision,
    )
    measured = Measurement(evaluations=10, test_samples=2000)
    return replace(spec, training=training, cluster=replace(spec.cluster, workers=workers), measurement=measured)


def name_of(spec: RunSpec) -> str:
    """The name of a run, such as "topk-4workers-seed0"."""
    return f"{spec.variant}-{spec.cluster.workers}workers-seed{spec.training.seed}"


class Report:
    """Shows how far a run is."""

    def __init__(self, title: str):
        self._title = title

    def __call__(self, done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            self.say(f"step {done} of {total}")

    def say(self, text: str) -> None:
        print(f"{self._title}: {text}", flush=True)


class Quiet(Report):
    """The report of a rank that shows nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


def train(spec: RunSpec, data: DataSet, folder: Path, every_s: float) -> dict[str, Any]:
    """The record of a run, which ``folder`` keeps; from there if the run has finished, else from its checkpoint."""
    record = folder / "run.json"
    if record.exists() and (result := json.loads(record.read_text(encoding="utf-8")))["identity"] == identity(spec):
        return result
    settings = LaunchSettings(checkpoints=str(folder / "checkpoints"), checkpoint_every_s=every_s)

    def work(comm) -> dict[str, Any]:
        report = (Quiet if comm.rank else Report)(folder.name)
        return accuracy(spec, comm, copy(data), CPU, report, settings)  # a copy shares the images

    rows = run_workers(spec.cluster.workers, work)[0]
    origin = provenance(spec) | {"network": "no"}
    result = {"identity": identity(spec), "spec": json.loads(spec.to_json()), "provenance": origin}
    result["points"] = points(rows)
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def points(rows: dict[str, Any]) -> list[dict[str, float]]:
    """The points of the curve, with the mean density since the point before and the error in the point's step."""
    steps = pd.DataFrame(rows["iterations"]).set_index("step")
    result, before = [], 0
    for point in rows["points"]:
        step = point["step"]
        own = {"density": steps["density"].loc[before + 1 : step].mean()}
        own["vnmse"] = steps["squared_error"].loc[step] / steps["squared_mean"].loc[step]
        result.append(point | own)
        before = step
    return result


def tidy(records: list[dict[str, Any]]) -> pd.DataFrame:
    """One row for each point of each run."""
    return pd.DataFrame(row for record in records for row in _rows(record))


def _rows(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec, origin = RunSpec.from_dict(record["spec"]), record["provenance"]
    training, workers = spec.training, spec.cluster.workers
    run = {
        "run": name_of(spec),
        "model": training.model,
        "variant": spec.variant,
        "ratio": spec.ratio,
        "workers": workers,
    }
    run |= {"batch": training.batch, "total_batch": training.batch * workers, "seed": training.seed}
    run |= {"precision": training.precision, "engine": "threads", "network": origin["network"]}
    run |= {"machine": origin["machine"], "date": origin["date"][:10], "commit": origin["commit"]}
    for point in record["points"]:
        yield run | point


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """The last point of each run, with ``gap``: test accuracy minus the test accuracy of uncompressed with the same
    number of workers and the same seed, NaN if there is no such run."""
    both = with_uncompressed(last_points(table), "test_accuracy", "workers", "seed")
    return both.assign(gap=both["test_accuracy"] - both["dense"])


def shown(last: pd.DataFrame, names: Names) -> pd.DataFrame:
    """A row for each method, a column for each number of workers."""
    rows = []
    for variant in names.variants_in(last["variant"]):
        row = {"Method": names.variant(variant)}
        for workers in sorted(last["workers"].unique()):
            here = last[(last["variant"] == variant) & (last["workers"] == workers)]
            row[f"{workers} workers of {TOTAL_BATCH // workers}"] = cell(here)
        rows.append(row)
    return pd.DataFrame(rows)


def cell(runs: pd.DataFrame) -> str:
    """Test accuracy in percent and the gap to uncompressed in points: means over seeds, with standard deviations."""
    if runs.empty:
        return "not run"
    text = percent(runs["test_accuracy"], "")
    if (runs["variant"] == "none").all() or runs["gap"].isna().all():
        return text
    return f"{text} ({percent(runs['gap'], '+')})"


def percent(values: pd.Series, sign: str) -> str:
    """The mean in percent, with the standard deviation of several values; ``sign``: "+" shows it always."""
    deviation = f" ± {100 * values.std():.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():{sign}.1f}{deviation}"


def draw(last: pd.DataFrame, names: Names, folder: Path, note: str) -> None:
    """Two panels over the number of workers: test accuracy, and what a method changes of it."""
    figure, panels = style.panels(2, 4.2, 3.2)
    positions = {workers: position for position, workers in enumerate(sorted(last["workers"].unique()))}
    last = last.assign(position=last["workers"].map(positions))
    several = "sd" if last["seed"].nunique() > 1 else None
    labels = {"test_accuracy": "test accuracy (%)", "gap": "points of test accuracy"}
    for axes, (column, label) in zip(panels, labels.items(), strict=True):
        for variant in names.variants_in(last["variant"]):
            rows = last[last["variant"] == variant]
            rows = rows.assign(shown=100 * rows[column])
            look = style.of_variant(variant, names)
            seaborn.lineplot(
                rows, x="position", y="shown", errorbar=several, err_style="bars", legend=False, ax=axes, **look
            )
        axes.set_xticks(list(positions.values()), [str(workers) for workers in positions])
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        style.open_frame(axes)
    panels[0].set_title("after the last step", fontsize=9)
    panels[1].set_title("minus uncompressed with as many workers", fontsize=9)
    style.legend(figure, *panels[0].get_legend_handles_labels())
    files = {kind: folder / f"workers.{kind}" for kind in ("svg", "png")}
    params = SimpleNamespace(caption=CAPTION)
    style.save(figure, note, SimpleNamespace(output=SimpleNamespace(**files), params=params))
    files["png"].unlink()
    plt.close(figure)


def write(records: list[dict[str, Any]], folder: Path) -> None:
    """The table as CSV, the figure, and the page with both."""
    folder.mkdir(parents=True, exist_ok=True)
    table = tidy(records)
    names = Names({method: method_info(method)["title"] for method in METHODS}, {"resnet20": "ResNet-20"})
    table.to_csv(folder / "workers.csv", index=False, float_format="%.6g")
    last, first = ends(table), table.iloc[0]
    note = f"ResNet-20, CIFAR-10, ratio {RATIO:g}, {last['step'].max()} steps of {TOTAL_BATCH} samples in "
    note += f"{first['precision']}; {captions.setting(table)}; {captions.number_of_seeds(table)}"
    draw(last, names, folder, note)
    words = " ".join(CAPTION.split())
    command = f"python bench/workers.py {folder.as_posix()} --steps {last['step'].max()}"
    command += f" --precision {first['precision']}"
    lines = [
        "# More workers at the same total batch",
        f"`{command}` trained these runs. The workers are threads of one process, so this page contains no times.",
        shown(last, names).to_markdown(index=False, disable_numparse=True),
        "Test accuracy in percent after the last step, over the whole test set. In brackets: the difference to "
        f"uncompressed with as many workers, in points. {note}. [Every point of every curve](workers.csv), with the "
        "density and the error of the aggregate.",
        "![Test accuracy by the number of workers](workers.svg)",
        words,
    ]
    (folder / "README.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the table, the figure and the page are written")
    parser.add_argument("--steps", type=int, required=True, help="steps of each run; 782 are an epoch")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="divisors of the total batch, 64")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="by default all of them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="by default 0; a run for each seed")
    precision = "of forward and backward; by default float32"
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help=precision)
    parser.add_argument("--checkpoint-every-s", type=float, default=120, help="seconds between checkpoints; 120")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of cifar10.npz")
    asked = parser.parse_args(arguments)
    if uneven := [n for n in asked.workers if n < 1 or TOTAL_BATCH % n]:
        parser.error(f"--workers: {uneven[0]} does not divide the total batch of {TOTAL_BATCH}; give one that does")
    torch.set_num_threads(1)
    data, records = Cifar10(asked.data, CPU), []
    for seed, workers, method in product(asked.seeds, asked.workers, asked.methods):
        spec = spec_of(method, workers, seed, asked.steps, asked.precision)
        records.append(train(spec, data, RUNS / name_of(spec), asked.checkpoint_every_s))
        write(records, asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
