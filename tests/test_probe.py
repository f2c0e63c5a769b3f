"""The probe: training keeps its bits, nothing stays behind, and a bad profile ends in one line."""

import copy
import gc
import itertools
import json
import math
import os
import pickle
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from statistics import median_low
from types import SimpleNamespace
from unittest import mock

import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from probe_parts import (
    compiled_outside,
    ddp_settings,
    exchanges_of,
    hybrid,
    in_float64,
    plain,
    refusals,
    short_of_memory,
    trained,
    with_and_without,
)
from support import CPU, PATIENCE_S, ROOT, examples, horovod_is_slow, make
from world import World

from dlgs_bench.buckets import fill
from dlgs_bench.exchange import finite
from dlgs_bench.hooks.local_steps import LocalSteps
from dlgs_bench.probe import mirror, process_group, record
from dlgs_bench.probe import recorder as recorder_module
from dlgs_bench.probe.marks import CACHES_BYTES, Marks
from dlgs_bench.probe.recorder import Recorder, _spread, _Step
from dlgs_bench.timemodel.job_profile import DDP_DEFAULTS, SCHEMA, load


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    without, _ = trained(plain, None)
    weights, left = trained(plain, path)
    assert all(torch.equal(a, b) for a, b in zip(weights, without, strict=True)) and left == 0
    return path


def same(a: list, b: list) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.mark.unit
def test_a_profile_is_valid_and_adds_up(profile):
    found = load(profile)
    jsonschema.validate(found, SCHEMA)
    assert found["job"]["steps"] == 3 and found["job"]["kind"] == "single" and not found["network"]
    assert [row["shape"] for row in found["parameters"]] == [[40, 6], [40], [3, 40], [3]]
    arrived = [row["arrived_s"] for row in found["parameters"]]
    assert max(arrived[2:]) <= min(arrived[:2])  # the last layer's gradients come first
    assert {"cast", "topk"} == {row["name"] for row in found["methods"]}
    whole = 40 * 6 + 40 + 3 * 40 + 3  # one bucket
    assert {row["entries"] for row in found["selection"]} == {whole}
    for row in found["methods"]:
        assert max(sample["entries"] for sample in row["samples"]) == pytest.approx(whole, abs=8)
    assert found["job"]["versions"]["nccl"] is None or torch.cuda.is_available()
    assert [path.name for path in profile.parent.iterdir()] == ["profile.json"]


@pytest.mark.unit
def test_an_interrupted_training_leaves_no_hook_and_no_file(tmp_path):
    _, left = trained(plain, tmp_path / "profile.json", stop=4)
    assert left == 0 and not list(tmp_path.iterdir())


