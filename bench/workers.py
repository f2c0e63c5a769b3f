"""More workers: what 2, 4, 8 and 16 workers do to the accuracy of each method, at the same total batch.

    python bench/workers.py results/reference-workers --steps 1564

Every run trains ResNet-20 with the recipe of the long training runs, whose schedule is scaled to the steps. There may
be more workers than cores, so nothing is timed. A stopped run continues from its last checkpoint, and a finished run is
not repeated. The table, the figure and the page are written after every run.
"""

import argparse
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
import yaml

from dlgs_bench.config import load as config
from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.launch.__main__ import clean_up_when_ended
from dlgs_bench.launch.launcher import launch
from dlgs_bench.launch.remaining import record
from dlgs_bench.plugins import describe
from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import last_points, read_points, with_uncompressed
from dlgs_bench.report.names import Names
from dlgs_bench.spec import LaunchSettings, Measurement, RunSpec

RUNS = Path("results/runs/workers")
COLUMNS = ("run", "model", "variant", "ratio", "workers", "batch", "total_batch", "seed", "precision", "engine")
COLUMNS += ("network", "machine", "date", "commit", "epoch", "step", "sent_bytes", "train_loss", "train_accuracy")
COLUMNS += ("test_loss", "test_accuracy", "density", "vnmse")
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


def train(spec: RunSpec, folder: Path, settings: LaunchSettings) -> None:
    """Write the files of a run to ``folder``, unless the finished run is there. SystemExit if it fails."""
    if record(folder, spec) and (folder / "points.csv").exists():
        return
    if status := launch(spec, settings, folder, folder.with_name(f"{folder.name}.log")):
        sys.exit(status)


def tidy(folders: list[Path]) -> pd.DataFrame:
    """One row for each point of each run."""
    points = read_points([folder / "points.csv" for folder in folders])
    points = points.assign(total_batch=points["batch"] * points["workers"])
    return points.assign(vnmse=points["squared_error"] / points["squared_mean"])[list(COLUMNS)]


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
            look = style.of_variant(variant, names)
            for _, rows in last[last["variant"] == variant].groupby("precision"):  # no line joins two precisions
                shown = rows.assign(shown=100 * rows[column])
                seaborn.lineplot(
                    shown, x="position", y="shown", errorbar=several, err_style="bars", legend=False, ax=axes, **look
                )
        axes.set_xticks(list(positions.values()), [str(workers) for workers in positions])
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        style.open_frame(axes)
    panels[0].set_title("after the last step", fontsize=9)
    panels[1].set_title("minus uncompressed with as many workers", fontsize=9)
    style.legend_of(figure, panels)
    files = {kind: folder / f"workers.{kind}" for kind in ("svg", "png")}
    params = SimpleNamespace(caption=CAPTION)
    style.save(figure, note, SimpleNamespace(output=SimpleNamespace(**files), params=params))
    files["png"].unlink()
    plt.close(figure)


def write(table: pd.DataFrame, folder: Path) -> None:
    """The table of all points as CSV, the figure, and the page with both."""
    folder.mkdir(parents=True, exist_ok=True)
    names = Names({method: describe("methods", method)["title"] for method in METHODS}, {"resnet20": "ResNet-20"})
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
        f"`{command}` trained these runs. Workers share the machine's cores, so this page contains no times.",
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
    clean_up_when_ended()
    settings = LaunchSettings(data_root=str(asked.data), checkpoint_every_s=asked.checkpoint_every_s)
    folders = []
    for seed, workers, method in product(asked.seeds, asked.workers, asked.methods):
        spec = spec_of(method, workers, seed, asked.steps, asked.precision)
        folders.append(RUNS / name_of(spec))
        train(spec, folders[-1], settings)
        write(tidy(folders), asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
