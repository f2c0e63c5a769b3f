"""The order of requests: the same on every worker, whatever the order in which layers finish."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.comm.local import run_workers
from harness.exchange.driver import Exchange
from harness.exchange.method import Bucket, Gather, Method, Sum
from harness.training.clock import Clock
from harness.topology import AllGather


class TwoRounds(Method):
    """Gathers a number, then sums: for tests of methods that make several requests."""

    rounds = 2

    def exchange(self, bucket, step):
        seen = yield Gather(torch.tensor([float(bucket.index)]))
        assert all(t.item() == bucket.index for t in seen)
        return (yield Sum(bucket.gradient))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_layers_may_finish_in_any_order(group_sizes, seed):
    starts = [sum(group_sizes[:i]) for i in range(len(group_sizes) + 1)]
    groups = list(itertools.pairwise(starts))

    def work(comm):
        order = list(range(starts[-1]))
        random.Random(seed + comm.rank).shuffle(order)
        buckets = [Bucket(i, torch.full((j - k,), 1.0 + comm.rank)) for i, (k, j) in enumerate(groups)]
        clock = Clock(torch.device("cpu"))
        exchange = Exchange(TwoRounds(), groups, buckets, AllGather(comm), clock)
        clock.start()
        exchange.begin(1)
        for layer in order:
            exchange.ready(layer)
        exchange.finish()
        return [b.gradient.tolist() for b in buckets]

    for result in run_workers(2, work):
        assert result == [[3.0] * (j - k) for k, j in groups]


def test_a_layer_without_gradient_is_an_error():
    def work(comm):
        clock = Clock(torch.device("cpu"))
        exchange = Exchange(TwoRounds(), [(0, 2)], [Bucket(0, torch.ones(2))], AllGather(comm), clock)
        clock.start()
        exchange.begin(1)
        exchange.ready(0)
        with pytest.raises(RuntimeError, match="no gradient"):
            exchange.finish()

    run_workers(1, work)
