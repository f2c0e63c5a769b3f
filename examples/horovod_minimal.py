"""Train a small network with Top-K under Horovod.

Run it with: PYTHONPATH=. horovodrun -np 2 python examples/horovod_minimal.py
"""

import horovod.torch as hvd
import torch
from torch import nn

from dlgs_bench.hooks.horovod_hook import HorovodHook

STEPS, BATCH = 50, 32

hvd.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hook = HorovodHook(model, optimizer, "topk", ratio=0.1)  # replaces hvd.DistributedOptimizer

data = torch.Generator().manual_seed(1 + hvd.rank())  # other samples on every worker
for step in range(STEPS):
    inputs = torch.randn(BATCH, 20, generator=data)
    labels = (inputs.sum(1) > 0).long()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # exchanges the gradients
    optimizer.step()
    if hvd.rank() == 0 and step in (0, STEPS - 1):
        print(f"step {step}: loss {loss.item():.3f}")
