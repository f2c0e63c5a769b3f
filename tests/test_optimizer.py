"""The flat SGD against torch.optim.SGD, slow to import and the reference."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlgs_bench.training.optimizer import SGD

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_same_bits_as_torch(momentum):
    torch.manual_seed(0)
    start = torch.randn(1000)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    reference = torch.optim.SGD([theirs], 0.1, momentum=momentum, weight_decay=1e-2, fused=True)
    optimizer = SGD(ours, 0.1, momentum=momentum, weight_decay=1e-2)
    for step in range(5):
        gradient = torch.randn(1000)
        theirs.grad = gradient.clone()
        optimizer.lr = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        reference.step()
        optimizer.step(gradient)
        assert torch.equal(ours, theirs)


@given(st.integers(1, 200), st.sets(st.integers(1, 199)), st.integers(0, 2**16))
def test_parts_are_updated_to_the_same_bits_as_all_at_once(size, cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(size, generator=generator)
    parts = whole.clone()
    optimizers = [SGD(w, 0.1, momentum=0.9, weight_decay=1e-2) for w in (whole, parts)]
    for _ in range(3):
        gradient = torch.randn(size, generator=generator)
        optimizers[0].step(gradient)
        for start, stop in pairwise([0, *sorted(c for c in cuts if c < size), size]):
            optimizers[1].step(gradient, start, stop)
        assert torch.equal(whole, parts)
        assert torch.equal(optimizers[0].velocity, optimizers[1].velocity)
