"""The report: every table and figure is made for any models and variants."""

import gzip
import json
import math
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from report_runs import CLUSTER, LAYERS, MODELS, VARIANTS, Runs, describe
from support import script_module

from dlgs_bench import checksums, plugins, result_set
from dlgs_bench.paper import claims
from dlgs_bench.report import captions, sessions, style, tables
from dlgs_bench.report.load_runs import ABOUT, read
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import summarise
from dlgs_bench.spec import RunSpec, Scheme, Training
from dlgs_bench.timemodel import predict
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.planner import adaptive_ratios, planners
from dlgs_bench.timemodel.plans import planned
from dlgs_bench.timemodel.timeline import schedule

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
VERDICTS = {claims.HOLDS, claims.FAILS, claims.UNKNOWN}
CAPTION = "A caption.\nOn two lines."
CURVE = runpy.run_path(str(ROOT / "workflow" / "scripts" / "curve.py"))
MAP = runpy.run_path(str(ROOT / "workflow" / "studies" / "map" / "figure.py"))


class Items(list):
    """Files of a rule, by position and by name, as in Snakemake."""

    def __init__(self, *files, **named):
        every = [file for one in (*files, *named.values()) for file in (one if isinstance(one, list) else [one])]
        super().__init__(every)
        self.__dict__ |= named

    def get(self, name: str):
        return self.__dict__.get(name)


def run_script(path: str, inputs: Items, outputs: Items, folder: Path, **params) -> None:
    """Run a script of the workflow with these files and parameters; its log is written to ``folder``."""
    params = SimpleNamespace(**{"caption": CAPTION} | params)
    rule = SimpleNamespace(input=inputs, output=outputs, params=params, log=[folder / "log"])
    runpy.run_path(str(ROOT / "workflow" / path), {"snakemake": rule}, run_name="__main__")


class Report:
    """Runs scripts on made-up runs; ``files``: what they wrote, by name."""

    def __init__(self, folder: Path, models: tuple[str, ...]):
        self.folder, self.runs = folder, Runs(folder / "runs", models)

    def script(self, path: str, inputs: Items, outputs: Items, **params) -> None:
        run_script(path, inputs, outputs, self.folder, **self.runs.titles | params)

    def table(self, path: str, name: str, params=(), **inputs) -> tuple[pd.DataFrame, str]:
        """Every row of a table, and its Markdown."""
        files = {ext: self.folder / f"{name}.{ext}" for ext in ("csv", "md", "tex", "html")}
        self.script(path, Items(**inputs), Items(**files), **dict(params))
        assert all(file.stat().st_size for file in files.values())
        return pd.read_csv(files["csv"]), files["md"].read_text()

    def planners(self, inputs: dict) -> tuple[pd.DataFrame, str]:
        """The table of planners, which also writes its tidy table."""
        files = {ext: self.folder / f"planners.{ext}" for ext in ("csv", "md", "tex", "html")}
        timing = self.folder / "planners_timing.csv"
        self.script("studies/planners/table.py", Items(**inputs), Items(**files, timing=timing))
        return pd.read_csv(files["csv"]), files["md"].read_text()

    def figure(self, path: str, name: str, inputs: Items, **params) -> str:
        """All text of a figure, which its SVG holds in comments."""
        files = {ext: self.folder / f"{name}.{ext}" for ext in ("svg", "png", "csv")}
        self.script(path, inputs, Items(**files), **params)
        plt.close("all")
        assert files["png"].stat().st_size
        svg = files["svg"].read_text()
        text = " ".join(re.findall(r"<!-- (.*?) -->", svg))
        assert "n\u00a0=\u00a0" in text and "n = " not in text  # no line ends in it
        assert "<dc:description>A caption. On two lines.</dc:description>" in svg
        text = text.replace("\u00a0", " ")
        assert "a machine of 2 cores" in text
        return text

    def collect(self) -> dict[str, Path]:
        files = {name: self.folder / f"{name}.{ext}" for name, ext in
                 (("accuracy", "csv"), ("timing", "csv"), ("provenance", "json"))}  # fmt: skip
        inputs = {"accuracy": self.runs.every("accuracy", "points.csv")}
        inputs["timing"] = self.runs.every("timing", "iterations.csv")
        self.script("scripts/collect.py", Items(**inputs), Items(**files))
        return files

    def calibration_files(self, run: Path) -> dict[str, Path]:
        layers = self.runs.root / "layers" / RunSpec.from_dict(spec_of(run)).training.model
        files = {name: layers / f"{name}.csv" for name in ("layers", "iterations")}
        return files | {"samples": self.runs.root / "exchanges" / run.name / "samples.csv"}

    def plan(self, run: Path) -> Path:
        inputs = Items(**self.calibration_files(run))
        path = self.folder / "plans" / f"{run.name}.json"
        path.parent.mkdir(exist_ok=True)
        self.script("scripts/plan.py", inputs, Items(path), spec=json.dumps(spec_of(run)), cost="amortised")
        return path


def spec_of(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())["spec"]


@pytest.fixture(scope="module", params=["one model", pytest.param("two models", marks=pytest.mark.slow)])
def report(request, tmp_path_factory):
    stderr = sys.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "describe", describe)
        models = ("transformer",) if request.param == "one model" else ("resnet50", "transformer")
        made = Report(tmp_path_factory.mktemp("report"), models)
        for make in (made.runs.calibrate, made.runs.time, made.runs.train, made.runs.intervals):
            make()
        made.tidy = made.collect()
        yield made
    sys.stderr = stderr


