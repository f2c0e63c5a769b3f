"""The driver: one order of requests on every worker, and what a method returns is what is applied."""

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, at, examples, exchange_of, make, one_step

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket, Gather, Max, Method, PeerExchange, Sum
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.exchange.transport import transport
from dlgs_bench.topology import ALL_GATHER
from dlgs_bench.training.clock import Clock

pytestmark = pytest.mark.unit


class TwoRounds(Method):
    """Gathers a number, then sums: for tests of methods that make several requests."""

    def num_requests(self, bucket, at):
        return 2

    def exchange(self, bucket, at):
        seen = yield Gather(torch.tensor([float(bucket.index)]))
        assert all(t.item() == bucket.index for t in seen)
        return (yield Sum(bucket.gradient))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(0, 2**16))
@examples(0.5)
def test_layers_may_finish_in_any_order(group_sizes, seed):
    starts = [sum(group_sizes[:i]) for i in range(len(group_sizes) + 1)]
    groups = list(itertools.pairwise(starts))

    def work(comm):
        order = list(range(starts[-1]))
        random.Random(seed + comm.rank).shuffle(order)
        buckets = [Bucket(i, torch.full((j - k,), 1.0 + comm.rank)) for i, (k, j) in enumerate(groups)]
        clock = Clock(CPU)
        exchange = WorkerExchange(TwoRounds(), groups, buckets, transport(ALL_GATHER, comm), clock)
        clock.start()
        exchange.begin(at(1))
        for layer in order:
            exchange.ready(layer)
        exchange.finish()
        return [b.gradient.tolist() for b in buckets]

    for result in run_workers(2, work):
        assert result == [[3.0] * (j - k) for k, j in groups]


@pytest.mark.parametrize(
    "method, posted", [(make("none"), [1, 2, 3]), (TwoRounds(), [1, 1, 1])], ids=["one request", "two requests"]
)
def test_a_bucket_is_sent_once_all_requests_of_the_bucket_before_are_under_way(method, posted):
    """Later, communication would overlap nothing. Earlier, the order of requests would depend on each worker's
    results."""

    class Slow:
        ended_at = None

        def done(self):
            return False

    buckets = [Bucket(i, torch.ones(4)) for i in range(3)]
    with_one_worker = run_workers(1, lambda comm: transport(ALL_GATHER, comm))[0]
    started = []
    with_one_worker.start = lambda request: started.append(request) or Slow()
    clock = Clock(CPU)
    exchange = WorkerExchange(method, [(i, i + 1) for i in range(3)], buckets, with_one_worker, clock)
    clock.start()
    exchange.begin(at(1))
    for layer, count in enumerate(posted):
        exchange.ready(layer)
        assert len(started) == count


def test_what_is_sent_counts_for_the_bucket_that_sent_it():
    sizes = (10, 300, 50)

    def work(comm):
        exchange = exchange_of(comm, make("lags"), [torch.randn(n) for n in sizes])
        one_step(comm, exchange, [torch.randn(n) for n in sizes], 1)
        return exchange.sent_entries

    assert run_workers(2, work) == [[1, 30, 5]] * 2


def test_a_layer_without_gradient_is_an_error():
    def work(comm):
        clock = Clock(CPU)
        exchange = WorkerExchange(TwoRounds(), [(0, 2)], [Bucket(0, torch.ones(2))], transport(ALL_GATHER, comm), clock)
        clock.start()
        exchange.begin(at(1))
        exchange.ready(0)
        with pytest.raises(RuntimeError, match="no gradient"):
            exchange.finish()

    run_workers(1, work)


def step_of(method: Method, workers: int = 2, size: int = 4) -> list[torch.Tensor]:
    """The aggregate on every worker. Gradients have the value rank + 1."""

    def work(comm):
        gradient = [torch.full((size,), comm.rank + 1.0)]
        return one_step(comm, exchange_of(comm, method, gradient), gradient, 1)[0]

    return run_workers(workers, work)


class Returns(Method):
    """Returns the value that it was made with."""

    def __init__(self, value):
        self.value = value

    def exchange(self, bucket, at):
        total = yield Sum(bucket.gradient)
        return self.value(total)


def test_what_a_method_returns_is_what_is_applied():
    for found in step_of(Returns(lambda total: total * torch.tensor([2.0, -2.0, 0.0, 1.0]))):
        assert found.tolist() == [6.0, -6.0, 0.0, 3.0]


@pytest.mark.parametrize("wrong", [lambda t: None, lambda t: t[:2], lambda t: t.double()], ids=["none", "short", "f64"])
def test_an_aggregate_of_another_kind_is_an_error_that_names_the_method(wrong):
    with pytest.raises(TypeError, match=r"Returns returned .* for bucket 0, not torch.float32 \(4,\)"):
        step_of(Returns(wrong), workers=1)


class Miscounted(Method):
    """Announces ``announced`` requests, and makes ``made`` requests."""

    def __init__(self, announced: int, made: int):
        self.announced, self.made = announced, made

    def num_requests(self, bucket, at):
        return self.announced

    def exchange(self, bucket, at):
        for _ in range(self.made):
            yield Gather(torch.ones(1))
        return bucket.gradient


@pytest.mark.parametrize("announced, made, says", [(1, 2, "makes more"), (2, 1, "makes only 1")])
def test_other_requests_than_announced_are_an_error_that_names_the_method(announced, made, says):
    with pytest.raises(RuntimeError, match=rf"Miscounted.num_requests returns {announced} for bucket 0, .* {says}"):
        step_of(Miscounted(announced, made), workers=1)


class Looks(Method):
    """Uses every request and every value of ``at``."""

    def num_requests(self, bucket, at):
        return 3

    def exchange(self, bucket, at):
        assert bucket.sizes == (bucket.size,) and at.step == 1 and at.lr > 0
        largest = yield Max(bucket.gradient.clone())
        ranks = yield Gather(torch.tensor([at.rank], dtype=torch.uint8))
        assert [int(t) for t in ranks] == list(range(at.workers))
        other = (at.rank + 1) % at.workers, (at.rank - 1) % at.workers
        received = yield PeerExchange(sends={other[0]: bucket.gradient}, receives={other[1]: bucket.size})
        return largest * 100 + received[other[1]] * 10 + bucket.gradient


def test_a_method_sees_where_it_stands_and_may_ask_for_maxima_any_dtype_and_messages():
    for rank, found in enumerate(step_of(Looks(), workers=3)):
        before = (rank - 1) % 3
        assert found.tolist() == [300.0 + 10 * (before + 1) + rank + 1] * 4


def test_what_is_not_a_request_is_refused():
    def work(comm):
        with pytest.raises(TypeError, match="3 is not a request; yield a Sum, Max, Gather or PeerExchange"):
            transport(ALL_GATHER, comm).start(3)

    run_workers(1, work)


def test_a_bucket_knows_the_shapes_of_its_layers():
    bucket = Bucket(0, torch.zeros(17), ((2, 3), (5,), (), (5, 1)))
    assert bucket.sizes == (6, 5, 1, 5)
