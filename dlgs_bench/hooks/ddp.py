"""A method as the communication hook of DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020)."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.hooks.hook import Hook, refuse_sparse


class DDPHook(Hook):
    """Registers ``method``, a file of ``methods/``, with its parameters ``options``, as the hook of ``model``:

        hook = DDPHook(model, optimizer, "topk", ratio=0.01)

    The method's buckets are its own (``Hook``), and end where DDP's will probably end; where it merges layers by size,
    they are DDP's, cut further to ``bucket_cap_mb`` MiB. Its state outlasts that DDP cuts its buckets anew after the
    first iteration. An ``elementwise`` method takes the entries of a bucket as DDP lays them: of three or more workers,
    an engine may then add up some in another order. In ``no_sync`` nothing is exchanged; the next pass exchanges what
    has accumulated.
    All processes of the model's group construct it. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: DistributedDataParallel, optimizer: Optimizer, method: str,
        *, bucket_cap_mb: float = math.inf, **options: Any,
    ):  # fmt: skip
        if not isinstance(model, DistributedDataParallel):
            kind = type(model).__qualname__
            raise ValueError(f"model: {kind} is not a DistributedDataParallel; wrap the model first")
        refuse_sparse(model.module)
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
        that lies within DDP's is exchanged where it lies; of any other, each layer is copied there and back.
        """
        if bucket.index() == 0:
            self._begin()
            self._promised.clear()
        buffer, layers = bucket.buffer(), [self._layers[p] for p in bucket.parameters()]
        starts = list(accumulate((self._flat.sizes[layer] for layer in layers), initial=0))
        place = {layer: n for n, layer in enumerate(layers)}
        copies: list[tuple[Tensor, Tensor]] = []
        for index in sorted({self._exchange.bucket_of[layer] for layer in layers}):
            copies += self._take(index, buffer, layers, starts, place)
        for layer in layers:
            self._exchange.ready(layer)
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._promised.append((future, buffer, copies))
        if bucket.is_last():
            self._exchange.finish()
            for future, buffer, copies in self._promised:
                for there, own in copies:
                    there.copy_(own)
                future.set_result(buffer)
        return self._promised[-1][0]

    def _take(
        self, index: int, buffer: Tensor, layers: list[int], starts: list[int], place: dict[int, int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Take what DDP's bucket holds of one of ours; (there, own) for each layer that was copied.

        ``layers``: those in ``buffer``, in their order; ``starts``: where each begins; ``place``: which it is there.
        DDP lays layers as their gradients arrive: a norm's bias, say, after its weight, where we have it before.
        """
        group = self._exchange.groups[index]
        here = sorted(place[layer] for layer in range(*group) if layer in place)
        found = layers[here[0] : here[-1] + 1]
        if (sorted(found) if self.method.elementwise else found) == list(range(*group)):
            there = buffer[starts[here[0]] : starts[here[-1] + 1]]
            self._exchange.move(index, there)
            self._put(there, there)
            return []
        self._exchange.move(index, self._flat.slice(*group))
        copies = [(buffer[starts[n] : starts[n + 1]], self._flat.slice(layers[n], layers[n] + 1)) for n in here]
        for there, own in copies:
            self._put(there, own)
        return copies


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
    """Over a group of its own, so that what the script or SyncBatchNorm asks of the model's cannot come in between.

    torch names a group that only its members create by how many groups each of them is in, and hangs if these numbers
    differ. So all processes create a group of all.
    """
    ranks = dist.get_process_group_ranks(model.process_group)
    backend = dist.get_backend_config(model.process_group)
    some = len(ranks) < dist.get_world_size()
    group = dist.new_group(ranks, backend=backend, use_local_synchronization=some)
    return TorchDist(next(model.module.parameters()).device, group)