@pytest.fixture(autouse=True)
def _complaints(monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log


def in_order(markdown: str, titles) -> bool:
    """Whether these words first come in this order."""
    places = [markdown.index(f"| {title} ") for title in titles]
    return places == sorted(places)


ANSWER = runpy.run_path(str(ROOT / "workflow" / "scripts" / "answer.py"))


@pytest.mark.parametrize(
    "speedup_high, disturbed, gains, pays",
    [
        ([0.98, 0.99], None, False, "no"),
        ([0.98, 1.15], None, False, "no significant difference"),  # the second method may gain
        ([0.98, math.nan], None, False, "no significant difference"),
        ([0.98, 0.99], "other work", False, "no significant difference"),  # the second method was not judged
        ([1.2, 0.9], None, True, "yes"),
    ],
)
def test_compression_does_not_pay_if_every_method_is_significantly_slower(speedup_high, disturbed, gains, pays):
    rows = pd.DataFrame({"speedup_high": speedup_high, "enough": True, "model": "vgg16", "batch": 32, "blocks": 9})
    rows["disturbed"] = [None, disturbed]
    assert ANSWER["verdict"](rows.iloc[0], gains, rows) == pays


def test_only_seeds_of_the_longest_training_count_for_the_accuracy():
    """Seed 0 trained for 30 epochs and seed 1 for 2."""
    rows = [("dlgs", 0, 30, 0.92), ("none", 0, 30, 0.93), ("dlgs", 1, 2, 0.45), ("none", 1, 2, 0.60)]
    points = pd.DataFrame(rows, columns=["variant", "seed", "epoch", "train_accuracy"])
    points = points.assign(model="vgg16", ratio=0.01, step=points["epoch"], run=range(4), stand_in=False)
    found = ANSWER["accuracy_cost"]({"model": "vgg16", "variant": "dlgs", "ratio": 0.01}, [points])
    assert found["accuracy_cost"] == pytest.approx(-0.01) and found["accuracy_seeds"] == 1


def test_the_answer_has_a_row_for_every_model_with_its_method_break_even_and_accuracy(report):
    calibration = [file for kind in ("layers", "exchanges") for file in report.runs.every(kind, "run.json")]
    kept = report.folder / "kept.csv"
    points = pd.read_csv(report.tidy["accuracy"])
    longer = points[points["seed"] == 0].assign(epoch=points["epoch"] * 5)
    longer.assign(run=longer["run"] + "-kept").to_csv(kept, index=False)
    equal = report.folder / "equal.csv"  # as long as the own training, whose accuracy counts
    points.assign(run=points["run"] + "-kept", train_accuracy=0.0).to_csv(equal, index=False)
    inputs = {"timing": report.tidy["timing"], "calibration": calibration, "rates": []}
    own_cost = None
    for kept_files, epochs, seeds in (([], 2, 2), ([str(equal)], 2, 2), ([str(equal), str(kept)], 10, 1)):
        named = inputs | {"accuracy": report.tidy["accuracy"], "kept": kept_files, "sessions": []}
        table, shown = report.table("scripts/answer.py", "answer", **named)
        assert sorted(table["model"]) == sorted(report.runs.models)
        assert set(table["pays"][table["model"] != "resnet50"]) <= {"yes", "no", "no significant difference"}
        assert set(table["pays"][table["model"] == "resnet50"]) <= {"batch 32, paper 64: no verdict"}
        assert set(table["accuracy_epochs"]) == {epochs} and set(table["accuracy_seeds"]) == {seeds}
        assert set(table["accuracy_kept"]) == {seeds == 1}
        own_cost = table["accuracy_cost"].tolist() if own_cost is None else own_cost
        assert seeds == 1 or table["accuracy_cost"].tolist() == own_cost != [0.0] * len(table)
        assert (table["break_even_mbit"] > 0).all() and "none" not in set(table["variant"])
        ends = table[["break_even_low_mbit", "break_even_mbit", "break_even_high_mbit"]].to_numpy()
        assert (ends[:, :-1] <= ends[:, 1:]).all()
        learnt = f"points after {epochs} epochs" if seeds > 1 else f"not ranked: one seed, {epochs} epochs"
        assert learnt in shown and "batch 32" in shown
        assert ("early in training" in shown) == (seeds > 1)
    changed = {"changed": [name for name in VARIANTS if name != "none"]}  # the kept run had other parameters
    table, _ = report.table("scripts/answer.py", "answer", changed, **named)
    assert set(table["accuracy_epochs"]) == {2} and not table["accuracy_kept"].any()
    slower = table.set_index("model")["break_even_mbit"]
    rates = []
    for model in report.runs.models:
        for workers, mbit in ((2, 100.0), (3, 70.0)):  # the rows are of 2 workers
            rates.append(report.folder / f"{model}-{workers}workers.json")
            rate = {"model": model, "nodes": {"link_mbit": 50_000.0}, "proportional_mbit": mbit}
            rates[-1].write_text(json.dumps(rate))
    few = report.folder / "few.csv"  # less than an epoch does not count as training
    points.assign(epoch=points["epoch"] * 0.4).to_csv(few, index=False)
    table, shown = report.table(
        "scripts/answer.py", "answer", **inputs | {"rates": rates, "accuracy": few}, kept=[], sessions=[]
    )
    assert table.set_index("model")["break_even_mbit"].to_numpy() == pytest.approx(500 * slower.to_numpy(), rel=1e-5)
    assert "not trained" in shown and "points after" not in shown
    host = report.folder / "host.csv"  # the latency of the host's own network is not known
    pd.read_csv(report.tidy["timing"]).assign(latency_ms=float("nan")).to_csv(host, index=False)
    named = inputs | {"timing": host, "accuracy": few}
    table, _ = report.table("scripts/answer.py", "answer", **named, kept=[], sessions=[])
    assert (table["break_even_mbit"] > 0).all()


def test_the_answer_names_the_methods_that_are_not_significantly_slower_than_the_best(report):
    """Runs of one method are copied to two others: one is as fast in every block, the other takes twice as long."""
    timing = pd.read_csv(report.tidy["timing"])
    own = timing[(timing["model"] == report.runs.models[-1]) & (timing["topology"] == "allgather")]
    first = own[own["variant"] != "none"]["run"].iloc[0]
    rows, dense = own[own["run"] == first], own[own["variant"] == "none"]
    timed = rows["timed"] == rows["variant"]
    fast = rows.assign(iteration_s=rows["iteration_s"].where(~timed, rows["iteration_s"] / 8))
    copies = {
        "topk": fast,
        "lags": fast,
        "dlgs": fast.assign(iteration_s=fast["iteration_s"].where(~timed, fast["iteration_s"] * 2)),
    }
    renamed = [
        copy.assign(run=name, variant=name, timed=copy["timed"].where(~timed, name)) for name, copy in copies.items()
    ]
    pd.concat([dense, *renamed]).to_csv(path := report.folder / "as-fast.csv", index=False)
    inputs = {"timing": path, "calibration": [], "rates": [], "accuracy": report.tidy["accuracy"]}
    table, _ = report.table("scripts/answer.py", "answer", **inputs, kept=[], sessions=[])
    assert table["variant"].tolist() == ["topk"] and table["as_fast"].tolist() == [
        "LAGS, ratio 0.01: 1.00 [1.00, 1.00]"
    ]


@pytest.mark.parametrize(("why", "verdict"), [("disturbed", "every run was disturbed"), ("few", "n is below 3")])
def test_a_model_without_enough_undisturbed_blocks_has_an_answer_without_a_verdict(report, why, verdict):
    model, timing = report.runs.models[0], pd.read_csv(report.tidy["timing"])
    here = timing["model"] == model
    if why == "disturbed":
        timing["disturbed"] = timing["disturbed"].astype(object).where(~here, "other work")
    else:
        timing = timing[~here | (timing["block"] <= 2)]
    timing.to_csv(path := report.folder / f"{why}.csv", index=False)
    calibration = [file for kind in ("layers", "exchanges") for file in report.runs.every(kind, "run.json")]
    inputs = {"timing": path, "calibration": calibration, "rates": [], "accuracy": report.tidy["accuracy"]}
    table, shown = report.table("scripts/answer.py", "answer", **inputs, kept=[], sessions=[])
    pays = table.set_index("model")["pays"]
    (row,) = (line for line in shown.splitlines() if f"not judged: {verdict}" in line)
    assert "none (largest" not in row
    assert sorted(table["model"]) == sorted(report.runs.models)
    assert (pays == f"not judged: {verdict}").equals(pays.index.to_series() == model)


def test_the_papers_tables_name_every_variant_in_the_configurations_order(report):
    table, shown = report.table("scripts/table1.py", "table1", accuracy=report.tidy["accuracy"], kept=[])
    assert len(table) == len(report.runs.models) * len(VARIANTS) and set(table["seeds"]) == {2}
    assert in_order(shown, (title for title, *_ in VARIANTS.values()))
    assert table["density"].to_numpy() == pytest.approx(0.0955)  # of the steps 91 to 100
    assert table["bits_per_entry"].to_numpy() == pytest.approx(8e5 / sum(LAYERS), rel=1e-4)
    assert set(table["vnmse"]) == {0.25}
    low, mean, high = (table[f"train_loss{end}"] for end in ("_low", "", "_high"))
    assert (low < mean).all() and (mean < high).all() and f"{mean[0]:.2f} [{low[0]:.2f}, {high[0]:.2f}]" in shown
    assert "A caption. On two lines. a machine of 2 cores; loopback network; horovod, 2 workers; 2026-01-01, " in shown
    assert f"too short to rank the variants: {', '.join(report.runs.titles['models'].values())}." in shown
    table, shown = report.table("scripts/table2.py", "table2", timing=report.tidy["timing"])
    assert len(table) == len(report.runs.every("timing", "iterations.csv")) == table["run"].nunique()
    assert in_order(shown, report.runs.titles["models"].values()) and "server, weights" in shown
    assert "testbed network, 500 Mb/s links (measured 480)" in shown and "n = 3 blocks" in shown
    assert (table["epoch_s"] / table["iteration_s"]).to_numpy() == pytest.approx(
        10
    )  # 640 samples, 2 workers, batches of 32


def test_seeds_of_one_method_share_a_row_wherever_they_ran(report):
    points, moved = pd.read_csv(report.tidy["accuracy"]), report.folder / "elsewhere.csv"
    other = points["seed"] == points["seed"].max()
    words = {"machine": "another machine", "disturbed": "other work"}
    points.assign(**{key: points[key].mask(other, text) for key, text in words.items()}).to_csv(moved, index=False)
    table, shown = report.table("scripts/table1.py", "moved", accuracy=moved, kept=[])
    assert len(table) == len(report.runs.models) * len(VARIANTS) and set(table["seeds"]) == {2}
    assert set(table["machine"]) == {f"{points['machine'].iloc[0]} / another machine"}
    assert set(table["disturbed"]) == {"other work"} and "another machine" in shown
    table, _ = report.table("scripts/table1.py", "moved-kept", accuracy=report.tidy["accuracy"], kept=[moved])
    assert set(table["seeds"]) == {2} and table["kept"].str.contains(" / another machine").any()


@pytest.mark.parametrize("value, label", [
    ("train_accuracy", "training accuracy (%)"), pytest.param("train_loss", "training loss", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_curve_has_a_line_for_each_variant(report, value, label):
    model, inputs = report.runs.models[-1], Items(tidy=report.tidy["accuracy"], kept=[])
    text = report.figure("scripts/curve.py", value, inputs, model=model, value=value)
    assert label in text and MODELS[model] in text and "learning rate falls" in text
    assert all(variant in text for variant, *_ in VARIANTS.values())


def test_a_model_of_text_has_a_perplexity_and_no_other_model_has(report):
    table, shown = report.table("scripts/table1.py", "perplexity", accuracy=report.tidy["accuracy"], kept=[])
    points = pd.read_csv(report.tidy["accuracy"])
    last = points[(points["model"] == "transformer") & (points["step"] == points["step"].max())]
    expected = np.exp(last["test_loss"]).groupby(last["variant"]).mean()
    rows = table[table["model"] == "transformer"].set_index("variant")
    assert rows["test_perplexity"].to_dict() == pytest.approx(expected.to_dict(), rel=1e-4)
    assert table.loc[table["model"] != "transformer", "test_perplexity"].isna().all()
    assert "| Test perplexity " in shown and "exponential of the test loss" in shown
    metadata = {"model": "transformer", "value": "test_perplexity"}
    text = report.figure("scripts/curve.py", "perplexity", Items(tidy=report.tidy["accuracy"], kept=[]), **metadata)
    assert "test perplexity" in text and all(variant in text for variant, *_ in VARIANTS.values())
    assert "per token" in text and "(lower is better)" in text
    table, shown = report.table("scripts/perplexity.py", "of-text", accuracy=report.tidy["accuracy"])
    assert set(table["model"]) == {"transformer"} and set(table["seeds"]) == {2}
    by_seed = np.exp(last.set_index(["variant", "seed"])["test_loss"]).unstack()
    against = (by_seed / by_seed.loc["none"]).mean(axis=1)
    assert table.set_index("variant")["against"].to_dict() == pytest.approx(against.to_dict(), rel=1e-4)
    assert "per token" in shown and "| Against uncompressed " in shown
    of_text = points[points["model"] == "transformer"]
    lowest = np.exp(of_text.groupby(["variant", "seed"])["test_loss"].min()).unstack()
    against = (lowest / lowest.loc["none"]).mean(axis=1)
    assert table.set_index("variant")["best_against"].to_dict() == pytest.approx(against.to_dict(), rel=1e-4)
    assert (table["best_perplexity"] <= table["test_perplexity"]).all() and "| Best epoch " in shown


def test_a_curve_has_a_line_for_each_ratio(report):
    points, model = pd.read_csv(report.tidy["accuracy"]), report.runs.models[0]
    lower = points[points["ratio"].notna()].assign(ratio=0.01, run=points["run"] + "-0.01", train_loss=0.0)
    both = report.folder / "two-ratios.csv"
    pd.concat([points, lower]).to_csv(both, index=False)
    metadata = {"model": model, "value": "train_loss"}
    text = report.figure("scripts/curve.py", "two-ratios", Items(tidy=both, kept=[]), **metadata)
    assert all(f"DLGS, ratio {ratio}" in text for ratio in (0.1, 0.01)) and "uncompressed, ratio" not in text


def test_a_curve_shows_the_difference_to_uncompressed_at_the_same_step_with_the_same_seed():
    rows = [
        {"variant": variant, "seed": seed, "step": step, "epoch": step, "train_loss": loss * step + 10 * seed}
        for variant, loss in (("none", 1.0), ("topk", 1.5)) for seed in (0, 1) for step in (1, 2)
    ]  # fmt: skip
    points = pd.DataFrame([*rows, rows[-1] | {"step": 3}])  # a step without uncompressed
    differences = CURVE["minus_uncompressed"](points, "train_loss")
    assert list(differences["train_loss"]) == [0.5, 1.0, 0.5, 1.0] and set(differences["variant"]) == {"topk"}
    assert CURVE["minus_uncompressed"](points[points["variant"] != "none"], "train_loss").empty


def test_the_learning_rate_is_marked_at_the_epochs_of_a_shortened_recipe():
    points = pd.DataFrame({"epoch": [1, 2, 3], "epochs": 30, "train_epochs": 3, "seed": 0, "ratio": 0.1})
    points = points.assign(variant="topk", train_loss=1.0)
    for epochs, marks in ((30, [2.0]), (140, [])):  # runs of another recipe are not marked
        axes = plt.figure().add_subplot()
        CURVE["draw"](axes, points, "train_loss", Names({}, {}), {"epochs": epochs, "lr_steps": [20, 40]})
        assert [line.get_xdata()[0] for line in axes.lines if line.get_label() == "learning rate falls"] == marks
        plt.close("all")


def test_the_papers_claims_are_all_in_the_table(report):
    tidy = {kind: report.tidy[kind] for kind in ("timing", "accuracy")}
    table, shown = report.table("scripts/claims.py", "claims", planners=[], kept=[], methods=[], **tidy)
    assert set(table["statement"]) >= set(claims.TIMED) - {claims.ON_VGG16} and set(table["verdict"]) <= VERDICTS
    assert "| DLGS trains faster than LAGS" in shown and "a machine of 2 cores" in shown
    assert "kept run" not in shown.lower()
    kept = report.folder / "kept-claims.csv"
    pd.read_csv(tidy["accuracy"]).assign(train_epochs=80, commit="c0ffee").to_csv(kept, index=False)
    _, shown = report.table("scripts/claims.py", "claims-kept", planners=[], kept=[str(kept)], methods=[], **tidy)
    assert claims.SHORT not in shown and "kept run: uncompressed divided by DLGS" in shown
    assert "Kept run: an accuracy run" in shown and "c0ffee" in shown
    named = {"planners": [], "kept": [str(kept)], "methods": []} | tidy
    table, _ = report.table("scripts/claims.py", "claims-changed", {"changed": ["dlgs"]}, **named)
    of_kept = table[table["which"].str.startswith("kept run", na=False) & table["value"].notna()]
    assert len(of_kept) and not of_kept["which"].str.contains("dlgs").any()  # the kept run had other parameters
    stand_in = pd.read_csv(kept).assign(stand_in=True, data_title="Other data")
    stand_in.to_csv(kept, index=False)
    _, shown = report.table("scripts/claims.py", "claims-stand-in", **named)
    assert "kept run: Other data (stand-in), uncompressed divided by DLGS" in shown


@pytest.mark.slow
def test_the_kept_table_2_shows_the_range_over_the_sessions_that_are_kept():
    """It becomes stale when a session is added and the table is not made again."""
    folder = ROOT / "results" / "reference"
    table = pd.read_csv(folder / "table2.csv")
    patterns = ("reference-again/*timing.csv*", "reference-long-training/stall/timing.csv*", "reference/timing.csv*")
    files = [file for pattern in patterns for file in (ROOT / "results").glob(pattern)]
    kept = sessions.kept_speedups(files, table["model"].unique(), Names({}, {}))
    own = summarise(pd.read_csv(next(folder.glob("timing.csv*"))))
    again = sessions.over_sessions(own, kept).set_index("run").loc[table["run"], sessions.RANGE]
    assert again.to_numpy() == pytest.approx(table[sessions.RANGE].to_numpy(), rel=1e-4)


def test_statements_about_methods_that_were_not_run_here_are_judged_by_kept_short_runs(report):
    """Of a kept set of all methods, the runs of the paper's methods do not count."""
    points = pd.read_csv(report.tidy["accuracy"])
    own = points[points["variant"] == "dlgs"]
    methods = pd.concat([own, own.assign(variant="gaussiank", run=own["run"] + "g", train_epochs=0.4)])
    methods.assign(commit="c0ffee").to_csv(path := report.folder / "kept-methods.csv", index=False)
    tidy = {kind: report.tidy[kind] for kind in ("timing", "accuracy")}
    table, shown = report.table("scripts/claims.py", "claims", planners=[], kept=[], methods=[str(path)], **tidy)
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in shown.splitlines() if line.startswith("|")]
    assert list(claims.in_short(table).items()) == [tuple(row) for row in cells[2:] if row[0]]
    kept_rows = table[table["which"].fillna("").str.startswith("kept run")]
    assert set(kept_rows["statement"].str.partition("'")[0]) == {"Gaussian-K"} and "0.4 of" in shown
    assert "no run of sidco" in set(table["why"]) and "no run of gaussiank" not in set(table["why"])


def test_latex_numbers_its_tables_itself_and_keeps_them_on_the_page(report):
    report.table("scripts/table2.py", "latex2", timing=report.tidy["timing"])
    wide = (report.folder / "latex2.tex").read_text()
    assert "\\begin{sidewaystable}" in wide and "\\resizebox" in wide and "\\caption{A caption." in wide
    assert tables.latex(pd.DataFrame({"a": ["1"]}), "Table 3: words, n = 6 %").count("Table") == 0
    narrow = tables.latex(pd.DataFrame({"a": ["1"]}), "Table 3: words, n = 6 %")
    assert "\\begin{table}" in narrow and "\\caption{Words, n~=~6~\\%.}" in narrow
    text = tables.latex(pd.DataFrame({"a": ["1"], "b": ["word " * 40]}), "Claims.")
    assert "\\begin{longtable}" in text and "p{" in text and text.count("Claims.") == 1  # not on every page


def test_a_breakdown_has_a_bar_for_each_run_and_marks_a_disturbed_one_as_the_table_does(report):
    timing, model = pd.read_csv(report.tidy["timing"]), report.runs.models[-1]
    first = timing["run"] == timing.loc[timing["model"] == model, "run"].iloc[0]
    words = "other work took 29% of the machine"
    marked = report.folder / "marked.csv"
    timing.assign(disturbed=first.map({True: words, False: None})).to_csv(marked, index=False)
    _, shown = report.table("scripts/table2.py", "marked-table", timing=marked)
    assert shown.count(words) == 1
    text = report.figure("scripts/breakdown.py", "breakdown", Items(tidy=marked), model=model)
    assert text.count("disturbed") == 2 and "; disturbed: by other work" in text.replace("\n", " ")  # and the note
    assert "Top-K, ratio 0.01" in text and text.count(" ms ") == len(re.findall(r"×\d", text)) == 2 * (4 + 2 * 5)
    assert "all-gather, 2 workers" in text and "server, weights, 2 workers" in text  # a panel each
    assert "DLGS, s = 32, ratio 0.1" in text


def test_every_table_marks_rows_of_disturbed_runs(tmp_path):
    full = pd.DataFrame({"model": ["a", "b"], "disturbed": [float("nan"), "other work took 29 %"]})
    files = SimpleNamespace(**{ext: tmp_path / f"t.{ext}" for ext in ("csv", "md", "tex", "html")})
    for rows, marked in ((full, True), (full[:1], False), (full.drop(columns="disturbed"), False)):
        tables.save_table(rows, rows[["model"]], "Words.", files)
        for file in (files.md, files.tex, files.html):
            assert file.read_text().count("other work") == marked == file.read_text().count("Disturbed")


@pytest.mark.parametrize("blocks", [1, 2])
def test_few_blocks_are_drawn_and_described_without_an_interval(report, blocks):
    timing, model = pd.read_csv(report.tidy["timing"]), report.runs.models[-1]
    tidy = report.folder / "few-blocks.csv"
    few = sorted(timing["block"].unique())[:blocks]
    assert timing["block"].nunique() > 2
    texts, whiskers = [], []
    for kept in (timing, timing[timing["block"].isin(few)]):
        kept.to_csv(tidy, index=False)
        texts.append(report.figure("scripts/breakdown.py", "few-blocks", Items(tidy=tidy), model=model))
        whiskers.append((report.folder / "few-blocks.svg").read_text().count("LineCollection"))
    why = "none, because there are too few blocks or launches"
    assert [why in text for text in texts] == [False, True]
    assert f"n = {blocks} block{'s' * (blocks > 1)}," in texts[1]
    assert whiskers[0] > 0 and whiskers[1] == 0


@pytest.mark.slow
def test_prediction_finds_the_calibration_of_every_run(report):
    inputs = {"timing": report.runs.every("timing", "groups.csv"), "layers": report.runs.every("layers", "layers.csv")}
    inputs["samples"] = report.runs.every("exchanges", "samples.csv")
    table, _ = report.table("studies/prediction/table.py", "prediction", **inputs)
    assert len(table) == len(inputs["timing"]) and table["predicted_s"].gt(0).all()
    text = report.figure("studies/prediction/figure.py", "prediction-figure", Items(report.folder / "prediction.csv"))
    assert all(variant in text for variant, *_ in VARIANTS.values())
    named = re.findall(f"(?:{'|'.join(MODELS.values())}), (?:all-gather|server, weights)", text)  # the two worst
    assert len(named) in (1, 2) and len(set(named)) == len(named)


def test_a_prediction_is_for_the_rate_that_the_links_of_the_run_had(report, tmp_path):
    run = report.runs.root / "timing" / f"{report.runs.models[0]}-none-allgather"
    slow = shutil.copytree(run, tmp_path / "slow")
    pd.read_csv(slow / "iterations.csv").assign(slowdown=2.0).to_csv(slow / "iterations.csv", index=False)
    inputs = {"layers": report.runs.every("layers", "layers.csv")}
    inputs["samples"] = report.runs.every("exchanges", "samples.csv")
    usual, slower = (
        report.table("studies/prediction/table.py", "slow", timing=[one / "groups.csv"], **inputs)[0].loc[
            0, "predicted_communication_s"
        ]
        for one in (run, slow)
    )
    on_link_s = 4 * sum(LAYERS) / (500e6 / 8)  # in one bucket, of which each of two workers sends and receives as much
    latency_s, turn_s = 1e-3, on_link_s + 2e-4  # of these samples; a latency stays the same part of its turn
    assert slower - usual == pytest.approx(on_link_s * (1 + latency_s / turn_s), rel=0.01)


@pytest.mark.parametrize(("streams", "sent", "predicted"), [(True, 0.8, 0), (False, 0.4, 1), (False, 0.2, 0)])
def test_a_run_that_sent_other_bytes_than_its_calibration_is_not_predicted(report, tmp_path, streams, sent, predicted):
    """``sent``: as a multiple of the calibration's bytes."""
    name = f"{report.runs.models[0]}-none-allgather"
    for kind in ("timing", "exchanges"):
        folder = shutil.copytree(report.runs.root / kind / name, tmp_path / kind)
        run = json.loads((folder / "run.json").read_text())
        if streams:
            run["spec"]["scheme"] |= {"collective": "omnireduce", "streams": {"block": 256}}
        (folder / "run.json").write_text(json.dumps(checksums.signed(run)))
    path, bytes_calibrated = tmp_path / "timing" / "iterations.csv", 4 * sum(LAYERS)
    pd.read_csv(path).assign(sent_bytes=sent * bytes_calibrated).to_csv(path, index=False)
    inputs = {"timing": [tmp_path / "timing" / "groups.csv"], "samples": [tmp_path / "exchanges" / "samples.csv"]}
    inputs["layers"] = report.runs.every("layers", "layers.csv")
    table, shown = report.table("studies/prediction/table.py", "streams", **inputs)
    warning = f"not predicted: sent {sent * 1e-6 * bytes_calibrated:.3g} MB, calibrated with "
    warning += f"{1e-6 * bytes_calibrated:.3g} MB"
    assert table["predicted_s"].count() == predicted and (warning in shown) != predicted and "nan" not in shown
    report.figure("studies/prediction/figure.py", "streams-figure", Items(report.folder / "streams.csv"))


def test_errors_leave_disturbed_runs_out():
    table = pd.DataFrame({"error": [0.1, -0.2, 0.9], "disturbed": [None, None, "other work"]})
    assert captions.off(table, "error") == "median 15 %, worst 20 %"
    assert captions.off(table.drop(columns="disturbed"), "error") == "median 20 %, worst 90 %"
    assert captions.off(table[2:], "error") == "not known, n = 0"


def test_the_planners_are_shown_for_every_run_that_has_a_plan(report):
    runs = [Path(run).parent for run in report.runs.every("timing", "run.json") if "-dlgs-0.1-" in run]
    plans = {report.plan(run): RunSpec.from_dict(spec_of(run)) for run in runs}
    for run, (path, spec) in zip(runs, plans.items(), strict=True):
        plan, calibration = json.loads(path.read_text()), predict.read(**report.calibration_files(run), spec=spec)
        groups_of = {}
        for name, planner in planners(spec.scheme.bucket_bytes // 4).items():
            groups = planner(calibration.sizes, calibration.costs)
            groups_of[name] = [list(group) for group in groups]
            iteration_s = schedule(calibration.sizes, calibration.costs, groups).iteration_s + calibration.rest_s
            assert plan["comparison"][name]["iteration_s"] == pytest.approx(iteration_s)
        assert plan["groups"] == groups_of["paper"] != groups_of["all"]
    report.runs.time_planners(plans)
    inputs = {"timing": report.runs.every("planners", "iterations.csv"), "plans": sorted(map(str, plans))}
    table, shown = report.planners(inputs)
    assert len(table) == 7 * len(runs) and table["predicted_above_exact"].ge(0).all()
    # The faster of two ways of merging uncompressed layers is the baseline, and every interval can be recomputed.
    assert set(table["dense"]) == {"none-256kib"} and ", 256kib" in shown
    tidy = pd.read_csv(report.folder / "planners_timing.csv")
    assert {"run", "timed", "iteration_s", "machine"} <= set(tidy) and tidy["run"].nunique() == len(runs)
    assert set(table["blocks"]) == {tidy["block"].nunique()}
    assert (table["speedup"] < 1.2).all()
    quotients = table[[f"ratio_to_exact{end}" for end in ("", "_low", "_high")]]
    assert (quotients[table["planner"] == "exact"] == 1).all(axis=None) and (quotients != 1).any(axis=None)
    text = report.figure("studies/planners/figure.py", "planners-figure", Items(report.folder / "planners.csv"))
    assert all(f"{MODELS[model]}, DLGS, ratio 0.1, all-gather" in text for model in report.runs.models)


def test_a_plan_is_the_same_twice_and_gives_a_method_what_it_takes(report):
    root, model = report.runs.root / "timing", report.runs.models[0]
    first, again = (report.plan(root / f"{model}-dlgs-0.1-allgather").read_text() for _ in range(2))
    assert first == again
    groups, ratios = (json.loads(first)[key] for key in ("groups", "ratios"))
    assert groups[-1][1] == len(LAYERS) and ratios == []
    spec = RunSpec.from_dict(spec_of(root / f"{model}-dlgs-0.1-allgather"))
    assert planned(spec, json.loads(first)).scheme.groups == tuple(map(tuple, groups))
    run = root / f"{model}-adaptive-0.1-allgather"
    adaptive = json.loads(report.plan(run).read_text())
    assert len(adaptive["groups"]) == len(adaptive["ratios"]) == len(LAYERS) and adaptive["plan"] == "ratios"
    own = predict.read(**report.calibration_files(run), spec=RunSpec.from_dict(spec_of(run)))
    assert adaptive["ratios"] == pytest.approx(adaptive_ratios(own.sizes, own.costs, 0.1))
    assert len(set(adaptive["ratios"])) > 1


def test_a_timeline_for_every_kind_of_topology(report):
    root, model = report.runs.root, report.runs.models[-1]
    for topology, title in (("allgather", "all-gather"), ("ps-weights", "server, weights")):
        name = f"dlgs-0.1-{topology}"
        run, layers = root / "timing" / f"{model}-{name}", root / "layers" / model
        inputs = {key: run / f"{key}.csv" for key in ("trace", "groups")} | {"run": run / "run.json"}
        inputs |= {key: layers / f"{key}.csv" for key in ("layers", "iterations")}
        inputs |= {"samples": root / "exchanges" / f"{model}-{name}" / "samples.csv"}
        text = report.figure("studies/timeline/figure.py", f"timeline-{topology}", Items(**inputs), label="dlgs-0.1")
        assert f"{MODELS[model]}, DLGS, ratio 0.1; {title}" in text
        # one rank's trace does not show which part of the wait is for slower workers
        assert "waiting for communication and slower workers" in text and "non-overlapped" not in text


@pytest.mark.slow
def test_fits_of_every_variant(report):
    model, variants = report.runs.models[0], ("none", "topk", "dlgs", "qsgd")  # with and without a ratio
    folders = (report.runs.root / "exchanges").glob(f"{model}-*-ps-weights")
    named = re.compile(rf"{model}-({'|'.join(variants)})(-0\.\d+)?-ps-weights")
    samples = sorted(str(folder / "samples.csv") for folder in folders if named.fullmatch(folder.name))
    text = report.figure("studies/fits/figure.py", "fits", Items(samples=samples))
    residuals = pd.read_csv(report.folder / "fits.csv")
    assert re.search(r"Top-K \(median \d+ %, worst \d+ %\)", text)
    assert set(residuals["variant"]) == {*variants} and "ratio 0.01, server, weights" in text
    assert residuals["residual_s"].abs().max() < 1e-2


@pytest.mark.slow
def test_the_map_and_the_rates_show_every_model(report):
    calibration = [path for kind in ("layers", "exchanges") for path in report.runs.every(kind, "run.json")]
    prediction = report.folder / "map-prediction.csv"
    pd.DataFrame({"error": [0.1, -0.2, 0.05]}).to_csv(prediction, index=False)
    inputs = Items(calibration=calibration, prediction=prediction)
    text = report.figure("studies/map/figure.py", "map", inputs)
    assert "rate of every link (Mb/s)" in text and "Mbit" not in text
    assert " 16 " in text and " 32 " not in text  # no number of workers far from the calibrated one
    seconds = np.array([[[1.0, 9.0]], [[5.0, 5.0]], [[9.0, 1.0]]])  # of three variants
    assert MAP["winners"](["none", "lags", "dlgs"], seconds) == {"none", "dlgs"}
    assert "too close to tell" in text and "median 10 %, worst 20 %, n = 3 runs" in text
    assert all(title in text for title in report.runs.titles["models"].values())
    timing = pd.read_csv(report.tidy["timing"])
    timing = timing[(timing["topology"] == "allgather") & (timing["ratio"] != 0.1)]
    rated = [timing.assign(rate_mbit=rate, fastest_mbit=rate, run=timing["run"] + str(rate)) for rate in (100.0, 500.0)]
    pd.concat(rated).to_csv(report.folder / "rates_timing.csv", index=False)
    table, shown = report.table("studies/rates/table.py", "rates", timing=report.folder / "rates_timing.csv")
    assert set(table["rate_mbit"]) == {100, 500} and "Links (Mb/s)" in shown
    inputs = Items(report.folder / "rates.csv", calibration=calibration)
    text = report.figure("studies/rates/figure.py", "rates-figure", inputs)
    assert all(variant in text for variant, *_ in VARIANTS.values()) and style.BOUND["label"] in text
    assert text.count("time model") == 2  # in the legend and in the small print


@pytest.mark.parametrize(("ratio", "drawn"), [(0.1, False), (0.01, True), (math.nan, False)])
def test_a_line_over_rates_is_of_the_ratio_and_the_latency_of_its_points(ratio, drawn):
    asked, (figure, axes) = [], plt.subplots()
    rows = {"ratio": ratio, "latency_ms": 4.0, "iteration_s": 1.0, "iteration_s_low": 0.9, "iteration_s_high": 1.1}
    network = Network(workers=2, rate_mbit=100.0, latency_ms=9.0)
    projection = object.__new__(predict.Projection)
    projection.spec, projection.here = SimpleNamespace(ratio=0.01), network
    projection.iteration_s = lambda there: asked.append(there) or 1
    draw = runpy.run_path(str(ROOT / "workflow" / "studies" / "rates" / "figure.py"))["draw"]
    draw(axes, {"color": "black"}, pd.DataFrame([rows | {"rate_mbit": 100.0}]), projection, [100.0, 500.0])
    plt.close(figure)
    assert {(n.workers, n.latency_ms) for n in asked} == ({(2, 4.0)} if drawn else set())


def test_the_speed_up_with_a_server_has_a_panel_for_each_model(report):
    timing = pd.read_csv(report.tidy["timing"])
    served = timing[(timing["topology"] == "ps-weights") & (timing["ratio"] != 0.1)]
    served.to_csv(report.folder / "servers_timing.csv", index=False)
    table, _ = report.table("studies/servers/table.py", "servers", timing=report.folder / "servers_timing.csv")
    assert len(table) == len(report.runs.models) * len(VARIANTS)
    calibrated = {kind: report.runs.every(kind, "run.json") for kind in ("layers", "exchanges")}  # all-gather's, too
    inputs = Items(table=report.folder / "servers.csv", **calibrated)
    text = report.figure("studies/servers/figure.py", "servers-figure", inputs)
    titles = (title for name, (title, *_) in VARIANTS.items() if name != "none")
    assert all(title in text for title in titles) and "and a server" in text
    assert style.BOUND["label"] not in text  # it lies above the axis
    assert text.count("time model") == 2
    assert text.count("ratio 0.01; server, weights") == len(report.runs.models)


def test_no_line_is_drawn_with_a_server_from_a_calibration_at_another_ratio(report, monkeypatch):
    asked = []
    monkeypatch.setattr(predict.Projection, "iteration_s", lambda self, there: asked.append(self.spec.ratio) or 1.0)
    table = pd.read_csv(report.folder / "servers.csv")
    calibrated = {kind: report.runs.every(kind, "run.json") for kind in ("layers", "exchanges")}
    for ratio in (0.01, 0.5):
        path = report.folder / f"servers-{ratio}.csv"
        table.assign(ratio=table["ratio"].where(table["ratio"].isna(), ratio)).to_csv(path, index=False)
        report.figure("studies/servers/figure.py", f"servers-{ratio}", Items(table=path, **calibrated))
        assert set(asked) - {None} == ({ratio} if ratio == 0.01 else set())
        asked.clear()


def test_the_slowdown_of_every_model(report):
    layers, nodes = report.runs.every("layers", "run.json"), {"link_mbit": 5000, "multiply_adds_s": 3e12}
    rates = [report.folder / f"{Path(path).parent.name}-rate.json" for path in layers]
    for path, rate in zip(layers, rates, strict=True):
        iterations = Items(iterations=Path(path).with_name("iterations.csv"))
        report.script("scripts/rate.py", iterations, Items(rate), nodes=nodes, batch=64)
        before = rate.read_text()
        others = nodes | {"computation_ms": {"a model that has no calibration": 7.5}}
        report.script("scripts/rate.py", iterations, Items(rate), nodes=others, batch=64)
        assert rate.read_text() == before  # the times of other models do not repeat the runs of this one
        times = pd.read_csv(iterations.iterations)
        computation_s = (times["forward_s"] + times["backward_s"]).median()
        assert json.loads(before)["computation_s"] == pytest.approx(computation_s)
    table, shown = report.table("studies/slowdown/table.py", "slowdown", layers=layers, rates=rates)
    assert set(table["model"]) == set(report.runs.models)
    there = 64 * 1e8 / 3e12  # a batch, at the nodes' rate of multiply-adds
    small = table.set_index("model").loc["transformer"]
    assert small["nodes_computation_s"] == pytest.approx(there, rel=1e-4) and "testbed network, 500 Mb/s links" in shown
    assert small["proportional_mbit"] == pytest.approx(5000 * there / small["computation_s"], rel=1e-4)


def test_refresh_intervals(report):
    files = {name: report.folder / f"refresh_{name}.csv" for name in ("accuracy", "density")}
    points = report.runs.every("refresh", "points.csv")
    report.script("studies/refresh/collect.py", Items(points=points), Items(**files))
    text = report.figure("studies/refresh/figure.py", "refresh", Items(*files.values()))
    assert "s = 32" in text and "density of DLGS, ratio 0.01" in text


def test_a_row_says_what_its_run_was_and_which_of_its_variants_was_timed(tmp_path):
    runs = Runs(tmp_path, ("resnet50",))
    runs.time()
    rows = read([tmp_path / "timing" / "resnet50-topk-plain-0.1-ps-weights" / "iterations.csv"])
    assert list(rows.columns[: len(ABOUT)]) == list(ABOUT)
    (metadata,) = rows[list(ABOUT)].drop_duplicates().to_dict("records")
    assert (metadata["method"], metadata["variant"], metadata["ratio"]) == ("topk", "topk-plain", 0.1)
    assert (metadata["data_title"], metadata["train_samples"], metadata["rate_mbit"]) == ("Made-up data", 640, 500)
    assert pd.isna(metadata["train_epochs"])  # a timing run trains nothing
    assert set(rows["timed"]) == {"none", "topk-plain-0.1"}


def test_the_table_of_baselines_uses_the_criterion_that_chooses_the_fastest_bucketing(tmp_path, monkeypatch):
    """Launches count equally, however many blocks they have. The median over all blocks would be 1 and 1.5 s."""
    monkeypatch.setattr(plugins, "describe", describe)
    runs, blocks = Runs(tmp_path, ("resnet20",)), {"none": (1, 1, 1, 3), "none-256kib": (1.5, 1.5, 1.5, 1.5)}
    rows = [
        {"variant": label, "launch": int(block == 3), "block": block, "phase": "step", "share": 1, "iteration_s": s}
        for label, seconds in blocks.items()
        for block, s in enumerate(seconds)
    ]
    smaller = {"method": "none", "variant": "none", "options": {}, "bucketing": "256kib", "bucket_bytes": 2**18}
    spec = RunSpec("timing", Training("resnet20"), Scheme(timed_with={"none-256kib": smaller}), CLUSTER)
    written = {"iterations": pd.DataFrame(rows), "groups": pd.DataFrame({"variant": list(blocks)})}
    run = runs.write("timing/resnet20", spec, **written)
    files = {ext: tmp_path / f"baselines.{ext}" for ext in ("csv", "md", "tex", "html")}
    inputs = Items(timing=[run / "iterations.csv"])
    run_script("scripts/baselines.py", inputs, Items(**files), tmp_path, **runs.titles)
    table = pd.read_csv(files["csv"]).set_index("bucket_bytes")
    assert dict(table["iteration_s"]) == pytest.approx({2**23: 3**0.5, 2**18: 1.5}, rel=1e-5)
    assert table.loc[2**18, "ratio_to_fastest"] == 1


def test_dates_of_kept_runs_with_a_period_give_one_period():
    rows = pd.DataFrame({"date": ["2026-11-22 to 2026-11-25", "2026-11-25", None], "commit": ["abc", "abc", None]})
    assert captions.when(rows) == "; 2026-11-22 to 2026-11-25, commit abc"


def test_an_interval_without_width_is_not_printed():
    row = {"gain": 1.5, "gain_low": 1.5, "gain_high": 1.5}
    assert tables.spread(row, "gain") == tables.spread(row | {"gain_low": None}, "gain") == "1.50"
    assert tables.spread(row | {"gain_low": 1.4}, "gain") == "1.50 [1.40, 1.50]"


def reference_in(folder: Path):
    """The script that keeps the reference set, at work in a folder."""
    reference = script_module("reference")
    reference.ROOT, reference.KEPT = folder, folder / "results" / "reference"
    reference.RUNS = folder / "results" / "runs" / "reference"
    return reference


def test_the_reference_set_is_the_papers_tables_and_figures_and_what_they_read(tmp_path):
    wanted = {"results/table1.csv", "results/table1.md", "results/table1.tex", "results/findings.md"}
    wanted |= {"results/accuracy.csv", "results/timing.csv", "figures/figure11.svg", "figures/figure11.png"}
    others = {"results/fits.csv", "results/planners_timing.csv", "results/so_far.md", "figures/fits.svg"}
    for name in (*wanted, *others, "results/table1.html", "figures/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {str(path.relative_to(tmp_path)) for path in reference_in(tmp_path).made()} == wanted


def test_the_reference_set_is_shown_in_the_readme_and_on_its_own_page(tmp_path):
    reference, results = reference_in(tmp_path), tmp_path / "results"
    (tmp_path / "figures").mkdir()
    for name in ("quick", "reference"):
        (results / "runs" / name / "calibration").mkdir(parents=True)
        (results / "runs" / name / "calibration" / "rate.json").write_text(name)
    for name in ("answer", "table1", "table2", "baselines", "claims", "other"):
        (results / f"{name}.md").write_text(f"| rows of {name} |\n\nA caption.\n")
        (results / f"{name}.csv").write_text("statement,verdict\nA statement,holds\n" if name == "claims" else "a\n")
    (results / "findings.md").write_text("- A finding.\n")
    (results / "timing.csv").write_bytes(b"1,2,3\n" * 400_000)
    provenance = {"machine": ["a machine"], "commit": ["abc"], "runs": 3}
    provenance |= {"first_run": "2025-12-31T00:00", "last_run": "2026-01-01T00:00"}
    (results / "provenance.json").write_text(json.dumps(provenance))
    with pytest.raises(
        SystemExit, match=r"^error: results/ has runs that are not in results/runs/reference; run snakemake"
    ):
        reference.keep()
    assert not reference.KEPT.exists()
    for name, date in (("first", "2025-12-31T00:00"), ("last", "2026-01-01T00:00")):
        (reference.RUNS / "timing" / name).mkdir(parents=True)
        (reference.RUNS / "timing" / name / "run.json").write_text(json.dumps({"provenance": {"date": date}}))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- reference -->\nbygone\n<!-- /reference -->\nafter\n")
    for _ in range(2):
        reference.keep()
        reference.show()
    shown, page = readme.read_text(), (reference.KEPT / "README.md").read_text()
    assert shown.startswith("before\n<!-- reference -->\n| rows of answer |\n\n") and "bygone" not in shown
    assert "A caption" not in shown and "A caption" in page
    assert shown.endswith("<!-- /reference -->\nafter\n")
    assert "a machine; 3 runs, 2025-12-31 to 2026-01-01, commit abc" in " ".join(shown.split())
    assert json.loads((reference.KEPT / "set.json").read_text())["files"] == result_set.contents(reference.KEPT)
    places = [page.index(f"| rows of {name} |") for name in ("answer", "table1", "table2", "claims")]
    assert not (reference.KEPT / "other.csv").exists()  # of a study, or of another configuration
    assert places == sorted(places) and "- A finding." in page
    assert gzip.decompress((reference.KEPT / "timing.csv.gz").read_bytes()) == (results / "timing.csv").read_bytes()
    assert not (reference.KEPT / "timing.csv").exists()
    assert (reference.KEPT / "calibration" / "rate.json").read_text() == "reference"
    (results / "timing.csv").rename(results / "elsewhere")
    with pytest.raises(SystemExit, match=r"^error: results/timing\.csv is missing; run snakemake"):
        reference.keep()
    assert (reference.KEPT / "answer.md").exists()  # the set is left as it was


@pytest.mark.parametrize(
    "low, high, words",
    [(2.14e4, 8e4, "21 to 80"), (2.14e4, math.inf, "at least 21"), (0, 8e4, "at most 80"), (0, math.inf, "not known"),
     (math.inf, math.inf, "every rate"), (0, 0, "no rate"), (math.nan, math.nan, "")],
)  # fmt: skip
def test_a_range_of_rates_in_words(low, high, words):
    assert script_module("answer").rates_words(low, high) == words


def test_the_readme_shows_the_answers_without_the_columns_that_only_the_page_of_results_has():
    reference = reference_in(ROOT)
    answers = (reference.KEPT / "answer.md").read_text().partition("\n\n")[0]
    shown = reference.without_columns(answers)
    assert shown in (ROOT / "README.md").read_text()
    names = [[cell.strip() for cell in table.splitlines()[0].split("|")] for table in (answers, shown)]
    assert [name for name in names[0] if name not in {"Over sessions", "n"}] == names[1]
    assert len({row.count("|") for row in shown.splitlines()}) == 1


def test_the_readmes_picture_says_what_was_measured_where_and_how_often():
    caption = reference_in(ROOT).picture()
    assert caption in (ROOT / "README.md").read_text()
    assert all(
        words in caption for words in ("measured, not modelled", " cores, ", " Mb/s", " workers; ", "; n = ", "repeat")
    )


def test_a_model_that_trained_too_briefly_is_shown_with_a_kept_run(report):
    """The model's own curve is shown only if it has left chance level. A model without a run is called missing."""
    points, model = pd.read_csv(report.tidy["accuracy"]), report.runs.models[-1]
    file = report.folder / "long.csv"
    long = points[(points["model"] == model) & (points["seed"] == 0)].assign(commit="c0ffee")
    long.assign(epoch=long["epoch"] * 5).to_csv(file, index=False)
    metadata = {"model": model, "value": "train_loss"}
    texts = {}
    for name, factor in (("left", 0.5), ("stayed", 1.0)):
        own = report.folder / f"{name}.csv"
        first = points["step"] == points["step"].min()
        points.assign(train_loss=2.0, step=points["step"] * 10).assign(
            train_loss=lambda rows, first=first, factor=factor: rows["train_loss"].where(first, 2.0 * factor)
        ).to_csv(own, index=False)
        inputs = Items(tidy=own, kept=[file])
        texts[name] = report.figure("scripts/curve.py", f"kept-{name}", inputs, **metadata)
        table, shown = report.table("scripts/table1.py", f"kept-{name}", accuracy=own, kept=[file])
        rows = table[table["model"] == model]
        assert len(rows) == len(VARIANTS) * (2 if name == "left" else 1) and "c0ffee" in shown
        assert set(table["train_epochs"]) == {2}
        alone = name == "stayed" and len(report.runs.models) == 1  # otherwise the column "Kept run" names the commit
        assert ("c0ffee" in shown.partition("\n\n")[2]) == alone
    inputs = {"accuracy": own, "kept": [file]}
    table, _ = report.table("scripts/table1.py", "kept-changed", {"changed": ["topk"]}, **inputs)
    assert set(table["variant"][table["model"] == model]) == VARIANTS.keys() - {"topk"}  # it had other parameters
    assert "this run" in texts["left"] and "this run" not in texts["stayed"]
    assert all("kept long run" in text and "c0ffee" in text for text in texts.values())
    assert "learning rate falls" not in texts["stayed"]  # the kept run had another recipe
    recipes = {"recipe": {"epochs": 80, "lr_steps": []}, "kept_recipe": {"epochs": 80, "lr_steps": [40]}}
    recipes["kept_recipe"]["epochs"] = int(long["epochs"].iloc[0])
    text = report.figure("scripts/curve.py", "kept-recipe", inputs=Items(tidy=own, kept=[file]), **metadata, **recipes)
    assert "learning rate falls" in text
    none = report.folder / "none.csv"
    points[points["model"] != model].to_csv(none, index=False)
    files = {ext: report.folder / f"empty.{ext}" for ext in ("svg", "png")}
    report.script("scripts/curve.py", Items(tidy=none, kept=[]), Items(**files), **metadata)
    assert "no long run of it is kept" in files["svg"].read_text()
