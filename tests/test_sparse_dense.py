"""Alternating sparse and dense steps, beyond the laws of test_methods.py."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import examples, exchange_of, exchange_steps, gradients, make, one_step

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange.wire import FORMATS

pytestmark = pytest.mark.unit

WORKERS, SIZE = 3, 1000


def aggregates(name: str, steps: int, **options) -> list[list[torch.Tensor]]:
    """What ``steps`` steps give, the same on all workers."""
    return run_workers(WORKERS, lambda comm: exchange_steps(comm, make(name, **options), gradients(comm.rank, steps)))[
        0
    ]


def same(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(torch.cat(one), torch.cat(other)) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("options", [{"sparse_steps": 0}, {"ratio": 1.0}], ids=["T = 0", "k = all"])
def test_without_sparse_steps_it_is_uncompressed_to_the_bit(measured, options):
    both = aggregates("sparse_dense", 5, **options), aggregates("none", 5)
    found, dense = (torch.cat(list(chain(*steps))) for steps in both)
    measured("sparse_dense", "largest difference from uncompressed", (found - dense).abs().max(), at_most=0)


def test_without_dense_steps_it_is_top_k_with_error_feedback_to_the_bit():
    expected = aggregates("lags", 9)
    assert same(aggregates("sparse_dense", 9, sparse_steps=9), expected)
    assert not same(aggregates("sparse_dense", 9, sparse_steps=8), expected)


@given(cycles=st.integers(1, 3), sparse=st.integers(0, 4), feedback=st.booleans(), seed=st.integers(0, 2**16))
@examples(0.4)
def test_a_dense_step_leaves_nothing_behind(cycles, sparse, feedback, seed):
    """After whole cycles with error feedback, all gradients have been sent."""

    def work(comm):
        method = make("sparse_dense", sparse_steps=sparse, error_feedback=feedback)
        steps = gradients(comm.rank, cycles * (sparse + 1), (200,), seed)
        exchange, sent = exchange_of(comm, method, steps[0]), torch.zeros(200)
        for number, gradient in enumerate(steps, start=1):
            sent += one_step(comm, exchange, gradient, number)[0]
            dense = number % (sparse + 1) == 0
            assert (method.phase(number) == "dense") == dense
            assert bool(method.residual(exchange.buckets[0]).any()) == (feedback and not dense)
        return sent, sum(gradient for (gradient,) in steps)

    found = run_workers(2, work)
    everything = sum(own for _, own in found)
    assert torch.allclose(found[0][0], everything, atol=1e-4) == (feedback or sparse == 0)


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("sparse", [0, 1, 4])
def test_a_cycle_sends_the_bytes_of_its_sparse_steps_and_of_one_dense_one(sparse, wire):
    def sent_bytes(comm, name, steps, **options) -> list[int]:
        exchange = exchange_of(comm, make(name, **options), [torch.zeros(SIZE)], wire=wire)
        counted = []
        for number, gradient in enumerate(steps, start=1):
            one_step(comm, exchange, gradient, number)
            counted.append(exchange.transport.sent_bytes)
        return counted

    def work(comm):
        steps = gradients(comm.rank, sparse + 1, (SIZE,))
        alternating = sent_bytes(comm, "sparse_dense", steps, sparse_steps=sparse)
        return alternating, sent_bytes(comm, "lags", steps)

    for alternating, top_k in run_workers(2, work):
        assert alternating == [*top_k[:sparse], 4 * SIZE]
        if wire == "indices":
            assert sum(alternating) == sparse * (8 * SIZE // 10 + 8) + 4 * SIZE


@pytest.mark.parametrize("selection", ["torch", "compiled"])
def test_a_threshold_lets_through_what_is_strictly_above_it(selection):
    gradient = torch.tensor([0.5, -0.5, 0.5000001, -2.0, 0.0, 0.49])

    def work(comm):
        method = make("sparse_dense", threshold=0.5, selection=selection)
        return exchange_steps(comm, method, [[gradient], [torch.zeros(6)], [torch.full((6,), 0.01)]])

    (first,), (second,), (third,) = run_workers(1, work)[0]
    assert torch.equal(first, torch.tensor([0.0, 0.0, 0.5000001, -2.0, 0.0, 0.0]))
    assert torch.equal(second, torch.zeros(6))
    torch.testing.assert_close(third, torch.tensor([0.51, 0.0, 0.0, 0.0, 0.0, 0.0]))
