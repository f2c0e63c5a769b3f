"""Every study of the workflow, from nothing, on real processes, with the tiny model."""

import json
import re

import pytest
from support import ENVIRONMENT, ROOT, TINY, clone, edit, read, rows_of, snakemake

from dlgs_bench.report.summary import MEASURED
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel import length

PARAMETERS = 334

pytestmark = pytest.mark.slow
tier = pytest.mark.workflow if testbed.why_unavailable() else pytest.mark.root


@tier
def test_studies_are_made(tiny_source, tmp_path):
    project = clone(tiny_source, tmp_path / "project")
    configuration = ["--configfile", "config/tiny.yaml", "config/studies.yaml", "--config", "name=tested"]
    done = snakemake(project, ENVIRONMENT, "studies", *configuration, timeout_s=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    results = project / "results" / "tiny"
    traces = list(results.glob("runs/tested/timing/*/trace.json"))
    assert traces
    for events in (json.loads(path.read_text())["traceEvents"] for path in traces):
        assert {e["ph"] for e in events} == {"M", "X"}
        assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    iterations = [row for path in results.glob("runs/tested/timing/*/iterations.csv") for row in rows_of(path)]
    assert iterations
    for row in iterations:
        parts = sum(float(row[part]) for part in MEASURED)  # eq. 2, plus optimizer and other
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
    headers = {path.name: path.read_text().partition("\n")[0].split(",") for path in results.glob("*.csv")}
    measured = {name: columns for name, columns in headers.items() if "machine" in columns}
    assert "sums.csv" in measured or testbed.why_unavailable()
    assert not {name for name, columns in measured.items() if not {"date", "commit"} <= set(columns)}
    rows = rows_of(results / "prediction.csv")
    assert {row["variant"] for row in rows} == {"none", "topk", "dlgs"}
    assert all(float(r["predicted_s"]) > 0 and float(r["measured_s"]) > 0 for r in rows)
    if not testbed.why_unavailable():
        check_hybrids(rows_of(results / "hybrid.csv"))
        assert {row["way"] for row in rows_of(results / "hybrid-learning.csv")} == {"hybrid", "data-parallel"}


def check_hybrids(rows: list[dict]) -> None:
    """The tiny model on 2 workers by every way: parts that add up, and the bytes of the formulas."""
    assert {row["workers"] for row in rows if not row["iteration_s"]} == {"8"}  # predicted only
    assert all(float(row["predicted_s"]) > 0 for row in rows)
    rows = [row for row in rows if row["iteration_s"]]
    for row in rows:
        parts = sum(
            float(row[f"{part}_s"]) for part in ("computing", "features", "columns", "input_gradients", "gradients")
        )
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
    sent = {row["way"]: (row["sender"], row["samples"], int(row["messages"]), int(row["bytes"])) for row in rows}
    whole = 4 * PARAMETERS
    assert sent.pop("hybrid") == ("backbone", "8", 1, 4 * 8 * 13)  # of each sample 12 features and its label
    assert sent.pop("ring") == sent.pop("halving-doubling") == ("worker", "8", 2, whole)
    assert list(sent.values()) == [("server", "8", 2, 2 * whole)]


ROW = re.compile(r"^(\w+)\s+(?:Tiny)?\s+(\d+)\s+(\d+)\s+(\d+:\d\d) *(\S+ .B)? *$", re.M)


@pytest.mark.workflow
def test_before_its_runs_a_configuration_is_estimated_and_after_them_the_estimate_judged(tiny_project, tiny_made):
    # How far off the estimate is does not matter.
    edit(tiny_project / "dlgs_bench" / "config" / "trials.py", "budget_s=25", "budget_s=1")
    folder = tiny_project / "results" / "tiny" / "runs" / "tested"
    before = snakemake(tiny_project, ENVIRONMENT, "estimate", *TINY, "timing={budget_s: 60}")
    assert before.returncode == 0, before.stderr[-3000:]
    rows = [("accuracy", "2", "0"), ("timing", "1", "0"), ("total", "3", "0")]
    assert [row[:3] for row in ROW.findall(before.stderr)] == rows
    assert ROW.findall(before.stderr)[1][3] == "0:01"  # the budget
    assert "no estimated run has finished" in before.stderr
    assert not list(folder.glob("accuracy/*")) and not list(folder.glob("timing/*"))

    for kind in ("accuracy", "timing"):  # as if they had run here
        clone(tiny_made / folder.relative_to(tiny_project) / kind, folder / kind)
    after = snakemake(tiny_project, ENVIRONMENT, "estimate", *TINY)
    assert after.returncode == 0, after.stderr[-3000:]
    none = ("0:00", "")
    rows = [("accuracy", "2", "2", *none), ("timing", "1", "1", *none), ("total", "3", "3", *none)]
    assert ROW.findall(after.stderr) == rows
    # The timing run had another budget when it was estimated.
    said = re.search(r"divided by their estimate: median (\S+), worst \S+ .*n = 2\.", after.stderr)
    kept = json.loads((folder / "estimates.json").read_text())
    runs = {name: json.loads((folder / name / "run.json").read_text()) for name in kept if "accuracy" in name}
    ratios = [length.took_s(folder / name, run) / kept[name]["seconds"] for name, run in runs.items()]
    assert float(said[1]) == pytest.approx(sum(ratios) / 2, abs=0.006)

    # A worker's bytes are exact where they do not depend on the gradient.
    more = snakemake(tiny_project, ENVIRONMENT, "estimate", *TINY, "models={tiny: {train_epochs: 4}}")
    sent = {row[0]: row for row in ROW.findall(more.stderr)}["accuracy"]
    dense, sparse = 4 * 334, 8 * 33 + 8
    assert sent[1:3] == ("2", "0") and sent[4] == f"{100 * (dense + sparse) / 1e3:.0f} KB"


@pytest.mark.workflow
@pytest.mark.skipif(bool(testbed.why_unavailable()), reason=f"no testbed here: {testbed.why_unavailable()}")
def test_the_check_calibrates_no_model_and_no_topology_but_its_own():
    """This holds for any configuration. Layers of another model would be missing, and a server's times are not an
    all-gather's."""
    done = snakemake(ROOT, ENVIRONMENT, "--nolock", "advise_check", "--detailed-summary")
    calibrated = set(re.findall("calibration/exchanges/([^/]*)/run.json", done.stdout))
    models = read("quick")["models"]
    assert {name.split("-")[0] for name in calibrated} == models.keys() & {"resnet20", "vgg16"} < models.keys()
    assert not [name for name in calibrated if "-ps-" in name]
