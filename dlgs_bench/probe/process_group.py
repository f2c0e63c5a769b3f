"""Measures the job's process group, between two steps."""

import math
import os
import platform
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.buckets import filled_by
from dlgs_bench.comm import Communicator
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.engines import FIRST_BYTES
from dlgs_bench.probe.marks import Marks
from dlgs_bench.timemodel.job_profile import OPERATIONS

SIZES = (4, 2**12, 2**16, 2**20, 2**23, 2**25)  # bytes of one worker's tensor
MOST_GATHERED = 2**28  # bytes of all workers' tensors together
REPEATS, LIMIT_S = 3, 5.0  # sizes that are expected to take longer are not measured
CGROUP = Path("/sys/fs/cgroup")  # in a container, its own control group


def job_group(
    model: nn.Module, device: torch.device, replicas: DeviceMesh | None = None
) -> tuple[str, str, Communicator | None]:
    """The kind of job, its backend, and its process group, which is None for one process.

    ``replicas``: of a job with hybrid sharding, which exchanges gradients between them.
    """
    engine = sys.modules.get("horovod.torch")
    if engine is not None and engine.is_initialized() and engine.size() > 1:
        from dlgs_bench.comm.horovod_engine import Horovod

        return "horovod", "horovod", Horovod(device)
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return "single", "none", None
    from dlgs_bench.comm.torch_dist_engine import TorchDist, backend_of

    kind, group = "distributed", None
    if isinstance(model, DistributedDataParallel):
        kind, group = "ddp", cast(dist.ProcessGroup, model.process_group)
    elif replicas is not None:
        kind, group = "hsdp", replicas.get_group()
    if dist.get_world_size(group) == 1:
        return "single", "none", None
    return kind, backend_of(group, device), TorchDist(device, group)


def is_first() -> bool:
    """Whether this process has rank 0 of the job."""
    engine = sys.modules.get("horovod.torch")
    if engine is not None and engine.is_initialized():
        return engine.rank() == 0
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


def ddp_settings(model: DistributedDataParallel) -> dict[str, int]:
    """The bytes that fill the buckets of DistributedDataParallel, and the bytes of the buffers that it broadcasts."""
    first, most = filled_by(model)
    buffers = model.modules_buffers if model.broadcast_buffers else []
    return {
        "first_bucket_bytes": first,
        "bucket_bytes": most,
        "buffer_bytes": sum(buffer.nbytes for buffer in buffers),
    }


def machine(comm: Communicator | None, shards: DeviceMesh | None = None) -> dict[str, Any]:
    """The cores of this machine, the number of the job's processes on it, and its network interfaces.

    A container with a quota of processor time counts as a machine of its own.
    ``shards``: of a job with hybrid sharding, whose replicas ``comm`` connects.
    """
    workers = 1
    if comm is not None:
        running = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
        name = running.read_text(encoding="ascii") if running.exists() else platform.node()
        if math.isfinite(_quota_cores()):
            with suppress(OSError):  # kernels before 4.6 have no namespace of control groups
                name += str(Path("/proc/self/ns/cgroup").readlink())
        own = torch.tensor([zlib.crc32(name.encode())], device=comm.device)
        names = torch.cat(comm.allgather(own))
        if shards is not None:
            every = [torch.empty_like(names) for _ in range(shards.size())]
            dist.all_gather(every, names, group=shards.get_group())
            names = torch.cat(every)
        workers = int((names == own).sum())
    return {"cores": math.ceil(_cores()), "workers": workers, "interfaces": _interfaces()}


