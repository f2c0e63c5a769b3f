"""A timing run of several variants: in turns, each as if it had been timed alone."""

import json

import pandas as pd
import pytest
from conftest import CPU
from test_server import Images

from harness import seals
from harness.code import ROOT, behind_run
from harness.comm.local import run_workers
from harness.report.summary import summarise
from harness.report.tidy import read_members
from harness.spec import Cluster, Measurement, Place, RunSpec, Scheme, Training
from harness.training.timed import timing

pytestmark = pytest.mark.unit

OPTIONS = {"ratio": 0.1, "selection": "fast"}
BESIDE = {
    "cast": {"method": "cast", "options": {}},
    "often": {"method": "dlgs", "options": {"ratio": 0.02, "refresh_every": 4}},
}
SCHEME = Scheme(beside={"topk-0.1": {"method": "topk", "variant": "", "options": OPTIONS}} | BESIDE)
SPEC = RunSpec("timing", Training("resnet20", batch=4), SCHEME, Cluster(workers=2), Measurement(blocks=2, repeats=1))


@pytest.fixture(scope="module")
def tables() -> dict:
    return run_workers(2, lambda comm: timing(SPEC, comm, Images(), CPU, lambda done, total: None, Place()))[0]


def test_every_block_times_every_variant_in_every_phase(tables):
    turns = [(row["block"], row["variant"], row["phase"], row["share"]) for row in tables["iterations"]]
    others = [("cast", "step", 1), ("often", "refresh", 1 / 4), ("often", "reuse", 3 / 4)]
    assert turns == [(b, *turn) for b in (1, 2) for turn in [("none", "step", 1), ("topk-0.1", "step", 1), *others]]
    sent = {row["variant"]: row["sent_bytes"] for row in tables["iterations"]}
    assert sent["none"] == 2 * sent["cast"] and sent["topk-0.1"] < sent["cast"]


def test_rows_of_each_variant_read_as_if_it_had_a_run_of_its_own(tables, tmp_path):
    place = tmp_path / "together"
    place.mkdir()
    pd.DataFrame(tables["iterations"]).to_csv(place / "iterations.csv")
    about = {"machine": "a machine", "network": "testbed", "rate_mbit": 100.0}
    run = {"spec": json.loads(SPEC.to_json()), "provenance": about, "train_samples": 24, "files": {}}
    (place / "run.json").write_text(json.dumps(seals.signed(run)))
    rows = read_members([place / "iterations.csv"], ("none", "cast"))
    assert set(rows[rows["variant"] == "often"]["timed"]) == {"none", "cast", "often"}
    table = summarise(rows).set_index("variant")
    assert list(table.index) == ["none", "topk", "cast", "often"] and (table["blocks"] == 2).all()
    assert table["run"].to_dict()["often"] == "together-often"
    assert (table["method"]["often"], table["ratio"]["often"], table["refresh_every"]["often"]) == ("dlgs", 0.02, 4)
    assert table["selection"]["topk"] == "fast" and pd.isna(table["ratio"]["none"])
    assert table["density"]["topk"] == pytest.approx(0.1, abs=0.01) != table["density"]["often"]


def test_the_code_of_every_variant_decides_the_run_and_its_spec_says_them():
    assert {ROOT / "methods" / f"{name}.py" for name in ("none", "topk", "cast", "dlgs")} <= set(behind_run(SPEC))
    assert RunSpec.from_json(SPEC.to_json()) == SPEC
