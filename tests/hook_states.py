"""What the ranks of test_hook_states do: save by torch.distributed.checkpoint or in files, load, and train on."""

import copy
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from hook_parts import Given, drawn, hooked, said, sgd, state_of
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

STEPS, STOP = 6, 3


class Run:
    """A model with its optimizer and hook."""

    def __init__(self, method: str, options: dict):
        self.net = Given()
        self.optimizer = sgd(self.net)
        self.model, self.hook = hooked("torch_dist", self.net, self.optimizer, method, **options)

    def train(self, comm, steps) -> list[Tensor]:
        """The weights after these steps."""
        for step in steps:
            self.optimizer.zero_grad()
            self.model(drawn(step, comm.rank)).backward()
            self.optimizer.step()
        return [p.detach().clone() for p in self.net.parameters()]


def resumed(comm, folder: str, methods: dict[str, dict], whole_hook: bool) -> dict[str, tuple]:
    """The weights of a run without a stop, and of a run that was saved and loaded after STOP steps, by method.

    ``whole_hook``: torch.distributed.checkpoint is given the hook itself, otherwise its state_dict.
    """
    found = {}
    for method, options in methods.items():
        run, place = Run(method, options), f"{folder}/{method}"
        run.train(comm, range(STOP))
        hook = run.hook if whole_hook else run.hook.state_dict()
        dcp.save({"model": run.net.state_dict(), "hook": hook}, checkpoint_id=place)
        whole = run.train(comm, range(STOP, STEPS))
        again = Run(method, options)
        state = {"model": again.net.state_dict(), "hook": again.hook if whole_hook else again.hook.state_dict()}
        dcp.load(state, checkpoint_id=place)
        again.net.load_state_dict(state["model"])
        if not whole_hook:
            again.hook.load_state_dict(state["hook"])
        found[method] = whole, again.train(comm, range(STOP, STEPS))
    return found


def saved(comm, folder: str, methods: dict[str, dict]) -> dict[str, dict]:
    """The state of a rank after STOP steps, by method. All states are in ``folder``."""
    from dlgs_bench.hooks.checkpoints import save_rank_state

    found = {}
    for method, options in methods.items():
        run = Run(method, options)
        run.train(comm, range(STOP))
        dcp.save({"hook": run.hook}, checkpoint_id=f"{folder}/{method}")
        save_rank_state(run.hook, f"{folder}/{method}-files")
        found[method] = state_of(run.hook)
    return found


def loaded_plainly(hook, folder: str) -> str:
    """The error if the new hook, with another number of workers, loads as usual."""
    try:
        dcp.load({"hook": hook}, checkpoint_id=folder)
    except (ValueError, CheckpointException) as error:
        return str(error)
    return ""


def redistributed(comm, code: str, folder: str, methods: dict[str, dict], workers: int) -> dict[str, dict]:
    """What the states of ``workers`` workers become by the documented ``code``, and the weights afterwards, by
    method."""
    from dlgs_bench.hooks.checkpoints import load_rank_state

    found = {}
    for method, options in methods.items():
        run, other = Run(method, options), Run(method, options)
        plainly = loaded_plainly(run.hook, f"{folder}/{method}")
        names = {"dcp": dcp, "workers": workers, "folder": f"{folder}/{method}", "hook": run.hook}
        exec(code, names)
        states = names["states"]["hook"]
        first = {"rank 0": states["rank 0"]}
        refused = said(lambda hook=other.hook, states=states: hook.load_state_dict(states))
        lacking = said(lambda hook=other.hook, first=first: hook.load_state_dict(first, redistribute=True))
        stale = Path(f"{folder}/{method}-files/gradient_hook_2.pt")  # of three workers, before they were two
        if comm.rank == 0:
            identity, step, kept = states["rank 0"]
            torch.save({"rank 2": (identity | {"rank": 2, "workers": 3}, step + 7, kept)}, stale)
        comm.barrier()
        load_rank_state(other.hook, f"{folder}/{method}-files", redistribute=True)
        state, from_files = (copy.deepcopy(state_of(one.hook)) for one in (run, other))
        found[method] = {
            "refused": refused, "lacking": lacking, "step": run.hook.step, "state": state, "from files": from_files,
            "plainly": plainly, "weights": run.train(comm, range(STOP, STEPS)),
        }  # fmt: skip
    return found


def one_rank_loads(comm) -> str:
    """The error of the first pass if only rank 0 has loaded its state."""
    first, second = (Run("topk", {"ratio": 0.1}) for _ in range(2))
    first.train(comm, range(STOP))
    if comm.rank == 0:
        second.hook.load_state_dict(first.hook.state_dict())
    return said(lambda: second.train(comm, range(STOP, STEPS)))
