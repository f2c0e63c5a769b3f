"""Hybrid parallelism: what is learnt equals training on one device, and every message and byte the formulas."""

import runpy
import sys
from dataclasses import replace

import lockstep
import pandas as pd
import pytest
import torch
from hybrid_parts import ROWS, STEPS, TRAINING, WIDTHS, batch, small, trained
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, read
from test_report import Items, Report
from test_server import Images, Silent
from torch import nn
from torch.nn import functional as F

from dlgs_bench import plugins
from dlgs_bench.comm import hybrid_messages
from dlgs_bench.comm.collectives import halving_doubling, ring, sum_over_first
from dlgs_bench.comm.hybrid_messages import Layout
from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.data import Shard, steps, training_indices, whole_steps
from dlgs_bench.data import load as data_set
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.timemodel.hybrid_time import around_head, data_parallel_s, link_bytes
from dlgs_bench.training import hybrid as training
from dlgs_bench.training import train
from dlgs_bench.training.head import cut_off, slice_of, widths
from dlgs_bench.training.hybrid import KINDS, worker_of

pytestmark = pytest.mark.unit

CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32, whose sums are added in another order

layouts = st.builds(
    lambda heads, backbone, rows: Layout(heads + backbone, heads, rows),
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip


def on_one_device(backbone: int) -> list[dict]:
    """Loss, gradients and weights by name, and the gradient of the features, of all rows at once, by step."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), TRAINING.lr, TRAINING.momentum, weight_decay=TRAINING.weight_decay)
    found = []
    for step in range(STEPS):
        images, targets = (torch.cat(parts) for parts in zip(*(batch(step, r) for r in range(backbone)), strict=True))
        optimizer.zero_grad()
        features = model.body(images)
        features.retain_grad()
        loss = F.cross_entropy(model.classifier(features), targets)
        loss.backward()
        optimizer.step()
        parameters = {name: (p.grad.clone(), p.detach().clone()) for name, p in model.named_parameters()}
        found.append({"parameters": parameters, "loss": loss.detach(), "input gradient": features.grad})
    return found


def whole(workers: list[dict], layout: Layout) -> dict[str, tuple]:
    """The model's gradients and weights from those of the workers; all backbone workers have the same bits."""
    backbone = [workers[rank]["parameters"] for rank in layout.backbone]
    for name, pair in backbone[0].items():
        assert all(torch.equal(a, b) for other in backbone for a, b in zip(pair, other[name], strict=True))
    slices = [workers[rank]["parameters"] for rank in layout.head]
    places = {"0.0": "0", "1.0": "2", "2.0": "4"}  # stage and layer -> place in the classifier
    head = {}
    for name in slices[0]:
        stage, kind = name.rsplit(".", 1)
        joined = tuple(map(torch.cat, zip(*(part[name] for part in slices), strict=True)))
        head[f"classifier.{places[stage]}.{kind}"] = joined
    return backbone[0] | head


def sent_by_formula(layout: Layout, rank: int) -> list[tuple[int, int]]:
    """Messages and bytes of one step, by kind; every value has 4 bytes."""
    m, k, rows = len(layout.backbone), layout.heads, layout.rows
    if rank < m:
        entries = sum(p.numel() for p in small().body.parameters())
        return [(k, k * 4 * rows * (WIDTHS[0] + 1)), (0, 0), (0, 0), ring.cost(rank, m, entries)]
    total, own = m * rows, [(rank - m + 1) * n // k - (rank - m) * n // k for n in WIDTHS[1:]]
    columns = 3 * (k - 1), 4 * total * sum(own) * (k - 1)
    # To each other head worker its columns of what two layers take, to each backbone worker its rows of the features.
    between = 4 * total * sum(n - mine for n, mine in zip(WIDTHS[1:3], own, strict=False))
    gradients = 2 * (k - 1) + m, between + 4 * total * WIDTHS[0]
    return [(0, 0), columns, gradients, (0, 0)]


def compare(workers: list[list[dict]], layout: Layout) -> None:
    """Compare the workers' results of every step, by rank, with training on one device."""
    for step, one in enumerate(on_one_device(len(layout.backbone))):
        found = [seen[step] for seen in workers]
        for rank in layout.head:
            torch.testing.assert_close(found[rank]["loss"], one["loss"], **CLOSE)
        rows = torch.cat([found[rank]["input gradient"] for rank in layout.backbone])
        torch.testing.assert_close(rows, one["input gradient"], **CLOSE)
        parameters = whole(found, layout)
        assert parameters.keys() == one["parameters"].keys()
        for name, pair in parameters.items():
            for ours, theirs in zip(pair, one["parameters"][name], strict=True):
                torch.testing.assert_close(ours, theirs, **CLOSE, msg=lambda said, at=(step, name): f"{at}: {said}")
        assert [seen["sent"] for seen in found] == [sent_by_formula(layout, rank) for rank in range(layout.workers)]


@pytest.mark.parametrize(("workers", "heads"), [(2, 1), (3, 1), (4, 1), (4, 2), (4, 3)])
def test_training_equals_one_device_and_sends_what_the_formulas_say(workers, heads):
    compare(run_workers(workers, lambda comm: trained(comm, heads)), Layout(workers, heads, ROWS))


@given(layout=layouts, width=st.integers(1, 9))
def test_rounds_bring_rows_and_columns_where_they_belong(layout, width):
    """All ranks run in lock step. The result equals slices of one matrix."""
    m, ranks = len(layout.backbone), range(layout.workers)
    total = m * layout.rows
    addends = [torch.randint(-9, 9, (total, width)).float() for _ in ranks]
    rows = [part.split(layout.rows)[rank] if rank < m else None for rank, part in enumerate(addends)]
    found = lockstep.run([hybrid_messages.gather_rows(layout, r, rows[r], width) for r in ranks])
    expected = torch.cat(rows[:m])
    assert all(torch.equal(found.results[r], expected) for r in layout.head)
    assert found.messages == [layout.heads] * m + [0] * layout.heads

    columns = {rank: layout.columns(rank, width) for rank in layout.head}
    parts = [expected[:, columns[rank]] if rank in columns else None for rank in ranks]
    found = lockstep.run([hybrid_messages.gather_columns(layout, r, parts[r], width) for r in ranks])
    assert all(torch.equal(found.results[r], expected) for r in layout.head)

    summed = sum(addends[m:])
    found = lockstep.run([hybrid_messages.scatter_columns(layout, r, addends[r] if r >= m else None) for r in ranks])
    assert all(torch.equal(found.results[r], summed[:, columns[r]]) for r in layout.head)
    found = lockstep.run(
        [hybrid_messages.scatter_rows(layout, r, addends[r] if r >= m else None, width) for r in ranks]
    )
    assert all(torch.equal(found.results[r], summed.split(layout.rows)[r]) for r in layout.backbone)
    assert found.bytes == [0] * m + [4 * total * width] * layout.heads


@pytest.mark.parametrize(("workers", "heads"), [(2, 2), (4, 0), (1, 1)])
def test_a_backbone_or_a_head_without_a_worker_is_refused_in_one_line(workers, heads):
    with pytest.raises(ValueError, match=f"^heads: {heads} of {workers} workers cannot hold the head; use "):
        Layout(workers, heads, ROWS)


def test_more_slices_than_columns_are_refused_in_one_line_by_every_rank():
    def said(comm) -> str:
        with pytest.raises(ValueError) as caught:
            worker_of(small(), F.cross_entropy, Layout(8, 6, ROWS), comm, TRAINING, "ring")
        return str(caught.value)

    assert set(run_workers(8, said)) == {"heads: 6 slices, but a layer has only 5 columns; give at most 5 heads"}


@pytest.mark.parametrize(("samples", "whole"), [(64, 8), (63, 7), (61, 5), (57, 1), (56, 7), (49, 0)])
def test_the_steps_with_a_whole_batch_are_the_first_of_an_epoch(samples, whole):
    shard = Shard(4, 2, 0, 0)
    sizes = [
        [len(training_indices(samples, step, replace(shard, rank=rank))) for rank in range(2)]
        for step in range(steps(samples, shard))
    ]
    assert whole_steps(samples, shard) == whole == sum(size == [4, 4] for size in sizes)
    assert all(size == [4, 4] for size in sizes[:whole])


def test_a_batch_of_another_size_is_refused_before_it_is_sent():
    def said(comm) -> str:
        worker = worker_of(
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), F.cross_entropy, Layout(2, 1, 4), comm, TRAINING, "ring"
        )
        if comm.rank == 0:
            worker.step(torch.zeros(3, 3), torch.zeros(3, dtype=torch.int64))

    with pytest.raises(ValueError, match="batch: 3 samples, but all workers expect 4"):
        run_workers(2, said)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "Sequential ends in BatchNorm1d: the model has no head"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "Sequential ends in ReLU: the model has no head"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
            "Sequential has parameters in its head only, so there is no backbone",
        ),
        (nn.Linear(3, 2), "Linear ends in Linear: the model has no head; make nn.Linear, or a sequence"),
    ],
)
def test_a_model_without_a_head_is_refused_in_one_line(model, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        cut_off(model)


def test_a_model_without_its_head_returns_the_features_and_slices_make_up_the_head():
    for normalised in (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)), nn.Linear(6, 4)):
        model, inputs = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), normalised).eval(), torch.randn(5, 3)
        before = model(inputs)
        (stage,) = cut_off(model)
        features = model(inputs)
        assert features.shape == (5, 6)
        slices = [slice_of(stage, slice(start, stop)) for start, stop in ((0, 1), (1, 4))]
        torch.testing.assert_close(torch.cat([part(features) for part in slices], 1), before)


