"""torch.distributed: Gloo on CPU, NCCL on GPU (Gloo where several processes share one GPU)."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from harness.comm import Communicator, Pending, Start, words
from harness.comm.collectives import Round
from harness.comm.thread import OneAtATime


def connect(device: torch.device) -> "TorchDist":
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    own_gpu = device.type == "cuda" and torch.cuda.device_count() >= local_workers
    dist.init_process_group("nccl" if own_gpu else "gloo")
    return TorchDist(device)


class TorchDist(Communicator):
    """``group``: the processes that take part, all if not given. Nobody else may use it: calls pair by order."""

    everybody = False  # messages join two ranks each

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None):
        self.rank, self.world_size, self.device = dist.get_rank(group), dist.get_world_size(group), device
        self._group = group
        self._calls = OneAtATime(device)
        # Gloo sends messages from the host's memory only.
        self._messages_on = torch.device("cpu") if dist.get_backend(group) == "gloo" else device

    def start_allreduce(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.SUM)

    def start_max(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.MAX)

    def start_allgather(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._allgather, tensor)

    def _starter(self) -> Start:
        return self._round

    def _reduce(self, tensor: Tensor, op) -> Tensor:
        dist.all_reduce(tensor, op, self._group)
        return tensor

    def _allgather(self, tensor: Tensor) -> list[Tensor]:
        """Lengths by the engine's all-gather, which wants equal ones, then messages between all pairs."""
        counts = torch.empty(self.world_size, dtype=torch.int64, device=tensor.device)
        dist.all_gather_into_tensor(counts, torch.tensor([tensor.numel()], device=tensor.device), self._group)
        entries = {rank: count for rank, count in enumerate(counts.tolist()) if rank != self.rank}
        mine = tensor.to(self._messages_on)  # once, whatever the number of peers
        received = self._messages(dict.fromkeys(entries, mine), entries, tensor.dtype)()
        return [tensor.clone() if rank == self.rank else received[rank] for rank in range(self.world_size)]

    def _round(self, round: Round) -> Callable[[], dict[int, Tensor]]:
        entries = round.receives
        if round.headers:
            lengths = {peer: torch.tensor([t.numel()]) for peer, t in round.sends.items()}
            told = self._messages(lengths, dict.fromkeys(entries, 1), torch.int64)()
            entries = {peer: int(length) for peer, length in told.items()}
        return self._messages(round.sends, entries, round.dtype)

    def _messages(
        self, sends: dict[int, Tensor], entries: dict[int, int], dtype: torch.dtype
    ) -> Callable[[], dict[int, Tensor]]:
        """Begin to send to peers and to receive as many entries from others; what it returns waits for these and
        returns them. The empty messages stay at home.

        Receives come first. Gloo tells the sender of each over the same stream as the data: told behind a large
        message of its own, two peers would send one after the other, over half of what a link can carry.
        """
        received = {peer: torch.empty(n, dtype=dtype, device=self._messages_on) for peer, n in entries.items()}
        outgoing = {peer: t.to(self._messages_on) for peer, t in sends.items()}
        parts = [self._part(dist.irecv, t, peer) for peer, t in received.items() if t.numel()]
        parts += [self._part(dist.isend, t, peer) for peer, t in outgoing.items() if t.numel()]
        works = dist.batch_isend_irecv(parts) if parts else []

        def finish() -> dict[int, Tensor]:
            for work in works:
                work.wait()
            return {peer: t.to(self.device) for peer, t in received.items()}

        return finish

    def _part(self, call: Callable, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, words(tensor), group=self._group, group_peer=peer)

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        dist.broadcast(tensor, group=self._group, group_src=root)

    def close(self) -> None:
        self._calls.close()
        dist.destroy_process_group()
