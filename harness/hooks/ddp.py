"""A method as the communication hook of DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from harness.comm.torch_dist import TorchDist
from harness.hooks.hook import Hook


class DDPHook(Hook):
    """Registers ``method``, a file of ``methods/``, with its parameters ``options``, as the hook of ``model``:

        hook = DDPHook(model, optimizer, "topk", ratio=0.01)

    The method's buckets are its own (``Hook``), within what DDP's will probably be. Its state outlasts that DDP cuts
    its buckets anew after the first iteration. In ``no_sync`` nothing is exchanged; the next pass exchanges what has
    accumulated.
    All processes of the model's group construct it. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: DistributedDataParallel, optimizer: Optimizer, method: str,
        *, bucket_cap_mb: float = 8.0, **options: Any,
    ):  # fmt: skip
        named, ignored = model.module.named_parameters(), model.parameters_to_ignore
        parameters = [p for name, p in named if p.requires_grad and name not in ignored]
        ends = _ends([p.numel() * p.element_size() for p in parameters[::-1]], model)
        super().__init__(parameters, optimizer, _communicator(model), method, options, bucket_cap_mb, ends)
        self._layers = {p: layer for layer, (p, _) in enumerate(self._flat.views)}
        self._promised: list[tuple[torch.futures.Future[Tensor], Tensor, list[tuple[Tensor, Tensor]]]] = []
        model.register_comm_hook(self, DDPHook._hook)

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP calls it while backward runs, bucket by bucket, in one order on all workers.

        When it does so for the last bucket, backward has ended: the exchanges are then waited for. A bucket of ours
        that lies within DDP's is exchanged where it lies; of one across several, each part is copied there and back.
        """
        if bucket.index() == 0:
            self._begin()
            self._promised.clear()
        buffer, runs = bucket.buffer(), _runs([self._layers[p] for p in bucket.parameters()])
        gradients = buffer.split([len(self._flat.slice(start, stop)) for start, stop in runs])
        copies: list[tuple[Tensor, Tensor]] = []
        for (start, stop), gradient in zip(runs, gradients, strict=True):
            copies += self._take(start, stop, gradient)
            for layer in range(start, stop):
                self._exchange.ready(layer)
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._promised.append((future, buffer, copies))
        if bucket.is_last():
            self._exchange.finish()
            for future, buffer, copies in self._promised:
                for there, here in copies:
                    there.copy_(here)
                future.set_result(buffer)
        return self._promised[-1][0]

    def _take(self, start: int, stop: int, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Take the gradient of layers start .. stop - 1; (there, here) for each part that was copied."""
        origin, copies = self._flat.starts[start], []
        for index in range(self._exchange.bucket_of[start], self._exchange.bucket_of[stop - 1] + 1):
            group = self._exchange.groups[index]
            part = max(start, group[0]), min(stop, group[1])
            first, last = (self._flat.starts[layer] - origin for layer in part)
            there, here = gradient[first:last], self._flat.slice(*part)
            if part == group:
                self._exchange.move(index, there)
                self._put(there, there)
            else:
                self._exchange.move(index, self._flat.slice(*group))
                self._put(there, here)
                copies.append((there, here))
        return copies


def _runs(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Layers as (start, stop) ranges that follow each other in our memory: one, once DDP cuts buckets by arrival."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer:
            runs[-1] = (runs[-1][0], layer + 1)
        else:
            runs.append((layer, layer + 1))
    return runs


def _ends(lengths: Sequence[int], model: DistributedDataParallel) -> list[int]:
    """Before which layers DDP's buckets will end, if gradients arrive in our order; ``lengths``: of layers, in bytes.

    DDP closes a bucket once it is full, and the first one at 1 MiB unless it was told a size. If it decides otherwise,
    some of our buckets lie across its own, and are copied.
    """
    most = 2**20 if model.bucket_bytes_cap_default else model.bucket_bytes_cap
    ends, held = [], 0
    for layer, length in enumerate(lengths[:-1], start=1):
        held += length
        if held >= most:
            ends.append(layer)
            held, most = 0, model.bucket_bytes_cap
    return ends


def _communicator(model: DistributedDataParallel) -> TorchDist:
    """Over a group of its own, so that what the script or SyncBatchNorm asks of the model's cannot come in between."""
    ranks = dist.get_process_group_ranks(model.process_group)
    backend = dist.get_backend_config(model.process_group)
    group = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return TorchDist(next(model.module.parameters()).device, group)
