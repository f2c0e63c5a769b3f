"""What calibrations of exchanges measure: buckets of any size, or a model's own where shapes decide the cost."""

import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from equal_worker import Noise, small_model
from support import CLASSES, CPU, METHODS, at, read

from dlgs_bench import plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.spec import LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.timemodel.costs import link_occupancy
from dlgs_bench.training import calibrate
from dlgs_bench.training.calibrate import CHEAP, TOGETHER, cases_of, exchanges
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.session import Session
from dlgs_bench.training.timed import since_start_s

pytestmark = pytest.mark.unit

RANK, LARGEST = 2, 2**21
SHAPED = [name for name in METHODS if CLASSES[name].cost_depends_on_shapes]


def calibration(method: str, model: str, **options) -> RunSpec:
    scheme = Scheme(method=method, options=options)
    return RunSpec("exchanges", Training(model), scheme, measurement=Measurement(repeats=1, largest={method: LARGEST}))


@pytest.mark.parametrize("model", ["resnet20", "vgg16", "resnet50"])
@pytest.mark.parametrize("method", SHAPED)
def test_where_shapes_decide_the_cost_buckets_are_layers_of_the_model_that_follow_each_other(method, model):
    flat = FlatGradients(plugins.load("models", model).build().parameters())
    runs = {tuple(flat.shapes[i:j]) for i in range(len(flat.shapes)) for j in range(i + 1, len(flat.shapes) + 1)}
    cases = cases_of(calibration(method, model), LARGEST)
    assert {count for _, count, _ in cases} == {1, TOGETHER}
    assert all(shapes in runs for shapes, _, _ in cases)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in SHAPED])
def test_elsewhere_the_model_does_not_matter(method):
    small, large = (cases_of(calibration(method, model), LARGEST) for model in ("resnet20", "vgg16"))
    assert small == large


def test_powersgd_sums_thin_matrices_twice_and_whole_vectors_once_when_it_is_calibrated():
    spec = calibration("powersgd", "resnet20", rank=RANK)
    rows, _ = run_workers(
        2, lambda comm: exchanges(spec, comm, None, CPU, lambda *progress: None, LaunchSettings())["samples"]
    )
    found = pd.DataFrame(rows).groupby(["entries", "buckets"])[["sent_bytes", "sums"]].agg(set)
    for shapes, count, _ in cases_of(spec, LARGEST):
        each = sum(RANK * (shape[0] + math.prod(shape[1:])) if len(shape) > 1 else shape[0] for shape in shapes)
        sent, sums = found.loc[(sum(map(math.prod, shapes)), count)]
        assert sent == {4 * each * count}
        assert sums == {count * (2 if any(len(shape) > 1 for shape in shapes) else 1)}


def test_only_where_shapes_decide_do_the_buckets_of_a_calibration_follow_the_configuration():
    first, second = (
        config.load(read("advise") | {"methods": ["none", "topk", "powersgd"], "bucket_bytes": size}, "c").calibrations
        for size in (2**20, 2**22)
    )
    exchanged = {name: spec.members for name, spec in first.items() if spec.kind == "exchanges"}
    differ = {
        one.variant
        for name, members in exchanged.items()
        for label, one in members.items()
        if one.scheme != second[name].members[label].scheme
    }
    assert differ == set(SHAPED)


def samples(launch_budget_s: float | None) -> pd.DataFrame:
    """The samples of one calibration with this budget."""
    spec = calibration("topk", "resnet20", ratio=0.1)
    spec = replace(spec, measurement=replace(spec.measurement, repeats=2, largest={spec.scheme.label: LARGEST}))
    place = LaunchSettings(launch_budget_s=launch_budget_s)
    work = lambda comm: exchanges(spec, comm, None, CPU, lambda *progress: None, place)["samples"]  # noqa: E731
    return pd.DataFrame(run_workers(2, work)[0])


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return samples(None)


