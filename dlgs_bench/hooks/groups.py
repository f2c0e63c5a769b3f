"""A process group of the hook's own, so that the script's calls on its group cannot come between the hook's."""

import torch
import torch.distributed as dist

from dlgs_bench.comm.torch_dist_engine import TorchDist


def own_communicator(group: dist.ProcessGroup, device: torch.device) -> TorchDist:
    """A communicator for ``device`` over a new group with the ranks, backends and timeout of ``group``.

    All processes of ``group`` call it. torch names a group that only its members create by how many groups each of them
    is in, and hangs if these numbers differ. So if ``group`` holds all processes, all of them create the new group.
    """
    ranks = dist.get_process_group_ranks(group)
    some = len(ranks) < dist.get_world_size()
    timeout = group._get_backend(device).options._timeout
    backend = dist.get_backend_config(group)
    return TorchDist(device, dist.new_group(ranks, timeout=timeout, backend=backend, use_local_synchronization=some))
