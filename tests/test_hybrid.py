"""Hybrid parallelism: what is learnt equals training on one device, and every message and byte the formulas."""

import pytest
import torch
from conftest import CPU, read
from hybrid_parts import ROWS, STEPS, TRAINING, WIDTHS, batch, small, trained
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from harness import plugins
from harness.comm import hybrid, lockstep
from harness.comm.collectives import ring
from harness.comm.hybrid import Layout
from harness.comm.local import run_workers
from harness.config import load as config
from harness.data import load as data_set
from harness.spec import Cluster, Measurement, RunSpec, Scheme, Training
from harness.training import hybrid as training
from harness.training.head import cut_off, slice_of, widths
from harness.training.hybrid import KINDS, worker_of

CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32, whose sums are added in another order

layouts = st.builds(
    lambda heads, backbone, rows: Layout(heads + backbone, heads, rows),
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip


def on_one_device(backbone: int) -> list[dict]:
    """By step: loss, gradients and weights by name, and the gradient of the features, of all rows at once."""
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
    """Of every step what the workers saw, by rank, with training on one device."""
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
    """All ranks in lock step, against slices of one matrix."""
    m, ranks = len(layout.backbone), range(layout.workers)
    total = m * layout.rows
    addends = [torch.randint(-9, 9, (total, width)).float() for _ in ranks]
    rows = [part.split(layout.rows)[rank] if rank < m else None for rank, part in enumerate(addends)]
    found = lockstep.run([hybrid.gather_rows(layout, r, rows[r], width) for r in ranks])
    expected = torch.cat(rows[:m])
    assert all(torch.equal(found.results[r], expected) for r in layout.head)
    assert found.messages == [layout.heads] * m + [0] * layout.heads

    columns = {rank: layout.columns(rank, width) for rank in layout.head}
    parts = [expected[:, columns[rank]] if rank in columns else None for rank in ranks]
    found = lockstep.run([hybrid.gather_columns(layout, r, parts[r], width) for r in ranks])
    assert all(torch.equal(found.results[r], expected) for r in layout.head)

    summed = sum(addends[m:])
    found = lockstep.run([hybrid.scatter_columns(layout, r, addends[r] if r >= m else None) for r in ranks])
    assert all(torch.equal(found.results[r], summed[:, columns[r]]) for r in layout.head)
    found = lockstep.run([hybrid.scatter_rows(layout, r, addends[r] if r >= m else None, width) for r in ranks])
    assert all(torch.equal(found.results[r], summed.split(layout.rows)[r]) for r in layout.backbone)
    assert found.bytes == [0] * m + [4 * total * width] * layout.heads


@pytest.mark.parametrize(("workers", "heads"), [(2, 2), (4, 0), (1, 1)])
def test_a_backbone_or_a_head_without_a_worker_is_refused_in_one_line(workers, heads):
    with pytest.raises(ValueError, match=f"^{heads} of {workers} workers for the head, the others for the backbone; "):
        Layout(workers, heads, ROWS)


def test_more_slices_than_columns_are_refused_in_one_line_by_every_rank():
    def said(comm) -> str:
        with pytest.raises(ValueError) as caught:
            worker_of(small(), F.cross_entropy, Layout(8, 6, ROWS), comm, TRAINING, "ring")
        return str(caught.value)

    assert set(run_workers(8, said)) == {"6 slices of a layer of 5 columns; give at most 5 heads"}


def test_a_batch_of_another_size_is_refused_before_it_is_sent():
    def said(comm) -> str:
        worker = worker_of(
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), F.cross_entropy, Layout(2, 1, 4), comm, TRAINING, "ring"
        )
        if comm.rank == 0:
            worker.step(torch.zeros(3, 3), torch.zeros(3, dtype=torch.int64))

    with pytest.raises(ValueError, match="a batch of 3 samples, where all workers expect 4"):
        run_workers(2, said)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "Sequential ends in BatchNorm1d: a head to cut is fully"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "Sequential ends in ReLU: a head to cut is fully connected layers"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
            "Sequential has no parameters but those of its head, so no backbone",
        ),
        (nn.Linear(3, 2), "Linear ends in Linear: a head to cut is fully connected layers, nn.Linear, at the end of"),
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


class Noise:
    def batch(self, step, shard):
        return torch.randn(shard.batch, 3, 32, 32), torch.randint(0, 10, (shard.batch,))


def test_a_run_leaves_iterations_whose_parts_add_up_and_what_every_rank_sent():
    spec = RunSpec(
        "hybrid", Training("resnet20", batch=2), Scheme(collective="halving-doubling", options={"heads": 2}),
        Cluster("torch_dist", 4), Measurement(repeats=2),
    )  # fmt: skip
    tables = run_workers(4, lambda comm: training.hybrid(spec, comm, Noise(), CPU, lambda *_: None))
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


def studied(study: dict, **values) -> dict[str, RunSpec]:
    """The runs of the study, beside the quick configuration's."""
    return config.load(read("quick") | {"network": "testbed", "studies": {"hybrid": study}} | values, "c").studies[
        "hybrid"
    ]


def test_the_study_runs_every_way_on_the_same_samples_where_there_is_a_testbed():
    study = {"models": {"vgg16": 6}, "workers": [4], "rate_mbit": 100, "repeats": 5}
    runs = studied(study)
    ways = {name.removeprefix("timing/hybrid-vgg16-").removesuffix("-4workers"): spec for name, spec in runs.items()}
    ours = ways.pop("hybrid/vgg16")
    assert (ours.training.batch, ours.scheme.options, ours.measurement.repeats) == (2 * 6, {"heads": 2}, 5)
    assert ours.cluster == Cluster("torch_dist", 4, network="testbed", rates_mbit=(100.0,) * 4)
    assert ways.keys() == {"ring", "halving-doubling", "server"}
    assert {(spec.kind, spec.training.batch, spec.measurement.blocks) for spec in ways.values()} == {("timing", 6, 5)}
    assert {spec.processes: len(spec.cluster.rates_mbit) for spec in ways.values()} == {4: 4, 5: 5}
    assert len(studied({})) == 4 * 5 * 2  # ways, models, numbers of workers
    assert not studied({}, network="host")


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ({"models": {"resnet": 8}}, "studies.hybrid.models: no file models/resnet.py; known: "),
        ({"models": {"transformer": 8}}, "studies.hybrid.models: transformer does not end in fully connected layers"),
        ({"workers": [3]}, "studies.hybrid.workers.0: 3 is not valid; give a number of workers, one of: 2, 4, 8"),
        ({"models": {"vgg16": 0}}, "studies.hybrid.models.vgg16: 0 is not valid; give samples of each data-parallel"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(study, said):
    with pytest.raises(config.ConfigError, match=said):
        studied(study)