class Wrapped(torch.optim.Optimizer):
    """An optimizer as Accelerate wraps it: a subclass whose own hooks do not exist."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


@pytest.mark.unit
def test_a_call_without_with_records_nothing_and_warns(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 2))
    with pytest.warns(RuntimeWarning, match="nothing is recorded; write: with record"):
        record(model, optimizer, tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.unit
def test_a_call_without_a_path_ends_in_one_error(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(TypeError, match="path"):
        record(*plain(torch.nn.Linear(2, 2)))
    gc.collect()
    assert not ignored


@pytest.mark.unit
def test_a_wrapped_optimizer_is_recorded(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 2))
    with record(model, Wrapped(optimizer), tmp_path / "profile.json", steps=2, methods=["topk"]):
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            Wrapped(optimizer).step()
    assert load(tmp_path / "profile.json")["job"]["steps"] == 2 and not optimizer._optimizer_step_post_hooks


@pytest.mark.unit
@pytest.mark.parametrize("named", [False, True])
def test_a_closure_is_not_the_optimizers_work(tmp_path, named):
    model, optimizer = plain(torch.nn.Linear(2, 1))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).sum()
        loss.backward()
        return loss

    recorder = Recorder(model, optimizer, tmp_path / "profile.json", 3, ["cast"])
    recorder.start()
    for _ in range(5):
        loss = optimizer.step(**{"closure": closure}) if named else optimizer.step(closure)
    recorder.remove_hooks()
    assert torch.is_tensor(loss) and len(recorder._recorded) == 3
    for row in recorder._recorded:
        assert row["step"].last <= row["step"].optimizer <= row["ended"]


@pytest.mark.unit
def test_the_parts_of_a_step_add_up_to_its_time(tmp_path):
    """Both steps have two passes. In the second step, no hook saw backward begin, so its loss counts as backward."""
    recorder = Recorder(*plain(torch.nn.Linear(2, 1)), tmp_path / "profile.json", 3, ["cast"])
    seen, unseen = (
        _Step([[1.0, 2.0], [7.0, 15.0]], backward, {0: 63.0, 1: arrived}, last=63.0, optimizer=127.0)
        for backward, arrived in ((31.0, 47.0), (None, None))
    )
    recorder._recorded = [{"step": step, "began": 0.0, "ended": 255.0} for step in (seen, unseen)]
    parts, arrivals = recorder._times()
    assert parts.pop("iteration") == [255, 255] == [sum(row) for row in zip(*parts.values(), strict=True)]
    assert parts == {
        "forward": [14, 14], "loss": [16, 0], "backward": [32, 48], "waiting": [64, 64], "optimizer": [128, 128],
        "other": [1, 1],
    }  # fmt: skip
    assert arrivals == [[32, 16], [48, None]]


@pytest.mark.unit
def test_times_are_recorded_as_a_median_between_two_deciles():
    assert _spread([float(n) for n in range(11, 0, -1)]) == {"median_s": 6, "low_s": 2, "high_s": 10}


@pytest.mark.unit
def test_the_cores_that_backward_does_not_use_are_idle(tmp_path, monkeypatch):
    """The process keeps 1.5 of its 4 cores busy."""
    seconds = itertools.count()
    monkeypatch.setattr(recorder_module, "_clocks", lambda: (float(now := next(seconds)), 1.5 * now))
    monkeypatch.setattr(process_group, "own_cores", lambda machine: 4.0)
    monkeypatch.setattr(mirror, "measure", lambda *_: ([], {}))
    model, optimizer = plain(torch.nn.Linear(3, 5))
    with record(model, optimizer, tmp_path / "profile.json", steps=1, methods=["cast"]):
        train(model, optimizer, 4)
    assert load(tmp_path / "profile.json")["job"]["idle_cores"] == 2.5


@pytest.mark.unit
def test_a_skipped_optimizer_step_does_not_count_as_accumulation(tmp_path):
    """GradScaler skips the optimizer's step if a gradient is not finite."""
    model, optimizer = plain(torch.nn.Linear(2, 1))
    model.require_backward_grad_sync = True  # as DistributedDataParallel
    recorder = Recorder(model, optimizer, tmp_path / "profile.json", 5, ["cast"])
    recorder.start()
    for number in range(8):
        model(torch.ones(4, 2)).sum().backward()
        if number != 4:
            optimizer.step()
    recorder.remove_hooks()
    assert sorted(len(row["step"].passes) for row in recorder._recorded) == [1, 1, 1, 1, 2]
    job = recorder._job("ddp")
    assert (job["passes"], job["exchanges"]) == (1, 1)


@pytest.mark.unit
def test_a_step_that_raises_is_not_recorded_and_recording_goes_on(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 1))
    recorder = Recorder(model, optimizer, tmp_path / "profile.json", 5, ["cast"])
    recorder.start()
    for number in range(9):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.param_groups[0]["lr"] = None if number == 4 else 0.1
        with pytest.raises(TypeError) if number == 4 else nullcontext():
            optimizer.step()
    recorder.remove_hooks()
    assert len(recorder._recorded) == 5
    assert {len(row["step"].passes) for row in recorder._recorded} == {1}


@pytest.mark.unit
def test_autocast_around_the_forward_pass_does_not_change_the_methods(tmp_path):
    model, optimizer = plain(torch.nn.Linear(20, 10))
    with record(model, optimizer, tmp_path / "profile.json", steps=1, methods=["powersgd"]):
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(4, 20)).sum()
            loss.backward()
            optimizer.step()
    assert "powersgd" in {row["name"] for row in load(tmp_path / "profile.json")["methods"]}


