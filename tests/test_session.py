"""A session that is saved and loaded goes on bit for bit as if never stopped; whose momentum it is."""

import copy
import gc
import io
import random
from collections.abc import Iterable

import numpy as np
import psutil
import pytest
import torch
from equal_worker import Noise, go_on, session_of
from support import CPU, METHODS, make
from torch._subclasses.fake_tensor import FakeTensorMode

from dlgs_bench.comm.local import run_workers
from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.exchange import Bucket, Momentum, Sum
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import build, timed, train
from dlgs_bench.training.session import Session

pytestmark = pytest.mark.unit


def test_an_accuracy_run_keeps_its_curve_and_its_rows(data):
    """The run stops between two points of the curve, with real images. Its tables are the same as without a stop."""
    spec = RunSpec(
        "accuracy", Training("resnet20", batch=4, train_epochs=0.001, lr_steps=(80,)),
        Scheme(method="dlgs", options={"ratio": 0.1, "refresh_every": 4}), Cluster(),
        Measurement(evaluations=3, test_samples=20, final_test_samples=40),
    )  # fmt: skip
    images = Cifar10(data, CPU)

    def run(comm, stop: int | None = None, state: bytes = b"") -> Session:
        session, exchange = train.begin(spec, comm, copy.copy(images), CPU)  # shares the images
        if state:
            session.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        while session.done < (stop or session.spec.steps(session.data.train_size)):
            train.advance(session, exchange, session.spec.steps(session.data.train_size))
        return session

    def saved(comm) -> bytes:
        memory = io.BytesIO()
        torch.save(run(comm, stop=3).state_dict(), memory)
        return memory.getvalue()

    def tables(session: Session) -> dict:
        skipped = ("elapsed_s", "_s")
        return {name: [{k: v for k, v in row.items() if not k.endswith(skipped)} for row in rows]
                for name, rows in session.rows.items()}  # fmt: skip

    whole = run_workers(2, run)
    states = run_workers(2, saved)
    resumed = run_workers(2, lambda comm: run(comm, state=states[comm.rank]))
    for before, after in zip(whole, resumed, strict=True):
        assert tables(before) == tables(after) and len(before.rows["points"]) == 3
        assert torch.equal(before.flat.parameters, after.flat.parameters)


def test_the_mean_of_batchnorms_statistics_is_tested():
    """They differ between workers, which see different images."""

    def work(comm):
        session = go_on(session_of(comm, "topk"), 3)
        own = [buffer.clone() for buffer in session.flat.buffers()]
        session.data.test = lambda batch, shard, limit: [session.data.batch(0, shard)]
        session.evaluate(limit=8)
        return own, [buffer.clone() for buffer in session.flat.buffers()]

    (one, after), (other, too) = run_workers(2, work)
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for a, b, found, same in zip(one, other, after, too, strict=True):
        torch.testing.assert_close(found, (a + b) / 2)
        assert torch.equal(found, same)


class Frozen(torch.nn.Module):
    """A layer that trains, a frozen copy that forward updates, and a buffer of four dimensions, as of positions."""

    def __init__(self):
        super().__init__()
        self.layer, self.teacher = (torch.nn.Linear(3 * 32 * 32, 10) for _ in range(2))
        self.teacher.requires_grad_(False)
        self.register_buffer("positions", torch.linspace(0.1, 7.0, 3 * 32 * 32).view(1, 3, 32, 32))

    def forward(self, images):
        with torch.no_grad():
            self.teacher.weight.lerp_(self.layer.weight, 0.1)
        return self.layer((images + 1e-6 * self.positions).flatten(1)) + self.teacher.bias


@pytest.mark.parametrize("workers", [2, 3])
def test_frozen_weights_that_change_and_buffers_of_four_dimensions_are_kept(workers, monkeypatch):
    """A third of a number, added three times, is not always the number."""
    monkeypatch.setattr("dlgs_bench.training.session.build_seeded", lambda *_: Frozen())

    def work(comm):
        torch.manual_seed(0)
        session = go_on(session_of(comm, "topk"), 3)
        session.data.test = lambda batch, shard, limit: [session.data.batch(0, shard)]
        positions = session.flat.model.positions.clone()
        session.evaluate(limit=8)
        assert torch.equal(session.flat.model.positions, positions)
        state = copy.deepcopy(session.state_dict())
        torch.manual_seed(1)
        resumed = session_of(comm, "topk")
        resumed.load_state_dict(state)
        for ours, theirs in zip(resumed.flat.model.parameters(), session.flat.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)

    run_workers(workers, work)


