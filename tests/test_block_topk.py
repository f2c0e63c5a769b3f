"""Block-wise Top-K, beyond the laws of test_methods.py."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import at, examples, exchange_of, exchange_steps, gradients, make, one_step

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket
from dlgs_bench.topology import Traffic

pytestmark = pytest.mark.unit


@given(
    size=st.integers(1, 300), block=st.integers(1, 50), ratio=st.floats(0.01, 1), feedback=st.booleans(),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_it_sends_whole_blocks_the_largest_and_keeps_the_others_whole(measured, size, block, ratio, feedback, seed):
    """A Python loop over the blocks gives the same result."""

    def work(comm):
        method = make("block_topk", ratio=ratio, block=block, error_feedback=feedback)
        steps = gradients(0, 4, (size,), seed)
        exchange, residual = exchange_of(comm, method, steps[0]), torch.zeros(size)
        for number, (gradient,) in enumerate(steps, start=1):
            corrected = gradient + residual
            sent = one_step(comm, exchange, [gradient], number)[0]
            blocks = list(zip(sent.split(block), corrected.split(block), strict=True))
            whole = [torch.equal(part, before) for part, before in blocks]
            assert all(one or not part.any() for one, (part, _) in zip(whole, blocks, strict=True))
            norms = [before.double().norm().item() for _, before in blocks]
            assert sum(whole) == max(1, int(ratio * len(blocks) + 1e-6))
            largest_kept = max((n for n, one in zip(norms, whole, strict=True) if not one), default=0.0)
            least_sent = min(n for n, one in zip(norms, whole, strict=True) if one)
            what = "largest norm of a block kept / least norm of a block sent"
            measured("block_topk", what, largest_kept / least_sent, at_most=1 + 1e-5)
            residual = corrected - sent if feedback else torch.zeros(size)
            assert torch.equal(method.residual(exchange.buckets[0]), residual)

    run_workers(1, work)


@given(workers=st.integers(1, 4), size=st.integers(1, 300), block=st.integers(1, 50), ratio=st.floats(0.01, 1))
@examples(0.5)
def test_gathered_or_summed_it_ends_with_the_same_bits(workers, size, block, ratio):
    def work(comm, over):
        method = make("block_topk", block=block, ratio=ratio, over=over)
        return exchange_steps(comm, method, gradients(comm.rank, 4, (size, 1)))

    by_gather, *others = (run_workers(workers, lambda comm, o=o: work(comm, o)) for o in ("gather", "union", "sum"))
    for other in others:
        for step, also in zip(chain(*by_gather), chain(*other), strict=True):
            assert all(map(torch.equal, step, also))


@pytest.mark.parametrize("over", ["gather", "union"])
def test_bytes_are_those_of_the_blocks_and_their_numbers_or_of_the_bitmap_and_the_union(over):
    """1,000 entries are 10 blocks; worker 0 sends blocks 0 and 1, worker 1 sends blocks 1 and 2."""

    def work(comm):
        gradient = torch.full((1000,), 1e-3)
        gradient[100 * comm.rank : 100 * (comm.rank + 2)] = 1.0
        exchange = exchange_of(comm, make("block_topk", ratio=0.2, block=100, over=over), [gradient])
        one_step(comm, exchange, [gradient], 1)
        return exchange.transport

    for counted in run_workers(2, work):
        gathered = 8 + 4 * 2 + 4 * 200  # a count, the numbers, the values
        summed = 4 * 10 + 4 * 300
        assert counted.traffic == (Traffic(gathered=gathered) if over == "gather" else Traffic(summed=summed))
        assert counted.sent_entries == (200 if over == "gather" else 300)


def test_the_last_block_is_as_short_as_the_bucket_leaves_it():
    method = make("block_topk", ratio=0.3, block=4)
    corrected = torch.zeros(10)
    corrected[8:] = 3.0
    assert method.largest(corrected, Bucket(0, corrected)).tolist() == [2]
    assert method.indices(torch.tensor([0, 2]), 10).tolist() == [0, 1, 2, 3, 8, 9]


def test_nan_is_refused():
    gradient = torch.ones(100)
    gradient[50] = float("nan")
    with pytest.raises(FloatingPointError, match="NaN"):
        next(make("block_topk", ratio=0.5, block=10).exchange(Bucket(0, gradient), at(1)))