@pytest.mark.unit
def test_what_cannot_be_recorded_ends_in_one_line(tmp_path):
    model, optimizer = plain(torch.nn.Linear(2, 2))
    for arguments in ({"steps": 0}, {"methods": ["topkk"]}, {"methods": "topk"}):
        with (
            pytest.raises(ValueError, match=r"^record: [^\n]+$"),
            record(model, optimizer, tmp_path / "p", **arguments),
        ):
            pass
    with (
        pytest.raises(ValueError, match=r"^record: path: /proc/p cannot be written: [^\n]+$"),
        record(model, optimizer, "/proc/p"),
    ):
        pass
    _, other = plain(torch.nn.Linear(2, 2))
    with (
        pytest.raises(ValueError, match=r"^record: optimizer: SGD has no parameter"),
        record(model, other, tmp_path / "p"),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"^record: optimizer: list is not a torch.optim.Optimizer; [^\n]+$"),
        record(model, [optimizer], tmp_path / "p"),
    ):
        pass
    with LocalSteps(model, optimizer, "diloco"):
        line = r"^record: model: LocalSteps exchanges its weights, [^\n]+$"
        with pytest.raises(ValueError, match=line), record(model, optimizer, tmp_path / "p"):
            pass


@pytest.mark.unit
def test_of_two_recordings_of_one_model_the_second_is_refused(tmp_path):
    model, optimizer = plain(torch.nn.Linear(3, 2))
    with record(model, optimizer, tmp_path / "p", steps=1, methods=["cast"]):
        with (
            pytest.raises(ValueError, match=r"^record: model: another record records it; [^\n]+$"),
            record(model, optimizer, tmp_path / "q"),
        ):
            pass
        train(model, optimizer, 4)
    assert load(tmp_path / "p")["job"]["steps"] == 1


@pytest.mark.unit
def test_a_compiled_model_is_not_compiled_again_in_each_step(tmp_path):
    model, optimizer = plain(torch.nn.Linear(3, 2))
    compiled = torch.compile(model, backend="eager")
    for recorded in (model, compiled):
        with (
            torch._dynamo.config.patch(error_on_recompile=True),
            record(recorded, optimizer, tmp_path / "p", steps=4, methods=["cast"]),
        ):
            train(compiled, optimizer, 7)
        torch._dynamo.reset()
        assert load(tmp_path / "p")["job"]["steps"] == 4


@pytest.mark.unit
@pytest.mark.parametrize(("trains", "records"), [(0, 0), (2, 0), (3, 1)])
def test_too_few_steps_are_one_warning_after_the_training(tmp_path, trains, records):
    path = tmp_path / "profile.json"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights, _ = trained(plain, path, steps=trains)
    lines = [str(warning.message) for warning in caught if str(warning.message).startswith("record")]
    if records:
        assert not lines and load(path)["job"]["steps"] == records
    else:
        assert lines == [
            f"record: steps: none was recorded, so {path} is not written; train for at least 3 steps in the context"
        ]
        assert same(weights, trained(plain, None, steps=trains)[0])


def train(model, optimizer, steps: int, interrupted: bool = False) -> None:
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    if interrupted:
        raise KeyboardInterrupt


def reported(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("record: ")]


@pytest.mark.unit
def test_training_goes_on_where_a_selection_cannot_be_compiled(tmp_path, monkeypatch):
    """Triton looks for a compiler in its first kernel, and then raises an error of its own kind."""

    def broken(*_):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr("dlgs_bench.exchange.selection.compiled_backend.take", broken)
    model, optimizer = plain(torch.nn.Linear(3, 5))
    with record(model, optimizer, tmp_path / "profile.json", steps=3, methods=["topk"]):
        train(model, optimizer, 8)
    profile = load(tmp_path / "profile.json")
    assert {row["implementation"] for row in profile["selection"]} == {"torch"}
    assert {row["name"]: row["options"].get("selection") for row in profile["methods"]}["topk"] == "torch"


@pytest.mark.unit
def test_recording_goes_on_after_a_forward_pass_within_an_optimizers_step(tmp_path):
    model, optimizer = plain(torch.nn.Linear(3, 5))
    looks = [0]

    def look(*_) -> None:
        if looks[0] == 1:  # an optimizer that looks at another point in one of its steps
            model(torch.ones(1, 3))
        looks[0] += 1

    optimizer.register_step_pre_hook(look)
    with record(model, optimizer, tmp_path / "profile.json", steps=3, methods=["topk"]):
        train(model, optimizer, 12)
    assert load(tmp_path / "profile.json")["job"]["steps"] == 3