class NumpyModel(torch.nn.Module):
    """Numpy makes its buffers and initial weights, Python's random scales half of its inputs, torch drops entries."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(3 * 32 * 32, 10), torch.nn.Dropout(0.5)
        self.layer.weight.data.copy_(torch.from_numpy(np.random.randn(10, 3 * 32 * 32) / 100))
        self.register_buffer("features", torch.from_numpy(np.random.randn(3 * 32 * 32)).float())
        self.register_buffer("mask", torch.from_numpy(np.random.rand(3 * 32 * 32) < 0.5))
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("expanded", torch.from_numpy(np.random.rand(1)).expand(5))  # one entry in memory

    def forward(self, images):
        inputs = self.dropout(images.flatten(1)) * self.features * self.mask
        return self.layer(inputs if random.random() < 0.5 else 0.1 * inputs)


def built(module, seed: int) -> NumpyModel:
    build.seed_all(seed)
    return NumpyModel()


def test_buffers_that_differ_between_processes_are_those_of_rank_0(monkeypatch):
    """Two processes have two generators; the threads of this test share one, so their models differ."""
    monkeypatch.setattr("dlgs_bench.training.session.build_seeded", lambda *_: NumpyModel())

    def work(comm) -> Session:
        session = session_of(comm, "topk")
        session.data.test = lambda batch, shard, limit: [session.data.batch(0, shard)]
        session.evaluate(limit=8)
        return session

    sessions = run_workers(2, work)
    for one, other in zip(*(session.flat.model.state_dict().values() for session in sessions), strict=True):
        assert torch.equal(one, other)


def test_the_generators_of_numpy_python_and_torch_and_the_elapsed_time_are_saved(monkeypatch):
    monkeypatch.setattr("dlgs_bench.training.session.build_seeded", built)

    def trained(comm, until: int, state: dict | None = None) -> Session:
        session = session_of(comm, "topk")
        if state:
            session.load_state_dict(state | {"elapsed_s": 1000 + state["elapsed_s"]})
        return go_on(session, until)

    def run(comm):
        whole = trained(comm, 6).flat.parameters.clone()
        memory = io.BytesIO()
        torch.save(trained(comm, 3).state_dict(), memory)
        random.seed(99), np.random.seed(99)
        memory.seek(0)
        resumed = trained(comm, 6, torch.load(memory, weights_only=True))
        assert torch.equal(resumed.flat.parameters, whole)
        assert resumed.elapsed_s >= 1000

    run_workers(1, run)


def test_a_state_of_other_variants_is_refused():
    def work(comm):
        state = session_of(comm, "topk").state_dict()
        with pytest.raises(ValueError, match=r"the variants \['topk'\], not \['dlgs'\]"):
            session_of(comm, "dlgs").load_state_dict(state)

    run_workers(1, work)


def slow_except_dlgs(names: Iterable[str]) -> list:
    return [pytest.param(name, marks=[pytest.mark.slow] if name != "dlgs" else []) for name in names]


# A method for each kind of request, and one that exchanges weights: Gather, Sum, Max, rounds, local steps.
@pytest.mark.parametrize("name", slow_except_dlgs(["dlgs", "none", "block_topk", "gtopk", "diloco"]))
def test_memory_and_open_files_stay_as_they_are(name):
    """If each step kept a tensor of the model's size, memory would grow by 5.6 MiB."""
    process = psutil.Process()

    def work(comm) -> tuple[int, int]:
        session = go_on(session_of(comm, name), 20)
        gc.collect()
        before = process.memory_info().rss, process.num_fds()
        go_on(session, 80)
        gc.collect()
        return process.memory_info().rss - before[0], process.num_fds() - before[1]

    memory, files = run_workers(1, work)[0]
    assert memory < 5 * 2**20 and files < 10


def tensor_bytes() -> int:
    """The memory of all dense tensors of this process. Other tests may have left tensors without memory (compiling)."""
    gc.collect()
    tensors = (one for one in gc.get_objects() if issubclass(type(one), torch.Tensor))
    storages = (one.untyped_storage() for one in tensors if one.layout == torch.strided)
    return sum({one._cdata: one.nbytes() for one in storages if one.device.type != "meta"}.values())


def test_tensors_of_all_kinds_may_be_there_while_their_bytes_are_counted():
    with FakeTensorMode():
        fake = torch.zeros(10)
    before = tensor_bytes()
    plain = torch.zeros(1000)
    kept = [plain, plain[1:], plain.detach(), fake, torch.zeros(9, device="meta"), torch.zeros(4).to_sparse()]
    kept.append(torch._to_functional_tensor(torch.zeros(3)))
    assert 0 <= tensor_bytes() - before - plain.nbytes < 100  # the tensors inside of those that are not dense


@pytest.mark.parametrize("name", slow_except_dlgs(METHODS))
def test_a_method_keeps_nothing_of_each_step(name):
    """If each of the eight steps kept a tensor of the model's size, tensors would grow by eight gradients."""
    process = psutil.Process()

    def work(comm) -> tuple[int, int]:
        session = go_on(session_of(comm, name), 4)
        before = tensor_bytes(), process.num_fds()
        go_on(session, 12)
        after = tensor_bytes(), process.num_fds()
        assert after[0] - before[0] < session.flat.gradients.nbytes
        assert after[1] - before[1] < 8

    run_workers(1, work)


