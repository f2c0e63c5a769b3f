"""Laws that hold for every file in methods/, present and future, on simulated workers."""

import copy

import pytest
import torch
from conftest import METHODS, SPARSIFIERS, exchange_steps, gradients, make, sgd
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import plugins
from harness.comm.local import run_workers
from harness.exchange.driver import Exchange
from harness.exchange.method import Bucket, Sum
from harness.training.server import Serving
from harness.topology import COUNT_BYTES, TOPOLOGIES
from harness.exchange.wire import FORMATS, Indices

WORKERS = 3
SERVED = [m for m in METHODS if plugins.one_sum(m)]  # by a parameter server


@pytest.mark.parametrize("name", METHODS)
def test_all_workers_end_with_the_same_bits_and_so_does_a_second_run(name):
    def work(comm):
        return exchange_steps(comm, make(name), gradients(comm.rank, 5))

    first, *others = run_workers(WORKERS, work)
    again = run_workers(WORKERS, work)[0]
    for worker in [*others, again]:
        for step, other in zip(first, worker, strict=True):
            for a, b in zip(step, other, strict=True):
                assert torch.equal(a, b)
                assert a.dtype == torch.float32 and a.shape == b.shape


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_every_selection_and_wire_format_gives_the_same_bits(name):
    def work(comm, selection, wire):
        method = make(name)
        method.selection = selection
        return exchange_steps(comm, method, gradients(comm.rank, 6, (7, 70_000, 300, 1)), wire=wire)

    expected, *others = [
        run_workers(WORKERS, lambda comm, s=s, w=w: work(comm, s, w))[0] for s in ("torch", "fast") for w in FORMATS
    ]
    for other in others:
        for step, found in zip(expected, other, strict=True):
            assert all(map(torch.equal, step, found))


@pytest.mark.parametrize("name", [m for m in METHODS if make(m).exact])
def test_exact_methods_return_the_sum_of_the_shares(name):
    total = run_workers(WORKERS, lambda comm: exchange_steps(comm, make(name), gradients(comm.rank, 1)))[0][0]
    shares = [gradients(rank, 1)[0] for rank in range(WORKERS)]
    for bucket, expected in zip(total, map(sum, zip(*shares, strict=True)), strict=True):
        torch.testing.assert_close(bucket, expected)


@pytest.mark.parametrize("name", SPARSIFIERS)
@given(size=st.integers(1, 200), ratio=st.floats(0.001, 1), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_what_is_sent_and_what_is_kept_add_up_bit_for_bit(name, size, ratio, seed):
    method = make(name, ratio)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, 5):
        bucket = Bucket(0, torch.randn(size, generator=generator))
        expected = bucket.gradient + method.residual(bucket)
        request = next(method.exchange(bucket, step))
        assert isinstance(request, Sum)
        assert request.indices.unique().numel() == request.indices.numel()
        sent = torch.zeros(size).index_put((request.indices,), request.values)
        residual = method.residual(bucket)
        assert torch.equal(sent + residual, expected)
        assert not (sent * residual).any()  # an entry is sent whole or kept whole


@pytest.mark.parametrize("name", SPARSIFIERS)
@given(size=st.integers(1, 500), ratio=st.floats(0.001, 1), seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_both_selections_send_and_keep_the_same_bits(name, size, ratio, seed):
    methods = make(name, ratio), make(name, ratio)
    methods[1].selection = "fast"
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, 5):
        gradient = torch.randn(size, generator=generator)
        sent = []
        for method in methods:
            request = next(method.exchange(Bucket(0, gradient.clone()), step))
            sent.append(torch.zeros(size).index_put((request.indices.long(),), request.values))
        assert torch.equal(*sent)
        assert torch.equal(*(method.residuals[0] for method in methods))


def test_memory_is_used_again_once_answered_and_never_twice_at_a_time():
    method = make("lags", 0.1)
    method.selection = "fast"
    bucket = Bucket(0, torch.randn(1000))

    def begin():
        segments = method.exchange(bucket, 1)
        request = next(segments)
        assert Indices.pack(request.values, request.indices, 1000).data_ptr() == request.values.data_ptr()
        return segments, request.values.data_ptr()

    def end(segments):
        with pytest.raises(StopIteration):
            segments.send(bucket.gradient)

    (first, first_place), (second, second_place) = begin(), begin()
    assert first_place != second_place
    end(second)
    third, third_place = begin()
    assert third_place == second_place
    end(first)
    end(third)


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_at_ratio_one_the_first_step_is_dense(name):
    aggregates = run_workers(2, lambda comm: exchange_steps(comm, make(name, 1.0), gradients(comm.rank, 1)))[0][0]
    shares = [gradients(rank, 1)[0] for rank in range(2)]
    for bucket, expected in zip(aggregates, map(sum, zip(*shares, strict=True)), strict=True):
        assert torch.equal(bucket, expected)