@pytest.mark.unit
def test_a_copy_of_the_model_has_no_recorder(tmp_path):
    """As an average of weights, or a checkpoint of the whole module, which is made while the job trains."""
    model, optimizer = plain(torch.nn.Linear(3, 5))
    alone = pickle.dumps(model)
    with record(model, optimizer, tmp_path / "profile.json", steps=3, methods=["cast"]):
        train(model, optimizer, 2)
        twin, written = copy.deepcopy(model), pickle.dumps(model)
        twin(torch.ones(1, 3))
        train(model, optimizer, 4)
    assert len(written) < len(alone) + 1000
    assert load(tmp_path / "profile.json")["job"]["passes"] == 1
    assert torch.equal(pickle.loads(written)(torch.ones(1, 3)), twin(torch.ones(1, 3)))


@pytest.mark.unit
def test_the_probe_reports_what_it_does_and_what_it_cannot_measure(tmp_path, capsys):
    path = tmp_path / "profile.json"
    model, optimizer = plain(torch.nn.Linear(3, 5))
    with record(model, optimizer, path, steps=3, methods=["topk", "diloco", "lossless"]):
        train(model, optimizer, 6)
    first, second, last = reported(capsys)
    assert re.fullmatch(r"record: measuring 3 methods \(about \d+ s\)", first)
    assert second == f"record: methods: diloco is not measured: {mirror.LOCAL_STEPS}"
    assert last.startswith(f"record: {path} is written: 3 of 3 steps recorded, 3 methods measured; fewer than 10 steps")
    assert {row["name"] for row in load(path)["methods"]} == {"cast", "topk", "lossless"}


@pytest.mark.unit
def test_too_little_memory_ends_no_training(tmp_path, capsys):
    path = tmp_path / "profile.json"
    model, optimizer = plain(torch.nn.Linear(3, 5))
    full = mock.patch.object(torch, "randn", side_effect=torch.OutOfMemoryError("out of memory"))
    with full, record(model, optimizer, path, steps=3, methods=["topk"]):
        train(model, optimizer, 6)
    found = load(path)
    assert found["selection"] == found["methods"] == [] and found["left_out"]["topk"].endswith("out of memory")
    assert "record: selection from 20 entries is not measured: a worker has too little memory" in reported(capsys)


@pytest.mark.engine
def test_sizes_for_which_one_rank_has_too_little_memory_are_left_out_on_all(worlds, tmp_path):
    path = tmp_path / "profile.json"
    (left, lines), other = worlds("torch_dist").run(short_of_memory, str(path))
    assert left == 0 and other == (0, [])
    network = load(path)["network"]
    assert {row["operation"]: row["bytes"] for row in network} == {
        "all-reduce": 4096, "all-gather": 4096, "message": 4096
    }  # fmt: skip
    for operation in ("all-reduce", "all-gather", "message"):
        assert f"record: {operation} of 65536 bytes or more is not measured: a worker has too little memory" in lines


@pytest.mark.unit
@pytest.mark.parametrize("measuring", [False, True])
def test_an_interruption_is_one_line(tmp_path, capsys, measuring):
    path = tmp_path / "profile.json"
    model, optimizer = plain(torch.nn.Linear(3, 5))
    stopped = mock.patch.object(mirror, "measure", side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt), stopped, record(model, optimizer, path, steps=5):
        train(model, optimizer, 8 if measuring else 4, interrupted=True)
    assert not list(tmp_path.iterdir())
    during = "while measuring" if measuring else "after 2 of 5 steps"
    assert reported(capsys)[-1] == f"record: interrupted {during}, so {path} is not written"


@pytest.mark.unit
@pytest.mark.parametrize("fails", [False, True])
def test_measurements_begin_with_empty_caches_and_leave_no_memory(tmp_path, fails):
    made, marks, order = [], Marks(torch.device("cpu")), []
    with mock.patch.object(marks, "empty_caches", partial(order.append, "caches")):
        marks.timed(lambda: order.append("work"))
    assert order == ["caches", "work"]
    model, optimizer = plain(torch.nn.Linear(3, 5))
    recorder = Recorder(model, optimizer, tmp_path / "profile.json", 5, ["topk"])
    recorder.start()
    train(model, optimizer, 4)
    measure = mirror.measure

    def measured(*given, **named):
        assert not measure(*given, **named)[1] and recorder._marks._other_data.nbytes == CACHES_BYTES
        made.append(True)
        if fails:
            raise KeyboardInterrupt
        return [], {}

    with mock.patch.object(mirror, "measure", measured), pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        recorder.finish()
    assert made and recorder._marks._other_data is None


