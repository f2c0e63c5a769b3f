"""A method between the replicas of a model that FSDP2 shards: hybrid sharding with compressed exchanges."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from dlgs_bench.comm import broadcast_all
from dlgs_bench.exchange import Method
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.hooks.groups import own_communicator
from dlgs_bench.hooks.hook import ParameterHook, open_hooks, plain_context, refuse_second_hook, refuse_sparse
from dlgs_bench.hooks.wrappers import refuse_inner


class FSDPHook(ParameterHook):
    """Exchanges the sharded gradients of ``model`` between its replicas by ``method``:

        mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("rep", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        hook = FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.01)

    FSDP2 averages gradients over the shards, and this hook over the replicas. Every rank compresses its own shards, and
    its buckets lie within them. Residuals are float32 for any ``reduce_dtype`` of FSDP2. Construction gives every
    replica the weights and buffers of replica 0. After ``set_requires_gradient_sync(False)`` nothing is exchanged, and
    the next pass exchanges the sum. A parameter that a pass does not use has a gradient of zeros.

    ``method``: the name of a file of ``methods/``, or a class. ``optimizer``: the model's optimizer, or a list.
    ``scaler``: the GradScaler that scales the loss, if there is one. All processes of the mesh construct the hook.
    ValueError in one line for unsupported arguments.
    """

    def __init__(
        self, model: nn.Module, replicas: DeviceMesh, optimizer: Optimizer | Sequence[Optimizer],
        method: str | type[Method], *, bucket_cap_mb: float = 8.0, scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(model, nn.Module):
            reshard(model)
        _refuse_other_models(model)
        _refuse_other_meshes(model, replicas)
        refuse_sparse(model)
        trained: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        local = {name: p.to_local() for name, p in trained.items()}
        refuse_inner(model, trained.values())
        _refuse_empty_ranks(model, local)
        refuse_second_hook(trained)
        comm = own_communicator(replicas.get_group(), next(model.parameters()).device)
        super().__init__(model, local, optimizer, comm, method, options, bucket_cap_mb, scaler)
        self.replicas = replicas
        self._exchanged = {id(p) for p in trained.values()}
        self._shards = [p for name, p in trained.items() if local[name].numel()][::-1]  # by layer
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._reduces = False  # whether FSDP2 reduces the gradients of this pass
        self._watcher = torch.compiler.disable(self._before_backward)
        with torch.no_grad():
            tensors = [*model.parameters(), *model.buffers()]
            broadcast_all(comm, [t.to_local() if isinstance(t, DTensor) else t for t in tensors])
        for module in self._modules:
            self._handles.append(module.register_forward_hook(self._watch))
        self._listen(self._shards)

    @property
    def shards(self) -> list[nn.Parameter]:
        """The sharded parameters of which this rank has entries, in the order of model.parameters()."""
        return self._shards[::-1]

    def _trained(self) -> Sequence[Any]:
        return self._shards

    @property
    def _identity(self) -> dict[str, Any]:
        return super()._identity | {"shard": self._shards[0].device_mesh.get_local_rank()}

    def _at_the_end(self, end: Callable[[], None]) -> None:
        """Queue ``end`` a second time when the pass ends: FSDP2 delivers its last gradients in a callback of its own.

        FSDP2 queues that callback after ours if it casts the outputs.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(partial(queue, end))

    def _watch(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Register a hook that runs when backward reaches an output of an FSDP2 module, before it adds gradients."""
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(self._watcher)

    def _before_backward(self, gradient: Tensor | None = None) -> None:
        if self.closed or not self._starts_pass():
            return
        groups = [group for module in self._modules if (group := module._get_fsdp_state()._fsdp_param_group)]
        if not all(group.all_reduce_grads or not group.reduce_grads for group in groups):
            raise ValueError(
                "model: set_requires_all_reduce(False) has no effect on the hook; call "
                "set_requires_gradient_sync(False) to accumulate"
            )
        self._reduces = any(group.reduce_grads for group in groups)
        if self._reduces:
            for layer, parameter in enumerate(self._shards):
                self._drop_idle(parameter)
                if parameter.grad is not None:
                    self._earlier[layer], parameter.grad = parameter.grad, None

    def _arrive(self, layer: int, parameter: Any) -> None:
        """Exchange a gradient that FSDP2 has averaged over the shards. FSDP2 calls it while backward runs."""
        self._starts_pass()  # if the hook was made after the forward pass
        self._check_arrival(layer)
        with plain_context(self._comm.device):
            if not self._arrived:
                self._begin()
            self._arrived.add(layer)
            self._bring(layer, parameter.grad.to_local())

    def _bring(self, layer: int, gradient: Tensor | None) -> None:
        """Write a gradient into its bucket, zeros for None. The bucket is exchanged once it is full."""
        view, parameter = self._flat.views[layer][1], self._shards[layer]
        if gradient is None:
            view.zero_()
        else:
            self._put(gradient.detach(), view)
        if parameter.requires_grad and (decay := self._decays.get(parameter)):
            view.add_(parameter.to_local().detach(), alpha=decay / self._comm.world_size)
        self._ready(layer, used=gradient is not None)

    def _end_without_gradients(self) -> None:
        """End the pass. If the other shards may have gradients, this rank takes part in their agreement."""
        super()._end_without_gradients()
        if self._reduces and isinstance(self._exchange, FiniteExchange):
            self._exchange.abstain(self._shards[0].device_mesh.get_group())

    def _end(self) -> None:
        """Wait for the exchanges after backward, and deliver the aggregate."""
        for layer in range(len(self._shards)):
            if layer not in self._arrived:
                self._bring(layer, None)
        self._finish()
        aggregates = [view.to(parameter.dtype, copy=True) for parameter, view in self._flat.views]
        self._conclude([self._flat.gradients, *aggregates], self._shards[0].device_mesh.get_group())
        unused = self._unused()
        for layer, (parameter, aggregate) in enumerate(zip(self._shards, aggregates, strict=True)):
            earlier = self._earlier.get(layer)
            if not parameter.requires_grad:  # frozen after the hook was made
                parameter.grad = earlier
                self._hold(parameter, aggregate)
                continue
            self._note_idle(parameter, layer in unused, earlier)
            if layer in unused:
                self._hold_unused(parameter, aggregate)
            if earlier is not None:
                earlier.to_local().add_(aggregate)
                parameter.grad = earlier
            elif parameter.grad is not None:
                parameter.grad.to_local().copy_(aggregate)
            else:
                parameter.grad = DTensor.from_local(
                    aggregate, parameter.device_mesh, parameter.placements, run_check=False,
                    shape=parameter.shape, stride=parameter.stride(),
                )  # fmt: skip
            if layer not in unused:
                self._deliver_held(parameter, parameter.grad.to_local())


def reshard(model: nn.Module) -> None:
    """Give the model back its sharded parameters, which FSDP2 replaces until backward, as in an evaluation."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def hook_of_shards(model: nn.Module) -> FSDPHook | None:
    """The open hook that exchanges between the replicas of ``model``, if there is one."""
    hooks = [hook for hook in open_hooks() if isinstance(hook, FSDPHook)]
    return next((hook for hook in hooks if any(module is model for module in hook._modules)), None)


def _refuse_other_models(model: nn.Module) -> None:
    """ValueError in one line unless FSDP2 shards every parameter over a mesh of one dimension."""
    if not isinstance(model, FSDPModule):
        kind = type(model).__qualname__
        raise ValueError(f'model: {kind} is not an FSDP2 module; call fully_shard(model, mesh=mesh["shard"]) first')
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise ValueError(f"{name}: the parameter is not sharded; leave it out of ignored_params")
        if parameter.device_mesh.ndim != 1 and not parameter.placements[0].is_replicate():
            raise ValueError(
                f"{name}: the parameter is also sharded by tensor parallelism, which FSDPHook does not support; leave "
                "out parallelize_module"
            )
        if parameter.device_mesh.ndim != 1:
            raise ValueError(
                f"{name}: fully_shard was given a mesh of {parameter.device_mesh.ndim} dimensions, so torch itself "
                'sums dense gradients over the replicas; give it the dimension of the shards only, mesh=mesh["shard"]'
            )
        if parameter.device.type == "meta":
            raise ValueError(f"{name}: the parameter is on the meta device; call to_empty and initialise it first")
        if parameter.device.type != parameter.device_mesh.device_type:
            raise ValueError(f"{name}: the parameter is offloaded to the CPU; leave out CPUOffloadPolicy")


def _refuse_empty_ranks(model: nn.Module, local: dict[str, Tensor]) -> None:
    """ValueError in one line, on all ranks of a replica, if one of them has no entry that requires a gradient."""
    shards: Any = next(model.parameters())
    own = torch.tensor([sum(shard.numel() for shard in local.values())], device=shards.device)
    counts = [torch.empty_like(own) for _ in range(shards.device_mesh.size())]
    dist.all_gather(counts, own, shards.device_mesh.get_group())
    empty = [shard for shard, count in enumerate(counts) if not count]
    if local and empty:
        raise ValueError(
            f"model: shard {empty[0]} of {len(counts)} has no entry of the parameters that require a gradient; shard "
            "over fewer processes, or freeze fewer layers"
        )


def _refuse_other_meshes(model: nn.Module, replicas: DeviceMesh) -> None:
    """ValueError in one line unless ``replicas`` has one dimension, and shares only this rank with the shards' mesh."""
    if not isinstance(replicas, DeviceMesh) or replicas.ndim != 1:
        given = f"a mesh of {replicas.ndim} dimensions" if isinstance(replicas, DeviceMesh) else type(replicas).__name__
        raise ValueError(f'replicas: {given} is not a DeviceMesh of one dimension; give mesh["rep"]')
    shards: Any = next(model.parameters())
    both = set(replicas.mesh.flatten().tolist()) & set(shards.device_mesh.mesh.flatten().tolist())
    if both != {dist.get_rank()}:
        raise ValueError(
            f"replicas: ranks {sorted(both)} hold shards of one replica; give the dimension "
            "that fully_shard did not get"
        )
