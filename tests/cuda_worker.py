"""A process for test_cuda: all that torch.distributed is for, on a device; arguments: the device, the topology, the
target file."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from comm_parts import answered, in_flight, numbers, summed
from support import CLASSES, METHODS, exchange_steps, gradients, make

from dlgs_bench.comm import Communicator, connect
from dlgs_bench.topology import TOPOLOGIES, Topology


def exchanged(comm: Communicator, topology: Topology, device: torch.device) -> dict:
    """The aggregates of a few steps, by method."""
    names = [name for name in METHODS if topology.supports(CLASSES[name].sum_kind)]
    steps = gradients(comm.rank, 4, device=device)
    return {name: exchange_steps(comm, make(name), steps, topology=topology) for name in names}


def messages(comm: Communicator) -> dict:
    """The results by request to the communicator. No rank sends to itself."""
    told = numbers(5, torch.float32, comm.rank).to(comm.device)
    comm.broadcast(told, root=comm.world_size - 1)
    together = in_flight(comm) if comm.world_size > 1 else {}
    return {"broadcast": told} | answered(comm) | summed(comm) | together


if __name__ == "__main__":
    torch.set_num_threads(1)
    device, topology = torch.device(sys.argv[1]), TOPOLOGIES[sys.argv[2]]
    comm = connect("torch_dist", device, shared=int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count())
    found = {"backend": dist.get_backend(), "exchanged": exchanged(comm, topology, device)}
    if not topology.servers:
        found["messages"] = messages(comm)
    torch.save(found, f"{sys.argv[3]}.{comm.rank}")
    comm.close()
