"""Top-K under Accelerate, with checkpoints that hold every rank's residuals.

    PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/with_accelerate.py FOLDER [STEPS]

It prints no loss. A second call with the same folder and more steps continues from its checkpoint.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from dlgs_bench.hooks.checkpoints import attach
from dlgs_bench.hooks.ddp import DDPHook


def train(folder: Path, steps: int) -> nn.Module:
    """Train up to ``steps`` steps, from the checkpoint in ``folder`` if there is one; then save one."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    hook = DDPHook(model, optimizer.optimizer, "topk", ratio=0.05, scaler=accelerator.scaler)
    attach(hook, accelerator)
    if folder.exists():
        accelerator.load_state(str(folder))
    for step in range(hook.step, steps):
        generator = torch.Generator().manual_seed(1000 * step + accelerator.process_index)
        inputs, labels = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
    accelerator.wait_for_everyone()
    accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    return net


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100)