def own_cores(machine: dict[str, Any]) -> float:
    """The cores that this process may use, if the workers of its machine share them equally."""
    shared = _cores() / machine["workers"]
    return min(shared, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else shared


def _cores() -> float:
    """The cores that all processes of this machine or container may use together."""
    return min(os.cpu_count() or 1, _quota_cores())


def _quota_cores() -> float:
    """The cores that the container's quota of processor time allows; infinite without a quota."""
    with suppress(OSError, ValueError):  # version 2 of control groups; without a quota, the first word is "max"
        quota_us, period_us = map(int, (CGROUP / "cpu.max").read_text(encoding="ascii").split())
        return quota_us / period_us
    with suppress(OSError, ValueError):  # version 1; without a quota, it is -1
        files = (CGROUP / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        quota_us, period_us = (int(file.read_text(encoding="ascii")) for file in files)
        return quota_us / period_us if quota_us > 0 else math.inf
    return math.inf


def _interfaces(folder: Path = Path("/sys/class/net")) -> list[dict[str, Any]] | None:
    """The rate of each network interface in Mb/s, or None if the machine does not tell any.

    Virtual interfaces are left out: Linux gives them a fixed rate, whatever the link.
    """
    interfaces = []
    for device in sorted(folder.glob("*/device")):
        with suppress(OSError, ValueError):  # an interface that is down cannot be read, or has the rate -1
            rate_mbit = int((device.parent / "speed").read_text(encoding="ascii"))
            if rate_mbit > 0:
                interfaces.append({"name": device.parent.name, "mbit": rate_mbit})
    return interfaces or None


def measure(comm: Communicator, marks: Marks) -> tuple[list[dict], dict[str, int]]:
    """Seconds of each operation on the slowest rank, by the bytes of one worker's tensor.

    Also return, for each operation that a rank has too little memory for, the smallest size in bytes that was not
    measured.
    """
    rows, too_large = [], {}
    for operation in OPERATIONS:
        expected_s = 0.0
        for size in SIZES:
            largest = operation == "all-gather" and size * comm.world_size > MOST_GATHERED
            if largest or expected_s > LIMIT_S:
                break
            marks.empty_caches()  # it takes memory, too
            if not _all_can_allocate(comm, operation, size):
                too_large[operation] = size
                break
            tensor = torch.zeros(size // 4, device=comm.device)
            _slowest(comm, operation, tensor, marks)  # the first call sets up connections
            calls = [_slowest(comm, operation, tensor, marks) for _ in range(REPEATS)]
            seconds, processor_s = map(median, zip(*calls, strict=True))
            rows.append({"operation": operation, "workers": comm.world_size, "bytes": size, "seconds": seconds,
                         "processor_s": processor_s})  # fmt: skip
            expected_s = seconds * 8
    return rows, too_large


def _all_can_allocate(comm: Communicator, operation: str, size: int) -> bool:
    """Whether every rank has memory for the tensors of an operation. A rank that failed in it would stop all others.

    ``size``: bytes of one worker's tensor.
    """
    tensors = {"all-reduce": 1, "all-gather": comm.world_size + 1, "message": 2}[operation]
    lacks = torch.zeros(1, device=comm.device)
    try:
        [torch.empty(size // 4, device=comm.device) for _ in range(tensors)]
    except RuntimeError:  # torch.OutOfMemoryError on a GPU
        lacks += 1
    return not comm.start_max(lacks).wait().item()


def _slowest(comm: Communicator, operation: str, tensor: torch.Tensor, marks: Marks) -> list[float]:
    """Seconds of one call on the slowest rank, and processor seconds of the rank that needs most.

    The result is the same on all ranks, so all measure the same sizes.
    """
    marks.empty_caches()
    marks.synchronize()
    comm.barrier()
    begin, begin_processor = time.perf_counter(), time.process_time()
    if operation == "all-reduce":
        comm.start_allreduce(tensor).wait()
    elif operation == "all-gather":
        # Sparse sums on CPUs have headers. The time model adds the second message of a larger tensor.
        equal = comm.device.type != "cpu" or tensor.nbytes > FIRST_BYTES
        comm.start_allgather(tensor, equal).wait()
    else:  # a message to the next rank, and one from the previous rank
        following, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        comm.start_round(PeerExchange({following: tensor}, {before: len(tensor)}, tensor.dtype)).wait()
    marks.synchronize()
    spent = [time.perf_counter() - begin, time.process_time() - begin_processor]
    return cast(list[float], comm.start_max(torch.tensor(spent, device=comm.device)).wait().tolist())
