"""Horovod: its own background thread negotiates and runs the collectives (Gloo or MPI; NCCL)."""

import itertools
import time

import horovod.torch as hvd
import torch
from torch import Tensor

from harness.comm import Communicator, joined

PAUSE_S = 50e-6
_INTEGERS = {4: torch.int32, 8: torch.int64}


def connect(device: torch.device) -> "Horovod":
    hvd.init()
    if device.type == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    return Horovod(device)


class _Handle:
    def __init__(self, handle, finish=lambda result: result):
        self._handle, self._finish = handle, finish
        self._result = None

    def done(self) -> bool:
        return self._handle is None or hvd.poll(self._handle)

    def wait(self):
        if self._handle is not None:  # Horovod forgets a handle once it was waited for
            # Horovod waits by spinning, which on few cores takes the core its own threads need.
            while not hvd.poll(self._handle):
                time.sleep(PAUSE_S)
            self._result = self._finish(hvd.synchronize(self._handle))
            self._handle = None
        return self._result


class Horovod(Communicator):
    def __init__(self, device: torch.device):
        self.rank, self.world_size, self.device = hvd.rank(), hvd.size(), device
        # Unique names, the same on all workers, since all make the same calls in the same order.
        self._names = (f"request.{i}" for i in itertools.count())

    def start_allreduce(self, tensor: Tensor) -> _Handle:
        # A group of one: the launcher forbids fusion across groups, since what is fused with what
        # depends on timing and decides the order of additions. All-gathers add nothing and may fuse.
        handle = hvd.grouped_allreduce_async_([tensor], op=hvd.Sum, name=next(self._names))
        return _Handle(handle, lambda tensors: tensors[0])

    def start_allgather(self, tensor: Tensor) -> _Handle:
        # Horovod exchanges the lengths when it negotiates, but hides them: send them along, first.
        length = torch.tensor([tensor.numel()], dtype=_INTEGERS[tensor.element_size()], device=tensor.device)
        message = torch.cat([length.view(tensor.dtype), tensor])
        return _Handle(hvd.allgather_async(message, name=next(self._names)), self._split)

    def _split(self, gathered: Tensor) -> list[Tensor]:
        parts, place = [], 0
        for _ in range(self.world_size):
            length = int(gathered[place].view(_INTEGERS[gathered.element_size()]))
            parts.append(gathered[place + 1 : place + 1 + length])
            place += 1 + length
        return parts

    def start_alltoall(self, tensors: list[Tensor]) -> _Handle:
        splits = [t.numel() for t in tensors]  # Horovod tells each rank its own when it negotiates
        handle = hvd.alltoall_async(joined(tensors), splits=splits, name=next(self._names))
        return _Handle(handle, lambda result: list(result[0].split(result[1].tolist())))

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        hvd.broadcast_(tensor, root, name=next(self._names))

    def close(self) -> None:
        hvd.shutdown()
