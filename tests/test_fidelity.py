"""Measures of a method's aggregates, by hand and of methods whose error is known."""

import pytest
import torch
from support import exchange_of, gradients, make, one_step

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange.fidelity import bits_per_entry, vnmse

pytestmark = pytest.mark.unit


def test_vnmse_by_hand():
    means = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])]
    assert vnmse(means, means) == 0
    assert vnmse([torch.zeros(2)] * 2, means) == 1
    assert vnmse([torch.tensor([2.0, 4.0]), torch.tensor([0.0, 8.0])], means) == pytest.approx((1 + 9) / (25 + 25))


@pytest.mark.parametrize("name, error, bits", [("none", 0, 32), ("cast", 2**-22, 16), ("randomk", 0.9, 3.2)])
def test_methods_whose_error_is_known(name, error, bits):
    """Dense loses nothing, 16 bits lose at most one rounding per entry, and a random tenth loses nine tenths in the
    mean."""

    def work(comm):
        first = gradients(comm.rank, 1, sizes=(10_000,))[0]
        exchange = exchange_of(comm, make(name), first)
        return one_step(comm, exchange, first, 1)[0], first[0], exchange.transport.sent_bytes

    aggregate, own, sent_bytes = run_workers(1, work)[0]
    found = vnmse([aggregate], [own])
    assert found <= error if error < 0.1 else found == pytest.approx(error, rel=0.05)
    assert bits_per_entry(sent_bytes, 10_000) == pytest.approx(bits)
