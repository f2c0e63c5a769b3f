"""The study of training over OmniReduce: its runs, several collectives in one run, its tables and its figure."""

import sys

import pandas as pd
import pytest
from report_runs import CLUSTER, Scheme, describe
from support import CPU, read
from test_report import Items, Report
from test_server import Images

from dlgs_bench import plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.fingerprint import ROOT, behind_run
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Training
from dlgs_bench.training.timed import timing

pytestmark = pytest.mark.unit

STREAMS = {"block": 256, "fused": 8, "in_flight": 2}
SMALL = {"ratio": 0.1, "block": 256}
SUM = {"method": "block_topk", "options": SMALL | {"over": "sum"}}
STREAMED = {"collective": "omnireduce", "streams": STREAMS}
BESIDE = {
    "omnireduce": SUM | STREAMED,
    "ring": SUM | {"collective": "ring"},
    "all-gather": {"method": "block_topk", "options": SMALL | {"over": "gather"}},
}
SCHEME = Scheme(timed_with=BESIDE)
DENSE = {way: {"method": "none", "options": {}} for way in ("omnireduce", "ring")}
DENSE = {"omnireduce": DENSE["omnireduce"] | STREAMED, "ring": DENSE["ring"] | {"collective": "ring"}}


def runs_of(**study) -> dict[str, RunSpec]:
    values = read("quick") | {"network": "testbed", "studies": {"omnireduce": study}}
    return config.load(values, "c").studies["omnireduce"]


def test_no_run_has_more_aggregators_than_workers():
    study = {"omnireduce": {"workers": [2, 4]}}
    values = read("quick") | {"network": "testbed", "streams": {"aggregators": 3}, "studies": study} | {"workers": 4}
    runs = config.load(values, "c").studies["omnireduce"].values()
    streamed = [(run.cluster.workers, one.scheme.streams) for run in runs for one in run.members.values()]
    assert {(workers, streams["aggregators"]) for workers, streams in streamed if streams} == {(2, 2), (4, 3)}


def test_every_way_takes_its_turn_and_each_model_shows_its_layers():
    runs = runs_of(workers=[2, 4], ratios=[0.1, 0.01], rate_mbit=100)
    names = ("embedding", "lstm", "vgg16-0.1", "vgg16-0.01")
    timed = {f"{name}-{workers}workers" for name in names for workers in (2, 4)}
    layers = {f"{model}-layers-2workers" for model in ("embedding", "lstm", "vgg16")}
    assert {name.removeprefix("timing/omnireduce-") for name in runs} == timed | layers
    spec = runs["timing/omnireduce-vgg16-0.01-4workers"]
    assert spec.cluster == Cluster("torch_dist", 4, network="testbed", rates_mbit=(100.0,) * 4)
    alone = {label: one.scheme for label, one in spec.members.items()}
    ways = {variant: (one.method, one.collective, one.options.get("over")) for variant, one in alone.items()}
    assert ways == {
        "omnireduce": ("block_topk", "omnireduce", "sum"), "ring": ("block_topk", "ring", "sum"),
        "engine": ("block_topk", "engine", "sum"), "all-gather": ("block_topk", "engine", "gather"),
        "none": ("none", "engine", None),
    }  # fmt: skip
    assert (
        alone["omnireduce"].streams["block"] == alone["omnireduce"].options["block"] == 256
        and not alone["ring"].streams
    )
    assert not config.load(read("quick") | {"network": "host"}, "c").studies["omnireduce"]
    with pytest.raises(config.ConfigError, match=r"studies.omnireduce.sparsified: no file models/vgg17\.py"):
        runs_of(sparsified=["vgg17"])


@pytest.fixture(scope="module")
def tables() -> dict:
    spec = RunSpec(
        "timing", Training("resnet20", batch=4), SCHEME, Cluster(workers=2), Measurement(blocks=1, repeats=1)
    )
    return run_workers(2, lambda comm: timing(spec, comm, Images(), CPU, lambda done, total: None, LaunchSettings()))[0]


def test_variants_of_one_run_sum_by_collectives_of_their_own(tables):
    rows = pd.DataFrame(tables["iterations"]).groupby("variant", sort=False).first()
    assert list(rows.index) == ["none", "omnireduce", "ring", "all-gather"]
    entries = sum(plugins.describe("models", "resnet20")["layers"])
    sent, messages = rows["sent_bytes"], rows["sent_messages"]
    assert sent["none"] == 4 * entries and sent["ring"] == pytest.approx(4 * entries, abs=8)  # of two workers
    assert sent["all-gather"] < sent["omnireduce"] < sent["ring"] / 3
    assert messages["none"] == messages["all-gather"] == 0 and messages["ring"] == 2 < messages["omnireduce"]
    assert rows["density"]["omnireduce"] == pytest.approx(0.1, abs=0.03) and rows["density"]["ring"] == 1


