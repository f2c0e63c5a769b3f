"""Top-K under Lightning, by a callback that keeps every rank's residuals in the checkpoint.

    PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/with_lightning.py FOLDER [EPOCHS]

It prints no loss. A second call with the same folder and more epochs continues from its checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from dlgs_bench.hooks.ddp import DDPHook


class GradientHook(lightning.Callback):
    """Makes the hook once the model is wrapped: DDPStrategy's ``ddp_comm_hook`` is not called on CPUs.

    A checkpoint contains the states of all ranks. Each state is as large as the model.
    """

    def __init__(self, method: str, **options: Any):
        self.method, self.options = method, options
        self.hook: DDPHook | None = None
        self._states: dict[str, Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self.hook is not None:  # of an earlier fit, whose wrapper Lightning has dropped
            self._states = self._states or self.hook.state_dict()
            self.hook.close()
        scaler = getattr(trainer.precision_plugin, "scaler", None)  # of 16-mixed
        self.hook = DDPHook(trainer.strategy.model, trainer.optimizers, self.method, scaler=scaler, **self.options)
        if self._states is not None:
            self.hook.load_state_dict(self._states)
            self._states = None

    def state_dict(self) -> dict[str, Any]:  # Lightning calls it on all ranks
        if self.hook is None:
            return {}
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.hook.state_dict())
        return {"states": {rank: state for own in states for rank, state in own.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # before on_train_start
        self._states = state_dict.get("states")


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        inputs, labels = batch
        return F.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(folder: Path, epochs: int) -> nn.Module:
    """Train up to ``epochs`` epochs, from the checkpoint in ``folder`` if there is one; then save one."""
    torch.manual_seed(0)
    module, checkpoint = Net(), folder / "last.ckpt"
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, default_root_dir=folder,
        callbacks=[GradientHook("topk", ratio=0.05)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    resume = str(checkpoint) if checkpoint.exists() else None
    trainer.fit(module, DataLoader(data, batch_size=16), ckpt_path=resume)
    trainer.save_checkpoint(checkpoint)
    return module


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
