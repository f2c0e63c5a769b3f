"""Where a device runs behind the host, as GPUs do, no exchange of a reused rule makes the host wait.

There is no GPU here. That the host waits for nothing is held against torch's fake tensors, which are on a GPU that need
not be there and refuse every operation whose outcome the host would have to know; the numbers are held against the way
of CPUs, on CPUs that are treated as if they ran behind.
"""

from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CLASSES, SPARSIFIERS, at, exchange_of, exchange_steps, gradients, make, one_step
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from dlgs_bench.comm import thread
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.local import run_workers
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.errors import Ended
from dlgs_bench.exchange import Bucket, Threshold, TopK, async_device, sparsifier
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.exchange.plugin import parameters
from dlgs_bench.exchange.selection import MANY, compiled_backend, torch_backend
from dlgs_bench.exchange.transport import transport
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES
from dlgs_bench.training.finite_check import FiniteCheck

pytestmark = pytest.mark.unit

WORKERS = 3
SIZES = (7, 300, 1)
# The methods that know their rule before the gradient, and their parameters here.
KNOWN = {
    name: {"refresh_every": 4} if "refresh_every" in {field.name for field in parameters(CLASSES[name])} else {}
    for name in SPARSIFIERS
    if CLASSES[name].rule is not sparsifier.Sparsifier.rule
}


@pytest.fixture
def behind(monkeypatch):
    """Tests run as if this CPU were a device that runs behind the host."""
    monkeypatch.setattr(async_device, "DEVICES", {"cpu"})


def same(steps: list[list[torch.Tensor]], others: list[list[torch.Tensor]]) -> bool:
    return all(
        torch.equal(a, b) for one, other in zip(steps, others, strict=True) for a, b in zip(one, other, strict=True)
    )


@given(
    size=st.integers(1, 300),
    k=st.integers(1, 300),
    receive_buffer=st.floats(0.1, 3),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["normal", "ties", "zero", "infinite"]),
)
@pytest.mark.parametrize("select", [torch_backend, compiled_backend])
def test_at_most_so_many_are_the_first_of_those_that_are_taken(select, size, k, receive_buffer, seed, kind):
    k = min(k, size)
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    gradient = {"normal": drawn, "ties": drawn.sign(), "zero": drawn * 0, "infinite": drawn / (drawn.abs() > 1)}[kind]
    residual = torch.where(gradient.isfinite(), gradient, 0)
    for rule in (TopK(k), Threshold(float((gradient + residual).abs().kthvalue(size - k + 1).values)), Threshold(0.0)):
        whole, left = residual.clone(), residual.clone()
        values, indices = torch_backend.take(whole, rule, gradient)
        most = k if isinstance(rule, TopK) else max(1, int(receive_buffer * k))
        found, places, chosen = select.take_at_most(left, rule, most, gradient)
        n = min(len(values), most)
        assert found.shape == places.shape == (most,) and chosen.tolist() == [len(values)]
        assert torch.equal(found[:n], values[:n]) and torch.equal(places[:n], indices[:n])
        assert not found[n:].any() and ((places >= 0) & (places < size)).all()
        assert torch.equal(left.index_copy(0, indices[n:], torch.zeros(len(indices) - n)), whole)
        assert torch.equal(left[indices[n:]], values[n:])


@pytest.mark.parametrize("rule", [TopK(1), Threshold(2.0), Threshold(9.0)])
def test_nan_is_counted_as_more_than_there_can_be(rule):
    _, _, chosen = torch_backend.take_at_most(torch.tensor([1.0, torch.nan, 3.0]), rule, 1)
    assert chosen.tolist() == [MANY]


class _Waited:
    """A number that nobody reads before the next step."""

    def __init__(self, number):
        assert number.shape == (1,)

    def read(self) -> int:
        return 3


def _exchanged_on_a_gpu(name: str, options: dict, device: str) -> None:
    """Two steps of a worker's exchange, as fake tensors; the others send what it sends."""
    method = make(name, **options)
    if name == "dlgs":
        method.thresholds = {index: [0.5] for index in range(len(SIZES))}

    def start_allgather(tensor, equal=False):
        answer = Future()
        answer.set_result([tensor.clone() for _ in range(WORKERS)])
        return SimpleNamespace(done=answer.done, wait=answer.result, ended_at=0.0)

    comm = SimpleNamespace(rank=0, world_size=WORKERS, start_allgather=start_allgather)
    with FakeTensorMode():
        flat = torch.randn(sum(SIZES), device=device)
        buckets = [Bucket(i, part) for i, part in enumerate(flat.split(SIZES))]
        groups = [(i, i + 1) for i in range(len(SIZES))]
        exchange = WorkerExchange(method, groups, buckets, transport(ALL_GATHER, comm), lambda label: torch.no_grad())
        model = SimpleNamespace(starts=[0, 7, 307, 308], gradients=flat, names=list("abc"))
        for step in (2, 3):  # DLGS has its thresholds
            exchange.begin(at(step, 0, WORKERS))
            finite_check = FiniteCheck(exchange, model, step, 0)
            for layer in range(len(SIZES)):
                finite_check.ready(layer)
            exchange.finish()


