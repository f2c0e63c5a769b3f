"""For test_examples, on each rank: the naive exchange and the hook of Top-K get the same gradients.

Rank 0 prints "equal" if every aggregate and every residual has the same bits on all ranks.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from naive_exchange import exchange

from dlgs_bench.hooks.ddp import DDPHook

ENTRIES, RATIO, STEPS = 5000, 0.01, 8


class Weights(nn.Module):
    """Its gradient is the factor that the forward pass is given."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(ENTRIES))

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.weights * factors).sum()


dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(dist.get_rank())
model = DistributedDataParallel(Weights())
hook = DDPHook(model, torch.optim.SGD(model.parameters(), lr=0.1), "topk", ratio=RATIO, selection="compiled")
residual, equal = torch.zeros(ENTRIES), True
for _ in range(STEPS):
    gradient = torch.randn(ENTRIES, generator=generator)
    model.zero_grad()
    model(gradient).backward()
    aggregate = exchange(gradient, residual, k=int(RATIO * ENTRIES))
    equal &= torch.equal(aggregate, model.module.weights.grad)
    equal &= torch.equal(residual, hook.method.residuals[0])
    assert aggregate.count_nonzero() > RATIO * ENTRIES  # both workers sent
on_all = torch.tensor(equal, dtype=torch.int)
dist.all_reduce(on_all, op=dist.ReduceOp.MIN)
if dist.get_rank() == 0:  # lines of several ranks may run into each other
    print("equal" if on_all else "different", flush=True)
dist.destroy_process_group()
