"""torch.distributed: Gloo on CPU, NCCL on GPU (Gloo where several processes share one GPU)."""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from harness.comm import Communicator, OneAtATime, Pending, joined


def connect(device: torch.device) -> "TorchDist":
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    own_gpu = device.type == "cuda" and torch.cuda.device_count() >= local_workers
    dist.init_process_group("nccl" if own_gpu else "gloo")
    return TorchDist(device)


class TorchDist(Communicator):
    def __init__(self, device: torch.device):
        self.rank, self.world_size, self.device = dist.get_rank(), dist.get_world_size(), device
        self._calls = OneAtATime(device)

    def start_allreduce(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._allreduce, tensor)

    def start_allgather(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._allgather, tensor)

    def start_alltoall(self, tensors: list[Tensor]) -> Pending:
        return self._calls.submit(self._alltoall, joined(tensors), [t.numel() for t in tensors])

    def _allreduce(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def _allgather(self, tensor: Tensor) -> list[Tensor]:
        count = torch.tensor([tensor.numel()], device=tensor.device)
        counts = torch.empty(self.world_size, dtype=torch.int64, device=tensor.device)
        dist.all_gather_into_tensor(counts, count)
        counts = counts.tolist()
        # The collective wants equal lengths: the short ones are padded to the longest.
        longest = max(counts)
        padded = tensor
        if tensor.numel() < longest:
            padded = tensor.new_empty(longest)
            padded[: tensor.numel()] = tensor
        gathered = tensor.new_empty(self.world_size * longest)
        dist.all_gather_into_tensor(gathered, padded)
        return [gathered[i * longest : i * longest + n] for i, n in enumerate(counts)]

    def _alltoall(self, message: Tensor, counts: list[int]) -> list[Tensor]:
        told = torch.tensor(counts, device=message.device)
        heard = torch.empty_like(told)
        dist.all_to_all_single(heard, told)
        incoming = heard.tolist()
        received = message.new_empty(sum(incoming))
        dist.all_to_all_single(received, message, incoming, counts)
        return list(received.split(incoming))

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        dist.broadcast(tensor, root)

    def close(self) -> None:
        self._calls.close()
        dist.destroy_process_group()
