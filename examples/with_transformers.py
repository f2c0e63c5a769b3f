"""Top-K under Hugging Face's Trainer, by a callback that saves every rank's residuals next to the checkpoint.

    PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/with_transformers.py FOLDER [STEPS]

A second call with the same folder and more steps continues from its newest checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from dlgs_bench.hooks.checkpoints import load_rank_state, save_rank_state
from dlgs_bench.hooks.ddp import DDPHook


class GradientHook(TrainerCallback):
    """Makes the hook when training begins: only then is the Trainer's model wrapped.

    Checkpoints must be in the Trainer's ``output_dir``.
    """

    def __init__(self, trainer: Trainer, method: str, **options: Any):
        self.trainer, self.method, self.options = trainer, method, options
        self.hook: DDPHook | None = None

    def on_train_begin(self, args, state, control, **_):
        optimizer, scaler = self.trainer.optimizer, self.trainer.accelerator.scaler
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate has wrapped it
        self.hook = DDPHook(self.trainer.model_wrapped, inner, self.method, scaler=scaler, **self.options)
        if state.global_step:
            load_rank_state(self.hook, self._folder(args, state))

    def on_save(self, args, state, control, **_):  # on all ranks
        save_rank_state(self.hook, self._folder(args, state))

    def on_train_end(self, args, state, control, **_):
        self.hook.close()  # a second call of train makes the next one

    @staticmethod
    def _folder(args, state) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def train(folder: Path, steps: int) -> nn.Module:
    """Train up to ``steps`` steps, from the newest checkpoint in ``folder`` if there is one; then save one."""
    torch.manual_seed(0)
    net = Net()
    data = [{"inputs": torch.randn(8), "labels": torch.randint(0, 4, ())} for _ in range(256)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=3, per_device_train_batch_size=8, learning_rate=0.01,
        lr_scheduler_type="constant", use_cpu=True, ddp_backend="gloo", report_to="none", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=net, args=arguments, train_dataset=data)
    trainer.add_callback(GradientHook(trainer, "topk", ratio=0.05))
    resume = get_last_checkpoint(str(folder)) if folder.exists() else None
    trainer.train(resume_from_checkpoint=resume)
    return net


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100)
