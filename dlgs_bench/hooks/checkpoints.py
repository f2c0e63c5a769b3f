"""The state of a hook in checkpoints of frameworks: one file per rank, since residuals differ between ranks."""

import weakref
from pathlib import Path
from typing import Any

import torch

from dlgs_bench.hooks.hook import Hook


def save_rank_state(hook: Hook, folder: str | Path) -> None:
    """Write this rank's state of ``hook`` into the folder of a checkpoint."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(hook.state_dict(), _file(folder, hook.rank))


def load_rank_state(hook: Hook, folder: str | Path, redistribute: bool = False) -> None:
    """Continue from what ``save_rank_state`` wrote; ValueError in one line if this rank has no file.

    ``redistribute``: the saved number of workers may differ from the present one, as in ``Hook.load_state_dict``.
    """
    own = _file(folder, hook.rank)
    files = sorted(Path(folder).glob(_file(folder, "*").name)) if redistribute else [own]
    if not files or not files[0].exists():
        raise ValueError(
            f"{own}: the file is missing, so the hook's residuals would be lost; resume from a checkpoint "
            "that was saved with the hook, and give redistribute=True if it had fewer workers"
        )
    state: dict[str, Any] = {}
    for file in files:
        try:
            state |= torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # of zip, of pickle or of the disk
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{file}: the file cannot be read: {reason}; resume from another checkpoint") from None
    if redistribute and all(isinstance(one, tuple) for one in state.values()):
        workers = next(iter(state.values()))[0]["workers"]  # more workers may have saved into this folder before
        state = {rank: one for rank, one in state.items() if one[0]["workers"] == workers}
    hook.load_state_dict(state, redistribute)


def attach(hook: Hook, accelerator: Any, redistribute: bool = False) -> None:
    """Have ``accelerator``, an accelerate.Accelerator, save and load the state of ``hook`` until the hook is closed."""
    own = weakref.proxy(hook)  # the accelerator does not keep it
    hook._handles += [
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: save_rank_state(own, folder)),
        accelerator.register_load_state_pre_hook(lambda models, folder: load_rank_state(own, folder, redistribute)),
    ]


def _file(folder: str | Path, rank: int | str) -> Path:
    return Path(folder) / f"gradient_hook_{rank}.pt"
