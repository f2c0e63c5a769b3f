"""Every study of the workflow, from nothing, on real Horovod processes, in a copy of the project."""

import json

import pytest
from conftest import SMOKE, copy_project, rows_of, snakemake

from harness.launch import testbed
from harness.report.summary import MEASURED

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

# Without the two LAGS: each would be calibrated, planned and timed for every study. DLGS is planned as well.
METHODS = ("none", "topk", "dlgs")
STUDY = f"studies={{methods: {{methods: [{', '.join(METHODS[1:])}]}}}}"


def test_studies_are_made(tmp_path, environment):
    project = copy_project(tmp_path / "project", METHODS)
    done = snakemake(project, environment, "studies", *SMOKE, STUDY)
    assert done.returncode == 0, done.stderr[-3000:]
    results = project / "results" / "smoke"
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
    rows = rows_of(results / "prediction.csv")
    assert {row["variant"] for row in rows} == set(METHODS)
    assert all(float(r["predicted_s"]) > 0 and float(r["measured_s"]) > 0 for r in rows)
    if not testbed.available():
        check_hybrids(rows_of(results / "hybrid.csv"))


def check_hybrids(rows: list[dict]) -> None:
    """ResNet-20 on 2 workers by every way: parts that add up, and the bytes of the formulas."""
    assert {row["workers"] for row in rows if not row["iteration_s"]} == {"8"}  # predicted only
    assert all(float(row["predicted_s"]) > 0 for row in rows)
    rows = [row for row in rows if row["iteration_s"]]
    for row in rows:
        parts = sum(
            float(row[f"{part}_s"]) for part in ("computing", "features", "columns", "input_gradients", "gradients")
        )
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
    sent = {row["way"]: (row["sender"], row["samples"], int(row["messages"]), int(row["bytes"])) for row in rows}
    whole = 4 * 269_722
    assert sent.pop("hybrid") == ("backbone", "8", 1, 4 * 8 * 65)
    assert sent.pop("ring") == sent.pop("halving-doubling") == ("worker", "8", 2, whole)
    assert list(sent.values()) == [("server", "8", 2, 2 * whole)]