shapes = st.lists(st.lists(st.integers(1, 41), max_size=3).map(tuple), min_size=1, max_size=4)


@pytest.mark.unit
@examples(0.4)
@given(shapes, st.integers(2, 9))
def test_every_method_can_be_measured_whatever_the_sizes_and_the_workers(layers, workers):
    methods, _ = mirror.chosen(None)
    plan = fill([math.prod(shape) for shape in layers], 40, 400)
    small_cache = mock.patch("dlgs_bench.probe.marks.CACHES_BYTES", 4)
    with small_cache, mock.patch.multiple(mirror, TARGETS=(50, 2**10), WORKERS=(2, workers), REPEATS=1):
        rows, failed = mirror.measure(methods, layers, plan, Marks(torch.device("cpu")), torch.device("cpu"))
    assert failed == {} and {row["name"] for row in rows} == set(methods)


@pytest.mark.unit
@pytest.mark.parametrize(
    "name, buckets, reordered, other_memory, copies",
    [
        ("dlgs", 1, False, False, False), ("dlgs", 1, True, False, True), ("dlgs", 2, False, True, True),
        ("cast", 1, True, False, False), ("cast", 1, False, True, True), ("topk", 2, False, False, True),
        ("lags", 2, True, False, False), ("lags", 2, False, True, True),
    ],
)  # fmt: skip
def test_the_work_of_a_method_is_a_hooks_work(monkeypatch, name, buckets, reordered, other_memory, copies):
    """A hook copies the state, and checks the gradient and the aggregate. It copies both if they are elsewhere."""
    seen: list[str] = []
    original = mirror._HookExchange.__init__

    def noted(exchange, method, bucket, arrived, transport):
        original(exchange, method, bucket, arrived, transport)
        if bucket.size > 1:
            seen.append("elsewhere" if arrived.data_ptr() != bucket.gradient.data_ptr() else "in place")

    monkeypatch.setattr(mirror._HookExchange, "__init__", noted)
    kept = finite._copied
    monkeypatch.setattr(finite, "_copied", lambda *states: seen.append("state") or kept(*states))
    check = finite.FiniteExchange._note
    monkeypatch.setattr(finite.FiniteExchange, "_note", lambda own, tensor: seen.append("check") or check(own, tensor))
    methods = {name: mirror.chosen([name])[0][name]}
    plan = [(0, 1), (1, 2)] if buckets == 2 else [(0, 2)]
    monkeypatch.setattr(mirror, "TARGETS", (64,))
    cpu = torch.device("cpu")
    (row,), failed = mirror.measure(methods, [(8, 16), (64,)], plan, Marks(cpu), cpu, reordered, other_memory)
    assert failed == {} and row["samples"]
    assert ("elsewhere" in seen) == copies and ("in place" in seen) != copies
    steps = seen.count("state")
    exchanged = seen.count("check") - steps  # every step checks what the script gets
    assert steps > exchanged > 0


@pytest.mark.unit
@examples(0.4)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(1, 2000), st.integers(1, 5000))
def test_the_jobs_own_buckets_are_measured(sizes, first_bytes, most_bytes):
    layers, most = [(size,) for size in sizes], 500
    plan = fill([4 * size for size in sizes], first_bytes, most_bytes)
    real = {"size": [sum(sizes[start:stop]) for start, stop in plan], "layer": sizes, "model": [sum(sizes)]}
    with mock.patch.multiple(mirror, TARGETS=(16, 64), MOST_ENTRIES=most):
        for scope, entries in real.items():
            measured = [sum(math.prod(shape) for shape in shapes) for shapes in mirror._buckets(layers, scope, plan)]
            assert measured == sorted(measured) and len(measured) <= 4 and measured[-1] <= most
            largest, middle = min(max(entries), most), min(median_low(entries), most)
            assert largest in measured and any(1 / 1.25 < middle / size < 1.25 for size in measured)


