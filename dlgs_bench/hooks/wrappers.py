"""Other exchanges of a model's gradients: a DistributedDataParallel around the model or within it."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle


def exchanged_by(model: DistributedDataParallel) -> dict[str, Parameter]:
    """The parameters whose gradients ``model`` exchanges, by their names in the module that it wraps."""
    named, ignored = model.module.named_parameters(), model.parameters_to_ignore
    return {name: p for name, p in named if p.requires_grad and name not in ignored}


def refuse_inner(
    model: nn.Module, parameters: Iterable[Tensor], *, among: Collection[int] | None = None, where: str = ""
) -> None:
    """ValueError in one line if a DistributedDataParallel in ``model`` exchanges gradients of ``parameters``.

    ``among``: only if it exchanges them between two of these ranks. ``where``: the beginning of the message.
    """
    own = set(map(id, parameters))
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel) and _exchanges(module, own, among):
            which = f" ({name})" if name else ""
            raise ValueError(
                f"{where}model: it contains a DistributedDataParallel{which}, which sums the same gradients; remove "
                "this wrapper"
            )


def has_outer(parameters: Iterable[Tensor], among: Collection[int] | None = None) -> bool:
    """Whether a DistributedDataParallel that exchanges gradients of ``parameters`` is in its forward pass.

    ``among``: only if it exchanges them between two of these ranks.
    """
    outer = DistributedDataParallel._active_ddp_module
    return outer is not None and _exchanges(outer, set(map(id, parameters)), among)


def refuse_outer(parameters: Iterable[Tensor], among: Collection[int] | None = None) -> None:
    """ValueError in one line if ``has_outer``."""
    if has_outer(parameters, among):
        raise ValueError("model: a DistributedDataParallel around it sums the same gradients; remove the outer wrapper")


def _exchanges(model: DistributedDataParallel, ids: set[int], among: Collection[int] | None) -> bool:
    if among is not None and len({*dist.get_process_group_ranks(model.process_group)} & {*among}) < 2:
        return False
    return any(id(p) in ids for p in exchanged_by(model).values())


_CHECKS: "WeakKeyDictionary[nn.Module, Callable[[], Any]]" = WeakKeyDictionary()


def before_forward(model: nn.Module, check: Callable[[], Any]) -> RemovableHandle:
    """Call ``check`` before every forward pass of ``model``, except passes that torch compiles and passes of copies."""
    if isinstance(model, torch.jit.ScriptModule):  # it cannot have hooks
        return RemovableHandle(OrderedDict())
    _CHECKS[model] = check
    return model.register_forward_pre_hook(_call_check)


def _call_check(model: nn.Module, inputs: Any) -> None:
    """A function of this module, not a closure, so that the model can be copied and pickled."""
    if not torch.compiler.is_compiling() and model in _CHECKS:
        _CHECKS[model]()
