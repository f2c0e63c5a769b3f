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

    Whatever DDP's buckets are, the method's are its own (``Hook``): its state outlasts that DDP cuts its buckets anew
    after the first iteration. In ``no_sync`` nothing is exchanged; the next pass exchanges what has accumulated.
    All processes of the model's group construct it. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: DistributedDataParallel, optimizer: Optimizer, method: str,
        *, bucket_cap_mb: float = 8.0, **options: Any,
    ):  # fmt: skip
        named, ignored = model.module.named_parameters(), model.parameters_to_ignore
        parameters = [p for name, p in named if p.requires_grad and name not in ignored]
        super().__init__(parameters, optimizer, _communicator(model), method, options, bucket_cap_mb)
        self._layers = {p: layer for layer, (p, _) in enumerate(self._flat.views)}
        self._promised: list[tuple[torch.futures.Future[Tensor], list[Tensor], Tensor]] = []
        model.register_comm_hook(self, DDPHook._hook)

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP calls it while backward runs, bucket by bucket, in one order on all workers.

        When it does so for the last bucket, backward has ended: the exchanges are then waited for.
        """
        if bucket.index() == 0:
            self._begin()
            self._promised.clear()
        buffer, runs = bucket.buffer(), _runs([self._layers[p] for p in bucket.parameters()])
        places = [self._flat.slice(start, stop) for start, stop in runs]
        gradients = buffer.split([len(place) for place in places])
        for (start, stop), gradient, place in zip(runs, gradients, places, strict=True):
            self._put(gradient, place)
            for layer in range(start, stop):
                self._exchange.ready(layer)
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._promised.append((future, places, buffer))
        if bucket.is_last():
            self._exchange.finish()
            for future, places, buffer in self._promised:
                future.set_result(places[0] if len(places) == 1 else torch.cat(places, out=buffer))
        return self._promised[-1][0]


def _runs(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Layers as (start, stop) ranges that follow each other in our memory: one, once DDP cuts buckets by arrival."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer:
            runs[-1] = (runs[-1][0], layer + 1)
        else:
            runs.append((layer, layer + 1))
    return runs


def _communicator(model: DistributedDataParallel) -> TorchDist:
    """Over a group of its own, so that what the script or SyncBatchNorm asks of the model's cannot come in between."""
    ranks = dist.get_process_group_ranks(model.process_group)
    backend = dist.get_backend_config(model.process_group)
    group = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return TorchDist(next(model.module.parameters()).device, group)
