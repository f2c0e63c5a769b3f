"""Train a small network with Top-K under DistributedDataParallel.

Run it with: PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/ddp_minimal.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.hooks.ddp import DDPHook

STEPS, BATCH = 50, 32

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)  # the same weights on every worker
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hook = DDPHook(model, optimizer, "topk", ratio=0.1)  # sends 10 % of the entries, keeps the rest for later

data = torch.Generator().manual_seed(1 + rank)  # other samples on every worker
for step in range(STEPS):
    inputs = torch.randn(BATCH, 20, generator=data)
    labels = (inputs.sum(1) > 0).long()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # exchanges the gradients
    optimizer.step()
    if rank == 0 and step in (0, STEPS - 1):
        print(f"step {step}: loss {loss.item():.3f}")

# Residuals differ between workers, so every worker saves the state of its own hook:
# state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": hook.state_dict()}
# torch.save(state, f"checkpoint-{rank}.pt")
dist.destroy_process_group()