@pytest.mark.unit
def test_only_interfaces_that_tell_their_rate_are_recorded(tmp_path):
    assert process_group._interfaces(tmp_path) is None
    for name, speed, physical in (
        ("eth1", "25000\n", True), ("down", None, True), ("unknown", "-1\n", True), ("veth", "10000\n", False)
    ):  # fmt: skip
        (tmp_path / name / "device" if physical else tmp_path / name).mkdir(parents=True)
        if speed:
            (tmp_path / name / "speed").write_text(speed)
    assert process_group._interfaces(tmp_path) == [{"name": "eth1", "mbit": 25000}]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("files", "cores"),
    [({"cpu.max": "150000 100000\n"}, 1.5), ({"cpu.max": "max 100000\n"}, 64), ({}, 64),
     ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
     ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64)],
    ids=["version 2", "version 2 without quota", "no cgroup", "version 1", "version 1 without quota"],
)  # fmt: skip
def test_the_quota_of_a_container_limits_its_cores(tmp_path, monkeypatch, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(process_group, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    machine = process_group.machine(None)
    assert machine["cores"] == math.ceil(cores) and process_group.own_cores(machine) == cores
    assert process_group.own_cores(machine | {"workers": 4}) == cores / 4


@pytest.mark.unit
def test_a_container_with_a_quota_is_a_machine_of_its_own(tmp_path, monkeypatch):
    names = []
    comm = SimpleNamespace(device=torch.device("cpu"), allgather=lambda own: names.append(int(own)) or [own, own + 1])
    monkeypatch.setattr(process_group, "CGROUP", tmp_path)
    for quota in ("100000", "max"):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert process_group.machine(comm)["workers"] == 1
    assert names[0] != names[1]


@pytest.mark.unit
def test_workers_that_take_turns_send_one_workers_indices():
    """CLT-k: of N workers, one selects k indices and sends them to all others, and all sum k values."""
    with mock.patch.multiple(mirror, TARGETS=(2**12,), REPEATS=2):
        methods = {"cltk": mirror.chosen(["cltk"])[0]["cltk"]}
        (row,), _ = mirror.measure(methods, [(64, 64)], [(0, 1)], Marks(torch.device("cpu")), torch.device("cpu"))
    k = round(mirror.RATIO * 2**12)
    for sample in row["samples"]:
        assert sample["entries"] == 2**12 and sample["summed_bytes"] == pytest.approx(4 * k, abs=4)
        assert sample["gathered_bytes"] == pytest.approx(4 * k + 8, abs=4)


@pytest.mark.unit
def test_each_phase_of_a_method_has_its_share_of_the_time():
    """DLGS refreshes in one of 4 steps. A refresh takes 5 s here, and every other step 1 s."""
    method, marks = make("dlgs", refresh_every=4), Marks(CPU)

    def timed(work: partial) -> float:
        work()
        (context,) = work.args
        return 5.0 if method.phase(context.step) == "refresh" else 1.0

    marks.timed = timed
    row, _ = mirror._sample(method, ((8, 16),), 2, marks, CPU, copies=False, per_step_s=0.0)
    assert row["seconds"] == 2


@pytest.mark.engine
@horovod_is_slow
def test_ranks_keep_their_bits(engine, worlds, tmp_path):
    ranks = worlds(engine).run(with_and_without, engine, str(tmp_path / "profile"))
    for (without, _), (weights, left) in ranks:
        assert same(weights, without) and left == 0
    assert [path.name for path in tmp_path.iterdir()] == ["profile.0"]  # rank 0 alone writes
    found = load(tmp_path / "profile.0")
    assert found["job"]["workers"] == 2
    assert {row["operation"] for row in found["network"]} == {"all-reduce", "all-gather", "message"}
    assert found["job"]["ddp"] == (DDP_DEFAULTS if engine == "torch_dist" else None)
    assert found["job"]["machine"] == process_group.machine(None) | {"workers": 2}
    assert 0 <= found["job"]["idle_cores"] <= process_group.own_cores(found["job"]["machine"])
    assert all(row["processor_s"] > 0 for row in found["network"])


@pytest.mark.slow
@pytest.mark.engine
def test_hybrid_sharding_is_recorded_between_the_replicas(tmp_path):
    with World("torch_dist", 4) as world:
        ranks = world.run(hybrid, str(tmp_path / "profile"))
    for (without, _), (weights, left) in ranks:
        assert same(weights, without) and same(weights, ranks[0][0][0]) and left == 0
    assert [path.name for path in tmp_path.iterdir()] == ["profile.0"]  # one rank alone writes
    found = load(tmp_path / "profile.0")
    job = found["job"]
    assert (job["kind"], job["workers"], job["exchanges"], job["steps"], job["ddp"]) == ("hsdp", 2, 1, 3, None)
    assert job["machine"]["workers"] == 4  # also the processes of the other shard
    assert [row["shape"] for row in found["parameters"]] == [[20, 6], [20], [2, 40], [2]]  # of the first shard
    assert all(row["arrived_s"] is not None for row in found["parameters"]) and found["network"]


@pytest.mark.engine
def test_a_job_whose_default_dtype_has_8_bytes_sends_the_bytes_that_its_profile_states(worlds, tmp_path):
    for sizes, methods in worlds("torch_dist").run(in_float64, str(tmp_path / "profile")):
        assert sizes == {4, 2**12} and methods == ["cast", "topk"]


@pytest.mark.engine
def test_how_many_passes_of_a_step_exchange_gradients_is_recorded(worlds, tmp_path):
    for found in worlds("torch_dist").run(exchanges_of, str(tmp_path / "profile")):
        assert found == [(2, 2), (2, 1), (2, 1)]


@pytest.mark.engine
@horovod_is_slow
def test_a_job_that_does_not_exchange_once_and_uncompressed_is_refused(engine, worlds, tmp_path):
    for lines in worlds(engine).run(refusals, engine, str(tmp_path / "profile")):
        assert lines.pop("closed") == ""
        for kind, line in lines.items():
            assert line.startswith("record: ") and "\n" not in line and line.count(";") == 1, (kind, line)
        if engine == "torch_dist":
            assert "FSDP's reduce-scatter" in lines["no replicas"] and "a hook exchanges" in lines["sharded"]
            assert "record before any join" in lines["join"]
        assert "a hook exchanges its gradients" in lines["hook"] and "uncompressed training" in lines["16 bits"]


@pytest.mark.engine
def test_the_buckets_and_the_buffers_of_ddp_are_recorded(worlds):
    for one, other in worlds("torch_dist").run(ddp_settings):
        assert one == {"first_bucket_bytes": 2**21, "bucket_bytes": 2**21, "buffer_bytes": 2 * 3 * 4 + 8}
        assert other == DDP_DEFAULTS


@pytest.mark.slow
@pytest.mark.engine
def test_ddp_inside_a_compiled_module_is_recorded_as_ddp(worlds, tmp_path):
    path = tmp_path / "profile.json"
    assert worlds("torch_dist").run(compiled_outside, str(path)) == [0, 0]
    job = load(path)["job"]
    assert (job["kind"], job["workers"], job["steps"], job["ddp"]) == ("ddp", 2, 3, DDP_DEFAULTS)


@pytest.mark.slow
@pytest.mark.engine
def test_the_example_records_a_profile(tmp_path):
    path = tmp_path / "profile.json"
    script = [ROOT / "examples" / "probe_ddp.py", path]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": PATIENCE_S}
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    job = load(path)["job"]
    assert (job["kind"], job["workers"], job["steps"]) == ("ddp", 2, 10)


def refused(path) -> None:
    with pytest.raises(ValueError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.unit
@examples(3)
@given(st.floats(0, 0.999))
def test_a_profile_that_is_cut_off_is_refused(profile, tmp_path, part):
    text = profile.read_text().rstrip()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: int(part * len(text))])
    refused(cut)


def places(value, at=()):
    """Every place in nested lists and dicts, except in free text."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        if key not in ("versions", "options", "left_out"):
            yield from places(item, (*at, key))


@pytest.mark.unit
@examples(5)
@given(st.data())
def test_a_profile_with_a_wrong_value_is_refused(profile, tmp_path, data):
    found = copy.deepcopy(load(profile))
    wrong = tmp_path / "wrong.json"
    *way, key = data.draw(st.sampled_from([at for at in places(found) if "options" not in at and "versions" not in at]))
    holder = found
    for step in way:
        holder = holder[step]
    if isinstance(holder, dict) and data.draw(st.booleans()):
        if way == ["left_out"]:
            return
        del holder[key]
    else:
        holder[key] = data.draw(st.sampled_from([math.nan, math.inf, -1, -0.5, 10**400, [[]]]))
    wrong.write_text(json.dumps(found))
    refused(wrong)


@pytest.mark.unit
@pytest.mark.parametrize("text", ["", "[]", "null", "1", "{}", pytest.param("[" * 10**5, id="deep")])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    refused(path)  # there is none
    path.write_text(text)
    refused(path)
    path.write_text(json.dumps({"format": "dlgs-bench profile", "version": 2}))
    refused(path)
