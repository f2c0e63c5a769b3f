"""The state of a hook in checkpoints of frameworks: one file per rank, since residuals differ between ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dlgs_bench.hooks.hook import Hook


def save_rank_state(hook: Hook, folder: str | Path) -> None:
    """Write this rank's state of ``hook`` into the folder of a checkpoint."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(hook.state_dict(), _file(folder))


def load_rank_state(hook: Hook, folder: str | Path) -> None:
    """Load what ``save_rank_state`` wrote; ValueError in one line if this rank has no file."""
    if not _file(folder).exists():
        raise ValueError(
            f"{_file(folder)}: the file is missing, so the hook's residuals would be lost; "
            "resume from a checkpoint that was saved with the hook"
        )
    hook.load_state_dict(torch.load(_file(folder), weights_only=True, map_location="cpu"))


def attach(hook: Hook, accelerator: Any) -> None:
    """Save and load the state of ``hook`` together with the state of ``accelerator``, an accelerate.Accelerator."""
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: save_rank_state(hook, folder))
    accelerator.register_load_state_pre_hook(lambda models, folder: load_rank_state(hook, folder))


def _file(folder: str | Path) -> Path:
    return Path(folder) / f"gradient_hook_{dist.get_rank()}.pt"
