"""Builds a model as runs train it, and checks what training needs of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dlgs_bench import data


def build(module: ModuleType) -> nn.Module:
    """The model of a file in ``models/``, on the default device; lazy layers take their sizes from a sample."""
    net = module.build()
    if not isinstance(net, nn.Module):
        raise ValueError(f"build: returns a {type(net).__name__}, not an nn.Module")
    if any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        with evaluating(net), torch.no_grad():
            net(data.load(module.DATA).example())
    return net


def build_shapes(module: ModuleType) -> nn.Module:
    """The model on meta tensors, which take no memory, or on the CPU if it cannot be built without values."""
    try:
        with torch.device("meta"):
            return build(module)
    except Exception:  # such as .item(), a branch on a value, a buffer made by numpy
        return build(module)


def to_device(net: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device, its tensors of four dimensions in channels_last."""
    net.to(device)
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every layer has its own mode again, such as a BatchNorm that stays frozen."""
    modes = [(layer, layer.training) for layer in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def hidden_matrices(net: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters with two dimensions, by name, without embeddings and the last fully connected layer."""
    outer = [layer.weight for layer in net.modules() if isinstance(layer, nn.Embedding)]
    outer += [layer.weight for layer in net.modules() if isinstance(layer, nn.Linear)][-1:]
    return {name: p for name, p in trained(net).items() if p.dim() == 2 and all(p is not one for one in outer)}


def check_parameters(net: nn.Module) -> None:
    """Raise ValueError, in one line, unless the parameters can be trained in one flat float32 tensor."""
    parameters = trained(net)
    if not parameters:
        frozen = any(True for _ in net.parameters())
        why = "all parameters are frozen; leave requires_grad on for some" if frozen else "the model has no parameters"
        raise ValueError(f"build: {why}, so there is nothing to train")
    for name, p in parameters.items():
        if p.dtype != torch.float32:
            kind = str(p.dtype).removeprefix("torch.")
            raise ValueError(
                f"build: {name} is {kind}, not float32; give float32, and precision: bfloat16 in the recipe"
            )
        if not p.numel():
            raise ValueError(f"build: {name} of shape {tuple(p.shape)} is empty; leave it out, or freeze it")
        if not _dense(p):
            raise ValueError(f"build: {name} has gaps in its memory or repeats entries; give a contiguous tensor")
    _check_overlaps(net, parameters)


def _dense(p: Tensor) -> bool:
    """Whether the entries fill their memory without gaps, in whatever order of the dimensions."""
    expected = 1
    for stride, length in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def _check_overlaps(net: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Raise ValueError if a trained parameter shares memory with another: flattening would separate them."""
    spans = sorted(
        (p.untyped_storage()._cdata, p.storage_offset(), p.storage_offset() + p.numel(), name)
        for name, p in net.named_parameters()
    )
    for (storage, _, end, name), (other_storage, start, _, other) in pairwise(spans):
        if storage == other_storage and start < end and {name, other} & parameters.keys():
            raise ValueError(f"build: {name} and {other} share memory; tie them as one nn.Parameter")