@pytest.mark.parametrize("name", KNOWN)
def test_the_host_waits_for_nothing(name, monkeypatch):
    monkeypatch.setattr(sparsifier, "DeferredScalar", _Waited)
    _exchanged_on_a_gpu(name, KNOWN[name], "cuda")
    monkeypatch.setattr(async_device, "DEVICES", set())  # as on a CPU, it does wait
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        _exchanged_on_a_gpu(name, KNOWN[name], "cuda")


@pytest.mark.parametrize(
    "name, topology",
    [(name, t) for name in KNOWN for t in TOPOLOGIES if TOPOLOGIES[t].supports(CLASSES[name].sum_kind)],
)
def test_with_room_for_all_every_bit_is_as_if_the_host_had_waited(name, topology, monkeypatch):
    topology = TOPOLOGIES[topology]

    def work(comm):
        method = make(name, **KNOWN[name])
        return exchange_steps(comm, method, gradients(comm.rank, 10, SIZES), topology=topology), method.residuals

    expected = run_workers(WORKERS + topology.servers, work)
    monkeypatch.setattr(async_device, "DEVICES", {"cpu"})
    monkeypatch.setattr(sparsifier, "SPARE", 1000)
    found = run_workers(WORKERS + topology.servers, work)
    for (steps, residuals), (others, left) in list(zip(expected, found, strict=True))[:WORKERS]:
        assert same(steps, others)
        assert residuals.keys() == left.keys() and all(torch.equal(residuals[i], left[i]) for i in residuals)


@pytest.mark.parametrize("name", KNOWN)
def test_a_worker_with_fewer_than_k_entries_makes_the_same_collectives(name, behind):
    """Thresholds of 0 do not change how a worker gathers, as all workers must gather alike."""

    def work(comm):
        steps = gradients(comm.rank, 6, SIZES)
        if comm.rank == 1:
            steps[0] = [torch.zeros(n) for n in SIZES]
        return exchange_steps(comm, make(name, **KNOWN[name]), steps)

    first, *others = run_workers(WORKERS, work)
    assert all(same(first, other) for other in others)


def test_the_ratio_limits_the_first_message_of_a_threshold(behind):
    def work(comm) -> list[int]:
        method, sent = make("sparse_dense", ratio=0.001, threshold=1.0), []
        exchange = exchange_of(comm, method, gradients(0, 1, (10_000,))[0])
        for number, step in enumerate(gradients(0, 2, (10_000,)), start=1):
            one_step(comm, exchange, step, number)
            sent.append(int(exchange.transport.sent_entries))
        return sent

    ((first, second),) = run_workers(1, work)
    assert first == 26 and second > 3000  # int(2.5 k) + 1, and all


def test_what_finds_no_room_is_sent_later_and_nothing_is_lost(behind):
    """The gradients grow, so the thresholds of the first step choose ever more entries."""
    steps = 7

    def work(comm):
        method = make("dlgs", refresh_every=1000)
        exchange = exchange_of(comm, method, [torch.zeros(n) for n in SIZES])
        total, brought, full = torch.zeros(sum(SIZES)).double(), torch.zeros(sum(SIZES)).double(), 0
        for step, parts in enumerate(gradients(comm.rank, steps, SIZES), start=1):
            mine = [part * step for part in parts]
            brought += torch.cat(mine)
            total += torch.cat(one_step(comm, exchange, mine, step))
            sent = int(exchange.transport.sent_entries)
            if step > 1:
                lengths = [method._most(Bucket(i, torch.zeros(n))) for i, n in enumerate(SIZES)]
                full += sent < sum(int(later.read()) for later in method.counts.values())
                assert exchange.transport.sent_bytes == sum(4 + 8 * n for n in lengths)
                assert exchange.transport.received_bytes == (WORKERS - 1) * exchange.transport.sent_bytes
        return total, brought, torch.cat([method.residuals[i] for i in range(len(SIZES))]), method.chosen, full

    found = run_workers(WORKERS, work)
    for total, _, _, chosen, _ in found:
        assert torch.equal(total, found[0][0]) and chosen == found[0][3]
    torch.testing.assert_close(found[0][0], sum(brought - left for _, brought, left, _, _ in found), atol=1e-4, rtol=0)
    assert sum(full for *_, full in found) > 0  # there was a step in which some entries did not fit