@pytest.mark.parametrize("left_s", [1e-3, -math.inf])  # the second: earlier work has spent the budget
def test_a_calibration_out_of_time_measures_each_small_case_once_and_no_large_one(left_s, whole):
    late = samples(max(0.0, since_start_s() + left_s))
    case = ["entries", "buckets", "overlapped"]
    repeats, few = (table.groupby(case).size() for table in (whole, late))
    small = [one for one in repeats.index if one[0] * one[1] <= CHEAP]
    assert set(few) == {1} and set(few.index) == set(small) and len(few) < len(repeats)
    assert repeats.min() == 2 and repeats.max() == 4
    late["communication_s"] = late["entries"] * late["buckets"]  # measured times have noise, these do not
    communicate, _ = link_occupancy(late)  # goes on beyond the largest size that was measured
    assert communicate(LARGEST) >= communicate(CHEAP / 2) > 0


class Now(threading.local):
    """A clock of each rank, which is a thread. Tests set its ``seconds``."""

    seconds = 0.0

    def install(self, monkeypatch) -> None:
        """Let calibrations read this clock."""
        monkeypatch.setattr(calibrate, "moment", lambda device: self.seconds)
        monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: self.seconds))


def test_each_layer_has_its_own_backward_time_and_the_model_does_not_change(monkeypatch):
    """Layer l takes l + 1 seconds. At the barrier, rank 0 waits 5 s and rank 1 waits 7 s."""
    now, ready, sessions = Now(), calibrate.LayerTimes.ready, {}
    now.install(monkeypatch)

    def took(times: calibrate.LayerTimes, layer: int) -> None:
        now.seconds += layer + 1
        ready(times, layer)

    def kept(spec: RunSpec, comm, *rest) -> Session:
        session = Session(spec, comm, *rest)
        flat = session.flat
        sessions[comm.rank] = session, flat.parameters.clone(), [buffer.clone() for buffer in flat.buffers()]
        return session

    def work(comm) -> dict:
        barrier, wait_s = comm.barrier, 5 + 2 * comm.rank

        def waited() -> None:
            barrier()
            now.seconds += wait_s

        comm.barrier = waited
        return calibrate.layers(spec, comm, Noise(), CPU, lambda *progress: None, LaunchSettings())

    monkeypatch.setattr(calibrate.LayerTimes, "ready", took)
    monkeypatch.setattr(calibrate, "Session", kept)
    spec = RunSpec("layers", Training("small"), measurement=Measurement(repeats=2))
    for rank, tables in enumerate(run_workers(2, work)):
        seconds = [layer + 1 for layer in range(len(list(small_model().parameters())))]
        assert [row["backward_s"] for row in tables["layers"]] == 2 * seconds
        assert [row["skew_s"] for row in tables["iterations"]] == 2 * [5 + 2 * rank]
        session, parameters, buffers = sessions[rank]
        assert torch.equal(session.flat.parameters, parameters)
        assert all(map(torch.equal, session.flat.buffers(), buffers))


def test_a_communication_lasts_until_the_last_worker_has_its_messages(monkeypatch):
    now, stop = Now(), Clock.stop
    monkeypatch.setattr(Clock, "stop", lambda clock: stop(clock) | {"communication_s": now.seconds})

    def work(comm) -> list[dict]:
        now.seconds = 1.0 + comm.rank
        return exchanges(spec, comm, None, CPU, lambda *progress: None, LaunchSettings())["samples"]

    spec = calibration("topk", "resnet20", ratio=0.1)
    spec = replace(spec, measurement=replace(spec.measurement, largest={spec.scheme.label: calibrate.SMALLEST}))
    for samples in run_workers(2, work):
        assert {row["communication_s"] for row in samples} == {2.0}


def test_a_communication_slows_a_computation_by_its_time_minus_its_time_alone(monkeypatch):
    """A product takes 1 s alone, and 3 s during a communication of two products."""
    now, product_s = Now(), 1.0
    now.install(monkeypatch)
    pending = SimpleNamespace(done=iter([False, False, True]).__next__)

    def product() -> None:
        now.seconds += product_s

    def work(comm) -> float:
        nonlocal product_s
        shapes = ((calibrate.SMALLEST,),)
        exchange = calibrate._exchange_without_model(calibration("none", ""), comm, Clock(CPU), shapes, 1, CPU, True)
        exchange._overlapped = product
        exchange.begin(at(1))
        product_s = 3.0
        exchange._compute_until(pending)
        return exchange.taken_s

    assert run_workers(1, work) == [4.0]