def test_the_code_of_every_collective_decides_the_run():
    behind = set(behind_run(RunSpec("timing", Training("resnet20"), SCHEME)))
    assert {ROOT / "dlgs_bench/comm/collectives" / f"{name}.py" for name in ("omnireduce", "ring")} <= behind


@pytest.fixture
def report(tmp_path, monkeypatch):
    def known(kind: str, name: str) -> dict:
        return {"fields": {}, "scope": "size", "plan": None} if kind == "methods" else describe(kind, name)

    monkeypatch.setattr(plugins, "describe", known)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    return Report(tmp_path, ("resnet20",))


def test_the_table_holds_every_way_against_the_ring_and_the_figure_draws_it(report):
    runs = report.runs
    for method, scheme in (("block_topk", SCHEME), ("none", Scheme(timed_with=DENSE))):
        spec = RunSpec("timing", runs.training("resnet20"), scheme, CLUSTER)
        rows = [
            runs.iterations(way, scheme, 0.05 * (2 if way == "ring" else 1)).assign(density=0.1, sent_messages=3)
            for way in ("none", *scheme.timed_with)
        ]
        rows = [own.assign(communication_s=1e-3) if "all-gather" in set(own["variant"]) else own for own in rows]
        runs.write(f"timing/{method}", spec, iterations=pd.concat(rows))
    paths = runs.every("timing", "iterations.csv")
    inputs = Items(*paths)
    files = {ext: report.folder / f"t.{ext}" for ext in ("csv", "md", "tex", "html")}
    report.script("studies/omnireduce/table.py", inputs, Items(**files))
    table = pd.read_csv(files["csv"])
    assert len(table) == 4 + 3
    ours = table[table["way"] == "omnireduce"]
    assert ours["gain"].between(1.5, 2.5).all() and ours["bound"].to_numpy() == pytest.approx(2 / (0.1 + 1 - 0.9**2))
    assert (table.loc[table["way"] == "ring", "gain"] == 1).all()
    shown = files["md"].read_text()
    assert "0.1 of the blocks" in shown
    head, _, *lines = ([cell.strip() for cell in line.split("|")] for line in shown.split("\n\n")[0].splitlines())
    quotients = {line[head.index("Sum")]: line[head.index("Communication against ring")] for line in lines}
    assert quotients["ring"] == "1.00" and "[" in quotients["OmniReduce"]
    assert quotients["all-gather"] == ""  # it communicates for 1 ms
    table.assign(communication_gain=77).to_csv(files["csv"])
    text = report.figure("studies/omnireduce/figure.py", "f", Items(table=files["csv"]))
    assert "uncompressed" in text and "0.1 of the blocks" in text and "(bound 6.9)" in text
    assert f"\u00d7{ours['gain'].iloc[0]:.1f}" in text and "\u00d777" not in text  # of the iteration, as the bound


def test_layers_with_blocks_of_zeros_have_a_line_each_and_the_others_share_one(report):
    spec = RunSpec("timing", report.runs.training("resnet20"), Scheme("none", "omnireduce", streams=STREAMS), CLUSTER)
    sizes = [1000, 512, 300]
    groups = pd.DataFrame({"variant": v, "bucket": i, "start": i, "stop": i + 1, "entries": n}
                          for v in ("none", "omnireduce") for i, n in enumerate(sizes))  # fmt: skip
    sent = pd.DataFrame(
        {"variant": "omnireduce", "block": [1, 2], "step": [1, 1], "0": [256, 0], "1": [512, 512], "2": [300, 300]}
    )
    report.runs.write("timing/layers", spec, groups=groups, sent=sent)
    files = {ext: report.folder / f"l.{ext}" for ext in ("csv", "md", "tex", "html")}
    report.script("studies/omnireduce/layers.py", Items(*report.runs.every("timing", "sent.csv")), Items(**files))
    table = pd.read_csv(files["csv"])
    assert list(table["blocks"]) == [4, 2, 2] and list(table["density"]) == [0.128, 1, 1]
    assert "| 2 others" in files["md"].read_text()