@pytest.mark.parametrize("name", KNOWN)
def test_nan_stops_all_workers_in_the_next_step(name, behind):
    def work(comm):
        exchange = exchange_of(comm, make(name, **KNOWN[name]), [torch.ones(n) for n in SIZES])
        one_step(comm, exchange, [torch.ones(n) for n in SIZES], 1)
        one_step(comm, exchange, [torch.full((n,), torch.nan if comm.rank == 1 else 1.0) for n in SIZES], 2)
        with pytest.raises(FloatingPointError, match="training has diverged"):
            one_step(comm, exchange, [torch.ones(n) for n in SIZES], 3)
        return True

    assert all(run_workers(WORKERS, work))


@pytest.mark.parametrize("name", KNOWN)
def test_a_run_that_goes_on_is_one_that_never_stopped(name, behind):
    def work(comm, stop):
        steps, method = gradients(comm.rank, 9, SIZES), make(name, **KNOWN[name])
        first = exchange_steps(comm, method, steps[:stop])
        again = make(name, **KNOWN[name])
        state = method.state_dict()
        again.counts[0] = SimpleNamespace(read=lambda: 10**6)  # of a step that is undone
        again.load_state_dict(state)
        return first + exchange_steps(comm, again, steps[stop:], first=stop + 1)

    whole, *others = [run_workers(WORKERS, lambda comm, stop=stop: work(comm, stop))[0] for stop in (8, 3, 6)]
    for other in others:
        assert same(whole, other)


def test_a_guard_that_does_not_wait_names_the_layer_when_the_step_has_ended(behind):
    went_on = []
    model = SimpleNamespace(starts=[0, 2, 4, 6], gradients=torch.tensor([1, 1, torch.inf, 1, 1, 1]), names=list("abc"))
    finite_check = FiniteCheck(SimpleNamespace(ready=went_on.append), model, 5, 1)
    for layer in range(3):
        finite_check.ready(layer)
    assert went_on == [0, 1, 2]
    with pytest.raises(Ended, match="the gradient of b is not finite in step 5 on worker 1"):
        finite_check.check(torch.tensor(1.0))


def test_what_is_only_queued_on_a_stream_is_not_done(monkeypatch):
    """Otherwise backward would wait for a communication to end as soon as one is queued."""
    ended, result = [False], {"a": [torch.zeros(2)], "b": None}
    event = SimpleNamespace(query=lambda: ended[0])
    waited, recorded = [], []
    here = SimpleNamespace(wait_event=waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append((tensor, stream)))
    pool = thread.ThreadPoolExecutor(1)
    pending = thread._StreamFuture(torch.device("cuda"), pool, lambda: (result, event))
    pending._future.result()
    assert not pending.done()
    ended[0] = True
    assert pending.done() and pending.wait() is result
    assert waited == [event] and recorded == [(result["a"][0], here)]
    pool.shutdown()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**40))))
def test_numbers_are_read_together_in_their_order(numbers):
    mixed = [torch.tensor([number]) if there else number for there, number in numbers]
    assert async_device.read(mixed) == [number for _, number in numbers]


def test_the_memory_of_a_message_waits_for_the_stream_that_reads_it(monkeypatch):
    """Otherwise backward would overwrite a dropped message before it is sent."""
    recorded, here, read = [], object(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append((tensor, stream)))
    comm = object.__new__(TorchDist)  # of one process, so that nothing leaves
    vars(comm).update(rank=0, world_size=1, device=torch.device("cuda"), _pinned=False)
    monkeypatch.setattr(comm, "_post", lambda sends, receive_buffers: read.append(len(recorded)) or [])
    gathered, sent = torch.zeros(2), torch.ones(2)
    comm._allgather(gathered, equal=True)
    comm._round(PeerExchange({1: sent})).wait()
    assert [(id(tensor), stream) for tensor, stream in recorded] == [(id(gathered), here), (id(sent), here)]
    assert read == [1, 2]  # before anything was read


@pytest.mark.parametrize("device", ["host", "behind"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 6e4])
def test_a_step_fails_if_a_gradient_that_the_script_gets_is_not_finite(device, dtype, value, request):
    """The aggregate can be finite in float32, and not in the dtype of the parameter."""
    if device == "behind":
        request.getfixturevalue("behind")

    def step(comm) -> tuple[bool, bool]:
        own = transport(ALL_GATHER, comm)
        exchange = FiniteExchange(make("none"), [(0, 1)], [Bucket(0, torch.ones(3))], own, lambda label: nullcontext())
        exchange.begin(at(1))
        exchange.ready(0)
        exchange.finish()
        delivered = [torch.tensor([1.0, value], dtype=dtype), torch.tensor(1.0, dtype=dtype)]  # one has no dimensions
        exchange.conclude(delivered)
        return all(bool(one.isnan().all()) for one in delivered), exchange.restore()

    assert run_workers(1, step) == [(value != 6e4, value != 6e4)]
