"""Record a profile of a training job under Hugging Face's Trainer, by a callback.

PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/probe_transformers.py profile.json
dlgs-bench advise profile.json --workers 16 --link-mbit 10000
"""

import sys
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

from dlgs_bench.probe import record


class RecordProfile(TrainerCallback):
    """Records while the Trainer trains: only when training begins is its model wrapped."""

    def __init__(self, trainer: Trainer, path: str, **options: Any):
        self.trainer, self.path, self.options = trainer, path, options
        self.recording = ExitStack()

    def on_train_begin(self, args, state, control, **_):
        self.recording.enter_context(
            record(self.trainer.model_wrapped, self.trainer.optimizer, self.path, **self.options)
        )

    def on_train_end(self, args, state, control, **_):
        self.recording.close()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main(path: str) -> None:
    torch.manual_seed(0)
    data = [{"inputs": torch.randn(8), "labels": torch.randint(0, 4, ())} for _ in range(256)]
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=20, per_device_train_batch_size=8, save_strategy="no", use_cpu=True,
            ddp_backend="gloo", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(model=Net(), args=arguments, train_dataset=data)
        # Without ``methods``, all are measured.
        trainer.add_callback(RecordProfile(trainer, path, steps=10, methods=["topk"]))
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