def test_what_computes_in_bfloat16_keeps_float32_in_weights_loss_and_gradients(device):
    def gradient(comm, precision: str):
        spec = RunSpec("accuracy", Training("small", precision=precision))
        session = Session(spec, comm, Noise(device), device)
        outputs = session.outputs(session.data.batch(0, session.shard)[0])
        session.local_gradient()
        dtypes = {outputs.dtype, session.flat.gradients.dtype, session.flat.parameters.dtype}
        return outputs.detach(), session.flat.gradients.clone(), dtypes

    (exact, true, _), (outputs, mixed, dtypes) = (
        run_workers(1, lambda comm, precision=precision: gradient(comm, precision))[0]
        for precision in ("float32", "bfloat16")
    )
    assert dtypes == {torch.float32}
    assert 0 < (outputs - exact).norm() / exact.norm() < 0.02  # bfloat16 has 8 significant bits
    assert 0 < (mixed - true).norm() / true.norm() < 0.2


class OwnMomentum(Momentum):
    """Sends its velocity densely: the method's own SGD with momentum."""

    exact_when = None

    def __init__(self):
        self.momentum, self.velocities = 0.9, {}

    def exchange(self, bucket: Bucket, at):
        return (yield Sum(self.velocity(bucket).clone()))


def test_a_method_that_owns_momentum_switches_the_optimizers_off():
    """Without weight decay the sum of the workers' velocities is the velocity of the summed gradient."""
    training = Training("resnet20", momentum=0.9, weight_decay=0.0, lr=0.01)

    def work(comm, own: bool) -> torch.Tensor:
        session = Session(RunSpec("accuracy", training), comm, Noise(), CPU)
        session.prepare("x", OwnMomentum() if own else make("none"))
        return go_on(session, 4).flat.parameters

    by_optimizer, by_method = (run_workers(2, lambda comm, own=own: work(comm, own))[0] for own in (False, True))
    torch.testing.assert_close(by_optimizer, by_method, atol=1e-4, rtol=1e-3)


def test_variants_in_turns_do_not_share_momentum():
    """In a timing run the optimizer's momentum is off only in the method's own iterations."""

    def work(comm):
        session = Session(RunSpec("timing", Training("resnet20", momentum=0.9)), comm, Noise(), CPU)
        own, dense = session.prepare("own", OwnMomentum()), session.prepare("none", make("none"))
        found = []
        for number, exchange in enumerate((own, dense, own), start=1):
            session.step(exchange, number)
            found.append(session.optimizer.momentum)
        return found

    assert run_workers(2, work) == [[0.0, 0.9, 0.0]] * 2


@pytest.mark.parametrize("calibrated_s", [0.5, 2.0, 0.0])
def test_links_in_proportion_follow_what_the_workers_compute(calibrated_s, monkeypatch):
    """At every moment, links x computing is as in the calibration, and all processes know the same slowdown."""
    rates = [100.0]
    monkeypatch.setattr(timed.link_rates, "scale", lambda factor: rates.append(rates[-1] * factor))

    def work(comm):
        spec = RunSpec("timing", Training("resnet20"), cluster=Cluster(calibrated_s=calibrated_s))
        session = Session(spec, comm, Noise(), CPU)
        factors = iter([f for f in (1, 2, 2, 0.5) for _ in range(timed.MIN_SPEED_SAMPLES)])  # how slow the machine is
        backward_s = iter([0.5, 0.7, 9.0] * 4 if comm.rank else [0.1, 7.0, 0.3] * 4)  # medians 0.7 and 0.3
        session.local_gradient = lambda: None
        session.clock.stop = lambda: {"forward_s": 0.5 * (f := next(factors)), "backward_s": f * next(backward_s)}
        links = timed.ProportionalLinks(session)
        slowdowns = []
        for _ in range(4):
            links.follow()
            slowdowns.append(links.slowdown)
        return slowdowns

    first, second = run_workers(2, work)
    slower = [s / (calibrated_s or 1) for s in (1.0, 2.0, 2.0, 0.5)] if calibrated_s else [1.0] * 4
    assert first == second == pytest.approx(slower)
    assert rates[1:] == pytest.approx([100 / s for s in slower] if calibrated_s else [])


def test_three_slow_gradients_of_a_small_net_do_not_move_the_links(monkeypatch):
    """Links follow the median of the last gradients that took SPEED_SAMPLE_S: 20 of 0.1 s."""
    monkeypatch.setattr(timed.link_rates, "scale", lambda factor: None)
    taken_s = [*[0.1] * 21, *[0.15] * 3, *[0.1] * 21, *[0.2] * 12]

    def work(comm):
        spec = RunSpec("timing", Training("resnet20"), cluster=Cluster(calibrated_s=0.1))
        session = Session(spec, comm, Noise(), CPU)
        seconds = iter(taken_s)
        session.local_gradient = lambda: None
        session.clock.stop = lambda: {"forward_s": 0.0, "backward_s": next(seconds)}
        links, slowdowns = timed.ProportionalLinks(session), []
        for _ in range(len(taken_s) // timed.MIN_SPEED_SAMPLES):
            links.follow()
            slowdowns.append(links.slowdown)
        return slowdowns

    (slowdowns,) = run_workers(1, work)
    assert slowdowns[:15] == pytest.approx([1.0] * 15) and slowdowns[-1] == pytest.approx(2.0)