@pytest.mark.parametrize("name", METHODS)
def test_a_zero_gradient_gives_a_zero_aggregate(name):
    zeros = [[torch.zeros(50)]] * 3
    for step in run_workers(2, lambda comm: exchange_steps(comm, make(name), zeros))[0]:
        assert torch.equal(step[0], torch.zeros(50))


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_the_first_step_sends_k_entries(name):
    method = make(name, 0.1)
    request = next(method.exchange(Bucket(0, torch.randn(1000)), 1))
    assert request.values.numel() == 100
    request = next(make(name, 0.001).exchange(Bucket(0, torch.randn(10)), 1))
    assert request.values.numel() == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_goes_on_as_if_never_stopped(name):
    def whole(comm):
        return exchange_steps(comm, make(name), gradients(comm.rank, 6))[3:]

    def in_two(comm):
        steps = gradients(comm.rank, 6)
        first = make(name)
        exchange_steps(comm, first, steps[:3])
        second = make(name)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        return exchange_steps(comm, second, steps[3:], first=4)

    for a, b in zip(run_workers(2, whole)[0], run_workers(2, in_two)[0], strict=True):
        assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_asks_what_it_says(name):
    """``one_sum`` is read from the source for configurations; it holds for a bucket of any size."""
    method = make(name)
    assert plugins.one_sum(name) == method.one_sum
    if method.one_sum is None:
        return
    assert method.rounds == 1
    for index, size in enumerate((1, 300)):
        bucket = Bucket(index, torch.randn(size))
        segments = method.exchange(bucket, 1)
        request = next(segments)
        assert isinstance(request, Sum)
        written = request.values if method.one_sum == "dense" else request.out
        assert (request.indices is None) == (method.one_sum == "dense")
        assert written.data_ptr() == bucket.gradient.data_ptr() and written.shape == bucket.gradient.shape
        with pytest.raises(StopIteration) as end:
            segments.send(written.fill_(3.0))
        assert torch.equal(end.value.value, torch.full((size,), 3.0))


@pytest.mark.parametrize("name", SERVED)
@given(workers=st.integers(1, 4), seed=st.integers(0, 2**16))
@settings(max_examples=5, deadline=None)
def test_a_parameter_server_gives_what_collectives_give_bit_for_bit(name, workers, seed):
    def work(comm, topology="allgather"):
        return exchange_steps(comm, make(name), gradients(comm.rank, 4, seed=seed), topology=topology)

    expected = run_workers(workers, work)[0]
    *sums, _ = run_workers(workers + 1, lambda comm: work(comm, "ps-sparse"))
    *weights, _ = run_workers(workers + 1, lambda comm: work(comm, "ps-weights"))
    parameters = torch.zeros(sum(b.numel() for b in expected[0]))
    optimizer = sgd(parameters)
    for step, aggregate in enumerate(map(torch.cat, expected)):
        optimizer.step(aggregate)
        for worker in range(workers):
            assert torch.equal(torch.cat(sums[worker][step]), aggregate)
            assert torch.equal(torch.cat(weights[worker][step]), parameters)


class Recorder:
    """Stands before a communicator and adds up the tensors that pass."""

    def __init__(self, comm):
        self._comm, self.bytes = comm, 0
        self.rank, self.world_size, self.device = comm.rank, comm.world_size, comm.device

    def start_allreduce(self, tensor):
        self.bytes += tensor.nbytes
        return self._comm.start_allreduce(tensor)

    def start_allgather(self, tensor):
        self.bytes += tensor.nbytes + COUNT_BYTES
        return self._comm.start_allgather(tensor)

    def start_alltoall(self, tensors):
        self.bytes += sum(t.nbytes + COUNT_BYTES for t in tensors if t.numel())
        return self._comm.start_alltoall(tensors)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("wire", FORMATS)
def test_bytes_counted_are_the_bytes_that_moved(name, topology, wire):
    """Sent as counted by the sender, received as counted by the others."""
    if topology != "allgather" and name not in SERVED:
        pytest.skip("no parameter server for this method")

    def work(comm):
        recorder = Recorder(comm)
        asked = TOPOLOGIES[topology](recorder, wire)
        bucket = Bucket(0, gradients(comm.rank, 1, sizes=(500,))[0][0])
        method = make(name)
        if comm.rank == WORKERS:
            exchange = Exchange(method, [(0, 1)], [bucket], asked, None)
            Serving(exchange, bucket.gradient, sgd(torch.ones(500))).finish()
            return None, None, None, recorder.bytes
        request = next(method.exchange(bucket, 1))
        asked.finish(request, asked.start(request))
        return asked.sent_bytes, asked.received_bytes, asked.sent_entries, recorder.bytes

    found = run_workers(WORKERS + (topology != "allgather"), work)
    by_all = sum(sent for sent, *_ in found[:WORKERS])
    for sent, received, entries, moved in found[:WORKERS]:
        assert sent == moved >= 4 * entries > 0
        if topology != "allgather":
            assert received == found[WORKERS][3] / WORKERS
        elif received != sent:  # an all-reduce gives back what it took
            assert received == by_all - sent


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_settling_gives_the_density_of_long_training(name):
    """Gaussian gradients of unlike layers: the steps after settling send what they send after 640 real ones."""

    def density(method, bucket_of, first, steps):
        sent = 0
        for step in range(first, first + steps):
            sent += next(method.exchange(bucket_of(), step)).values.numel()
        return sent / steps / sum(layers)

    layers, ratio = (20_000, 4_000, 1_000), 0.02
    scales = torch.tensor([1.0, 4.0, 0.1]).repeat_interleave(torch.tensor(layers))
    generator = torch.Generator().manual_seed(0)

    def fresh():
        return Bucket(0, torch.randn(sum(layers), generator=generator) * scales, layers)

    long, settled = make(name, ratio), make(name, ratio)
    density(long, fresh, 1, 640)
    settled.settle(fresh())
    for first, steps in ((1, 3), (4, 20)):  # the first three are those that timing runs take
        assert density(settled, fresh, first, steps) == pytest.approx(density(long, fresh, 640 + first, steps), rel=0.1)
