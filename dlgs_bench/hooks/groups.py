"""A process group of the hook's own, so that the script's calls on its group cannot come between the hook's."""

from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dlgs_bench.comm.torch_dist_engine import TorchDist


def own_communicator(group: dist.ProcessGroup, device: torch.device) -> TorchDist:
    """A communicator for ``device`` over a new group with the ranks, backends and timeout of ``group``.

    All processes of ``group`` call it, and no others.
    """
    timeout = group._get_backend(device).options._timeout
    backend = dist.get_backend_config(group)
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == dist.get_world_size():
        return TorchDist(device, dist.new_group(ranks, timeout=timeout, backend=backend))
    return TorchDist(device, _subgroup(group, ranks, timeout, backend))


def _subgroup(group: dist.ProcessGroup, ranks: list[int], timeout, backend: str) -> dist.ProcessGroup:
    """Like ``dist.new_group(use_local_synchronization=True)``, but with a name that is never used again.

    That function names a group by its ranks and by how many groups the process is in. If a group was closed on one rank
    only, the ranks wait under different names; if it was closed on all, they find the old group's addresses.
    """
    name = [uuid4().hex]
    dist.broadcast_object_list(name, group=group, group_src=0)
    store = c10d._world.pg_map[dist.group.WORLD][1]
    position = ranks.index(dist.get_rank())
    own, _ = c10d._new_process_group_helper(
        len(ranks), position, ranks, dist.Backend(backend), store, name[0], timeout=timeout
    )
    c10d._world.pg_group_ranks[own] = {rank: position for position, rank in enumerate(ranks)}
    return own
