"""Process groups that only a hook uses, and a check that all workers agree.

In a group of its own, the hook's calls keep their order, whatever the script calls on its own group.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dlgs_bench.comm import Communicator
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.errors import short_repr


def own_communicator(group: dist.ProcessGroup, device: torch.device) -> TorchDist:
    """A communicator for ``device`` over a new group with the ranks, backends and timeout of ``group``.

    All processes of ``group`` call it, and no others.
    """
    timeout = group._get_backend(device).options._timeout
    backend = _backend_of(group)
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == dist.get_world_size():
        return TorchDist(device, dist.new_group(ranks, timeout=timeout, backend=backend))
    return TorchDist(device, _subgroup(group, device, ranks, timeout, backend))


def _backend_of(group: dist.ProcessGroup) -> str:
    """The backends of ``group``, for a new group: "cpu:gloo,cuda:nccl", or one name if all devices have the same.

    If one backend is named for several devices, torch finds no default backend, and warns when the group is closed.
    """
    devices = dist.get_backend_config(group)
    names = {device.split(":")[-1] for device in devices.split(",")}
    return names.pop() if len(names) == 1 else devices


def refuse_destroyed(comm: Communicator, name: str) -> None:
    """ValueError in one line if the script has destroyed the group of ``comm``. ``name``: of the method."""
    if isinstance(comm, TorchDist) and comm._group not in c10d._world.pg_map:
        raise ValueError(
            f"destroy_process_group: {name} exchanged over a group that is destroyed; after init_process_group, wrap "
            "the model again and make a new hook"
        )


def _subgroup(
    group: dist.ProcessGroup, device: torch.device, ranks: list[int], timeout: timedelta, backend: str
) -> dist.ProcessGroup:
    """Like ``dist.new_group(use_local_synchronization=True)``, but with a name that is never used again.

    That function names a group by its ranks and by how many groups the process is in. If a group was closed on one rank
    only, the ranks wait under different names; if it was closed on all, they find the old group's addresses.
    """
    name = [uuid4().hex]
    # NCCL would use the current GPU, which a script need not have chosen.
    dist.broadcast_object_list(name, group=group, group_src=0, device=device if backend == "nccl" else None)
    store = c10d._world.pg_map[dist.group.WORLD][1]
    position = ranks.index(dist.get_rank())
    own, _ = c10d._new_process_group_helper(
        len(ranks), position, ranks, dist.Backend(backend), store, c10d.GroupName(name[0]), timeout=timeout
    )
    c10d._world.pg_group_ranks[own] = {rank: position for position, rank in enumerate(ranks)}
    return own


@contextmanager
def agreement(comm: Communicator, advice: str) -> Iterator[dict[str, Any]]:
    """Raise on all workers if one of them raises within the context, or if they do not agree.

    All workers enter it. Put into the context's target what must be the same on all, such as {"topk.ratio": 0.1}.
    ``advice``: what to do where it is not.
    """
    mine: dict[str, Any] = {}
    raised = None
    try:
        yield mine
    except Exception as error:
        raised = error
    everyone = _gathered(comm, mine | {"error": str(raised or "")})
    if raised is not None:
        raise raised
    for rank, other in enumerate(everyone):
        if other["error"]:
            raise ValueError(f"rank {rank}: {other['error']}")
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for key in first | other:
            if first.get(key) != other.get(key):
                here, there = short_repr(first.get(key)), short_repr(other.get(key))
                raise ValueError(f"{key}: {here} on rank 0 is not {there} on rank {rank}; {advice}")


def _gathered(comm: Communicator, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What every worker gives, by rank."""
    text = torch.tensor([*json.dumps(mine, default=repr).encode()], dtype=torch.uint8, device=comm.device)
    return [json.loads(bytes(one.tolist())) for one in comm.allgather(text)]
