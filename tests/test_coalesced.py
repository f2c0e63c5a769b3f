"""All-gathers that are sent as one message, as accuracy runs send them."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import METHODS, examples, exchange_of, gradients, make, one_step

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange.coalesced import CoalescedGathers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", METHODS)
def test_an_exchange_with_coalesced_gathers_has_the_same_bits_and_counts(name):
    def work(comm, together):
        exchange = exchange_of(comm, make(name), gradients(0, 1)[0])
        if together:
            exchange.transport.gather = CoalescedGathers(comm).start
        steps = gradients(comm.rank, 5)
        aggregates = [one_step(comm, exchange, step, number) for number, step in enumerate(steps, start=1)]
        counts = exchange.transport
        return aggregates, (counts.sent_bytes, counts.received_bytes, int(counts.sent_entries), exchange.sent_entries)

    alone, together = (run_workers(2, partial(work, together=together)) for together in (False, True))
    for (expected, expected_counts), (aggregates, counts) in zip(alone, together, strict=True):
        assert counts == expected_counts
        for step, expected_step in zip(aggregates, expected, strict=True):
            assert all(map(torch.equal, step, expected_step))


def test_lengths_are_where_the_tensors_are(monkeypatch):
    """Threads that share a GPU have a communicator whose device is another one."""

    def work(comm):
        monkeypatch.setattr(comm, "device", torch.device("meta"))
        gather = CoalescedGathers(comm).start(torch.arange(comm.rank + 1))
        return [answer.tolist() for answer in gather.wait()]

    assert run_workers(2, work) == [[[0], [0, 1]]] * 2


@given(st.lists(st.tuples(st.sampled_from([torch.uint8, torch.int32, torch.float64]), st.booleans()), min_size=1))
@examples(0.5)
def test_gathers_of_any_length_and_dtype_are_sent_together(requests):
    sent = []

    def work(comm):
        start_allgather = comm.start_allgather
        comm.start_allgather = lambda *request: sent.append(comm.rank) or start_allgather(*request)
        gathers = CoalescedGathers(comm)
        for _ in range(2):
            pending = [
                gathers.start(torch.arange(i if equal else i * (comm.rank + 1)).to(dtype), equal)
                for i, (dtype, equal) in enumerate(requests)
            ]
            assert not any(gather.done() for gather in pending)
            for i, (gather, (dtype, equal)) in enumerate(zip(pending, requests, strict=True)):
                for rank, answer in enumerate(gather.wait()):
                    assert torch.equal(answer, torch.arange(i if equal else i * (rank + 1)).to(dtype))
                assert gather.done()

    run_workers(2, work)
    assert sorted(sent) == [0, 0, 1, 1]
