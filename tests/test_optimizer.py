"""The flat SGD against torch.optim.SGD, slow to import and the reference."""

import torch

from harness.optimizer import SGD


def test_same_bits_as_torch():
    torch.manual_seed(0)
    start = torch.randn(1000)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    reference = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=1e-2, fused=True)
    optimizer = SGD(ours, 0.1, momentum=0.9, weight_decay=1e-2)
    for step in range(5):
        gradient = torch.randn(1000)
        theirs.grad = gradient.clone()
        optimizer.lr = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        reference.step()
        optimizer.step(gradient)
        assert torch.equal(ours, theirs)