@pytest.mark.parametrize(
    ("name", "head"), [("resnet20", [10]), ("vgg16", [10]), ("resnet50", [100]), ("transformer", [])]
)
def test_heads_are_found_in_the_models_that_have_one(name, head):
    module = plugins.load("models", name)
    with torch.device("meta"):
        assert widths(module.build().eval(), data_set(module.DATA).example()) == head


@given(
    workers=st.sampled_from([2, 4, 8]),
    rows=st.integers(1, 3),
    features=st.integers(1, 9),
    columns=st.lists(st.sampled_from([4, 8, 12]), min_size=1, max_size=3),
    backbone=st.sampled_from([8, 80]),
)
def test_the_predicted_bytes_are_those_that_the_busiest_link_carries(workers, rows, features, columns, backbone):
    """All communications of an iteration run in lock step, one second per byte. The widths divide into equal slices."""
    layout, ranks = Layout(workers, workers // 2, rows), range(workers)
    total = len(layout.backbone) * rows

    def at_heads(width: int) -> list:
        return [torch.zeros(total, width) if rank in layout.head else None for rank in ranks]

    def one_after_another(rank: int):
        mine = torch.zeros(rows, features + 1) if rank in layout.backbone else None
        yield from hybrid_messages.gather_rows(layout, rank, mine, features + 1)
        for width in columns:
            own = at_heads(width // layout.heads)[rank]
            yield from hybrid_messages.gather_columns(layout, rank, own, width)
        for width in columns[:-1]:
            yield from hybrid_messages.scatter_columns(layout, rank, at_heads(width)[rank])
        yield from hybrid_messages.scatter_rows(layout, rank, at_heads(features)[rank], features)
        gradient = torch.zeros(backbone) if rank in layout.backbone else None
        yield from sum_over_first(halving_doubling, rank, len(layout.backbone), gradient)

    found = lockstep.run([one_after_another(rank) for rank in ranks], beta_s=1.0)
    assert link_bytes(workers, layout.heads, rows, features, columns, backbone) == pytest.approx(found.time_s)


@pytest.mark.parametrize("name", ["resnet20", "vgg16_imagenet"])
def test_what_is_around_a_head_is_told_from_the_sizes_of_parameters(name):
    metadata, module = plugins.describe("models", name), plugins.load("models", name)
    with torch.device("meta"):
        model = module.build()
        (first, *_), features, backbone = cut_off(model), *around_head(metadata["layers"], metadata["head"])
    assert features == first[0].in_features and backbone == sum(p.numel() for p in model.parameters())
    without_biases = [size for size in metadata["layers"] if size not in metadata["head"]]
    assert around_head(without_biases, metadata["head"])[0] == features


@given(forward=st.floats(0, 9), backward=st.floats(0, 9), buckets=st.lists(st.floats(0, 9), min_size=1, max_size=4))
def test_data_parallel_iterations_overlap_and_lose_no_work(forward, backward, buckets):
    """An iteration lasts at least as long as each part, and at most as long as both. One bucket overlaps nothing."""
    computing = forward + backward
    found = data_parallel_s(forward, computing, buckets)
    assert max(computing, sum(buckets)) <= found <= computing + sum(buckets) + 1e-9
    assert data_parallel_s(forward, computing, buckets[:1]) == pytest.approx(computing + buckets[0])


def test_the_table_shows_what_was_predicted_next_to_what_was_measured(tmp_path, monkeypatch):
    """ResNet-20's links have 8 Mb/s, so a million bytes take one second."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log
    report = Report(tmp_path, ())
    learnt, whole = Training("resnet20", batch=4), 269_722
    cluster = Cluster(network="testbed", rates_mbit=(8.0, 8.0))
    scheme = Scheme(options={"heads": 1}, collective="halving-doubling")
    kinds = dict.fromkeys(("features_s", "columns_s", "input_gradients_s", "backbone_gradients_s"), 0.1)
    iterations = pd.DataFrame({"iteration_s": [0.9, 0.9], "computing_s": 0.5} | kinds)
    sent = pd.DataFrame({"rank": [0, 1], "part": ["backbone", "head"], "kind": "features", "messages": 1, "bytes": 9})
    ours = RunSpec("hybrid", replace(learnt, batch=8), scheme, cluster)
    of_4, eight = (replace(cluster, workers=n, rates_mbit=(8.0,) * n) for n in (4, 8))
    report.runs.write("hybrid/ours", ours, iterations=iterations, sent=sent)
    times = {"iteration_s": [2.0, 2.0], "communication_s": 1.5, "forward_s": 0.2, "sent_bytes": 9, "received_bytes": 9}
    timed = (spec for spec in studied({"models": {"resnet20": 4}, "workers": [2]}).values() if spec.kind == "timing")
    for scheme in (spec.scheme for spec in timed):
        # Halving-doubling has merged its gradients into one bucket.
        sizes = {"none": [whole - 1000, 1000], "halving-doubling": [whole]}
        variants = ["none", *scheme.timed_with]
        groups = pd.concat([pd.DataFrame({"variant": v, "entries": sizes[v]}) for v in variants])
        rows = pd.concat([pd.DataFrame(times).assign(variant=v, iteration_s=2 + (v != "none")) for v in variants])
        if scheme.topology == "ps-weights":
            rows = rows[:1]
        report.runs.write(
            f"timing/{scheme.topology}", RunSpec("timing", learnt, scheme, cluster), iterations=rows, groups=groups
        )
    report.runs.write("hybrid/more", replace(ours, cluster=of_4), iterations=iterations, sent=sent)
    report.runs.write("hybrid/most", replace(ours, cluster=eight), iterations=iterations, sent=sent)
    inputs = {kind: report.runs.every(kind, "iterations.csv") for kind in ("hybrid", "timing")}
    table, shown = report.table("studies/hybrid/table.py", "hybrid", **inputs)
    rows = table[table["workers"] == 2].set_index("way")
    assert rows["iteration_s"].to_dict() == {"hybrid": 0.9, "ring": 2, "halving-doubling": 3, "server, weights": 2}
    assert rows["messages"].to_dict() == {"hybrid": 1, "ring": 4, "halving-doubling": 2, "server, weights": 4}
    assert "| 2000   " in shown  # one iteration has no interval
    found, mb = rows["predicted_s"], 4e-6  # seconds for an entry
    of_4 = table[table["workers"] == 4].set_index("way")
    assert of_4["repeats"].to_dict() == {"hybrid": 2, "ring": 0, "halving-doubling": 0, "server, weights": 0}
    assert of_4.loc["server, weights", "predicted_s"] == pytest.approx(0.2 + 8 * whole * mb, rel=1e-4)
    of_8 = table[(table["workers"] == 8) & (table["repeats"] == 0)].set_index("way")
    by_8 = table[(table["workers"] == 8) & (table["repeats"] > 0)]
    assert by_8["way"].tolist() == ["hybrid"] and by_8["iteration_s"].tolist() == [0.9]
    features = 8 * 129 * mb  # there with the class, and back
    assert found["hybrid"] == pytest.approx(0.5 + features, rel=1e-4)
    assert found["ring"] == pytest.approx(0.2 + whole * mb, rel=1e-4)
    assert found["server, weights"] == pytest.approx(0.2 + 4 * whole * mb, rel=1e-4)
    columns = 0.75 * 32 * 10 * mb
    by_hybrid = 0.5 + 4 * features + columns + 1.5 * (whole - 650) * mb
    assert of_8["predicted_s"].tolist() == pytest.approx(
        [by_hybrid, 0.2 + 1.75 * whole * mb, 1.5 + 1.75 * whole * mb, 0.2 + 16 * whole * mb], rel=1e-4
    )
    assert of_8[["iteration_s", "computing_s", "bytes"]].isna().all(axis=None) and (of_8["repeats"] == 0).all()
    assert shown.count("| 8, predicted") == 4 and shown.count("| ResNet-20 | 8 ") == 1 and "nan" not in shown
    text = report.figure("studies/hybrid/figure.py", "figure", Items(table=tmp_path / "hybrid.csv"))
    assert "8 workers, hybrid" in text and "8 dedicated, hybrid" in text and "4 dedicated, ring" in text
    assert "predicted" in text  # the diamond is in the legend


def test_the_legend_leaves_out_parts_that_are_too_short_to_be_seen():
    visible = runpy.run_path(str(ROOT / "workflow" / "studies" / "hybrid" / "figure.py"))["visible"]
    one = {"title": "a", "way": "hybrid", "sender": "backbone", "iteration_s_high": 1.0, "predicted_s": 1.0}
    parts = {"computing_s": 0.8, "features_s": 0.004, "columns_s": 0.0, "input_gradients_s": 0.02, "gradients_s": None}
    assert visible(pd.DataFrame([one | parts])) == {"computing", "input gradients"}
    short = {"title": "b", "iteration_s_high": 0.1, "predicted_s": 0.1}  # the same features fill 3 % of its axis
    assert visible(pd.DataFrame([one | parts, one | parts | short])) >= {"features"}


class Noise:
    train_size = 640

    def batch(self, step, shard):
        return torch.randn(shard.batch, 3, 32, 32), torch.randint(0, 10, (shard.batch,))


def test_a_run_with_a_step_of_fewer_samples_is_refused_before_the_first_step():
    data = Noise()
    data.train_size = 19
    spec = RunSpec(
        "hybrid", Training("resnet20", batch=2, train_steps=5), Scheme(collective="ring", options={"heads": 2}),
        Cluster("torch_dist", 4),
    )  # fmt: skip
    line = (
        "batch: 2 samples on each of 2 backbone workers; an epoch of 19 samples has 4 such steps, and the run makes 5"
    )
    with pytest.raises(ValueError, match=line):
        run_workers(4, lambda comm: training.hybrid(spec, comm, data, CPU, lambda *_: None))


def test_a_run_leaves_iterations_whose_parts_add_up_and_what_every_rank_sent(monkeypatch):
    spec = RunSpec(
        "hybrid", Training("resnet20", batch=2), Scheme(collective="halving-doubling", options={"heads": 2}),
        Cluster("torch_dist", 4), Measurement(repeats=2),
    )  # fmt: skip
    seeds = []  # of dropout and of other random numbers, which differ between workers
    monkeypatch.setattr(training, "seed_all", seeds.append)
    tables = run_workers(4, lambda comm: training.hybrid(spec, comm, Noise(), CPU, lambda *_: None))
    assert sorted(seeds) == [4 * spec.training.seed + rank for rank in range(4)]
    assert all(found == tables[0] for found in tables)
    for row in tables[0]["iterations"]:
        parts = [row["computing_s"], *(row[f"{kind}_s"] for kind in KINDS)]
        assert sum(parts) == pytest.approx(row["iteration_s"]) and min(parts) > 0
    sent = {(row["rank"], row["kind"]): (row["messages"], row["bytes"]) for row in tables[0]["sent"]}
    gradients = 4 * (269_722 - 650)
    assert [sent[rank, "features"] for rank in range(4)] == [(2, 2 * 4 * 2 * 65)] * 2 + [(0, 0)] * 2
    assert [sent[rank, "columns"] for rank in range(4)] == [(0, 0)] * 2 + [(1, 4 * 4 * 5)] * 2
    assert [sent[rank, "input_gradients"] for rank in range(4)] == [(0, 0)] * 2 + [(2, 4 * 4 * 64)] * 2
    assert [sent[rank, "backbone_gradients"] for rank in range(4)] == [(2, gradients)] * 2 + [(0, 0)] * 2
    assert [row["part"] for row in tables[0]["sent"]] == ["backbone"] * 8 + ["head"] * 8


def test_a_hybrid_learns_step_by_step_what_data_parallel_training_learns_from_the_same_samples(tmp_path):
    values = read("quick") | {"network": "testbed"}
    learning = {"model": "resnet20", "steps": 4, "batch": 6, "lr": 0.02}
    values |= {"seeds": [0, 3], "studies": {"hybrid": {"learning": learning}}}
    runs = config.load(values, "c").studies["hybrid"]
    names = ("hybrid/learning-resnet20", "accuracy/hybrid-resnet20")
    assert [runs[f"{name}-seed3"].training.seed for name in names] == [3, 3]
    ours, parallel = (runs[f"{name}-seed0"] for name in names)
    tested = replace(parallel.measurement, test_samples=Images.test_size, final_test_samples=Images.test_size)
    parallel = replace(parallel, measurement=tested)
    settings = LaunchSettings(checkpoints=str(tmp_path))

    def accuracy(comm) -> dict:
        return train.accuracy(parallel, comm, Images(), CPU, Silent(), settings)

    found = run_workers(ours.processes, lambda comm: training.hybrid(ours, comm, Images(), CPU, lambda *_: None))
    points = pd.DataFrame(run_workers(parallel.processes, accuracy)[0]["points"])
    for table in found:
        learnt = pd.DataFrame(table["learnt"])
        assert learnt.to_numpy() == pytest.approx(points[list(learnt)].to_numpy(), rel=1e-3)
    assert points["train_loss"].iloc[-1] < points["train_loss"].iloc[0]

    report = Report(tmp_path, ())
    report.runs.write("hybrid/ours", ours, learnt=learnt)
    report.runs.write("accuracy/parallel", parallel, points=points[1::2])
    inputs = {"hybrid": report.runs.every("hybrid", "learnt.csv")}
    inputs["parallel"] = report.runs.every("accuracy", "points.csv")
    table, _ = report.table("studies/hybrid/learning.py", "learning", **inputs)
    ways = {way: rows.set_index("step") for way, rows in table.groupby("way")}
    assert list(ways["hybrid"].index) == [2, 4] and set(table["samples"]) == {12}
    halves = learnt["train_loss"].to_numpy().reshape(2, 2).mean(axis=1)
    assert ways["hybrid"]["train_loss"].to_numpy() == pytest.approx(halves, rel=1e-5)
    text = report.figure("studies/hybrid/learning_figure.py", "figure", Items(table=tmp_path / "learning.csv"))
    assert "hybrid" in text and "data-parallel" in text and "training loss" in text


def studied(study: dict, **values) -> dict[str, RunSpec]:
    """The timed runs of the study, together with the quick configuration's."""
    values = read("quick") | {"network": "testbed", "studies": {"hybrid": study}} | values
    runs = config.load(values, "c").studies["hybrid"]
    return {name: spec for name, spec in runs.items() if not spec.training.train_steps}


def test_the_study_runs_every_way_on_the_same_samples_where_there_is_a_testbed():
    study = {"models": {"vgg16": 6}, "workers": [4], "rate_mbit": 100, "repeats": 5, "limit_s": 999}
    runs = studied(study)
    ways = {name.removeprefix("timing/hybrid-vgg16-").removesuffix("-4workers"): spec for name, spec in runs.items()}
    ours = ways.pop("hybrid/vgg16")
    assert (ours.training.batch, ours.scheme.options, ours.measurement.repeats) == (2 * 6, {"heads": 2}, 5)
    assert ours.cluster == Cluster("torch_dist", 4, network="testbed", rates_mbit=(100.0,) * 4)
    assert ways.keys() == {"all-reduce", "server"}
    alone = [ways["all-reduce"].scheme.alone(variant) for variant in ("none", "halving-doubling")]
    assert [one.collective for one in alone] == ["ring", "halving-doubling"]
    assert {(spec.kind, spec.training.batch, spec.measurement.blocks) for spec in ways.values()} == {("timing", 6, 5)}
    assert {spec.processes: len(spec.cluster.rates_mbit) for spec in ways.values()} == {4: 4, 5: 5}
    # VGG16: 59 MB of gradients, 7 s of a link for an all-reduce of 4 workers and 38 s by a server
    for limit_s, blocks in ((40, {"all-reduce": 5, "server": 1}), (15, {"all-reduce": 2}), (5, {})):
        runs = studied(study | {"limit_s": limit_s})
        timed = {spec.scheme.topology: spec.measurement.blocks for spec in runs.values() if spec.kind == "timing"}
        assert len(runs) == 1 + len(blocks) and list(timed.values()) == list(blocks.values())
    assert len(studied({})) == 3 * 3 * 2 - 1  # ways, models, numbers of workers; one would take too long
    assert not studied({}, network="host")


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"models": {"resnet": 8}}, "studies.hybrid.models: no file models/resnet.py .did you mean"),
        ({"models": {"transformer": 8}}, "studies.hybrid.models: transformer does not end in fully connected layers"),
        ({"learning": {"model": "transformer"}}, "studies.hybrid.learning.model: transformer does not end in fully"),
        ({"workers": [3]}, "studies.hybrid.workers.0: 3 is not valid; give a number of workers, one of: 2, 4, 8"),
        ({"models": {"vgg16": 0}}, "studies.hybrid.models.vgg16: 0 is not valid; give samples of each data-parallel"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(study, said):
    with pytest.raises(config.ConfigError, match=said):
        studied(study)
