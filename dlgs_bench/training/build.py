"""Builds a model as runs train it, and checks that it can be trained."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dlgs_bench import data

T = TypeVar("T")
_SEEDING = threading.Lock()  # local workers are threads that share the global generators


def build(module: ModuleType) -> nn.Module:
    """The model of a file in ``models/``, on the default device. Lazy layers get their sizes from a sample."""
    net = module.build()
    if not isinstance(net, nn.Module):
        raise ValueError(f"build: returns a {type(net).__name__}, not an nn.Module; return a module")
    if any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        with evaluating(net), torch.no_grad():
            net(data.load(module.DATA).example())
    return net


def build_seeded(module: ModuleType, seed: int) -> nn.Module:
    """The model of a file in ``models/`` with the initial weights of this seed. It calls ``seed_all``."""
    with _SEEDING:
        seed_all(seed)
        return build(module)


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python, since the file of a model may use any of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def without_values(make: Callable[[], T]) -> T:
    """What ``make`` returns on meta tensors, which take no memory, or on the CPU if ``make`` needs their values."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # such as .item(), a branch on a value, a buffer made by numpy
        return make()


def to_device(net: nn.Module, device: torch.device) -> nn.Module:
    """Move the model to a device. Tensors of four dimensions become channels_last."""
    net.to(device)
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore the mode of every layer afterwards.

    Example: a BatchNorm layer that the model keeps in evaluation mode stays in it.
    """
    modes = [(layer, layer.training) for layer in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def hidden_matrices(net: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters with two dimensions, by name, without embeddings and the last fully connected layer."""
    outer = [layer.weight for layer in net.modules() if isinstance(layer, nn.Embedding)]
    outer += [layer.weight for layer in net.modules() if isinstance(layer, nn.Linear)][-1:]
    return {name: p for name, p in trainable(net).items() if p.dim() == 2 and all(p is not one for one in outer)}


def check_parameters(net: nn.Module) -> None:
    """Raise ValueError in one line unless the parameters can be trained in one flat float32 tensor."""
    parameters = trainable(net)
    if not parameters:
        frozen = list(net.parameters())
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
    """Whether the entries fill their memory without gaps, in any order of the dimensions."""
    expected = 1
    for stride, length in sorted((s, n) for s, n in zip(p.stride(), p.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def _check_overlaps(net: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Raise ValueError if a trained parameter shares memory with another parameter: flattening would separate them."""
    spans = sorted(
        (p.untyped_storage()._cdata, p.storage_offset(), p.storage_offset() + p.numel(), name)
        for name, p in net.named_parameters()
    )
    for (storage, _, end, name), (other_storage, start, _, other) in pairwise(spans):
        if storage == other_storage and start < end and {name, other} & parameters.keys():
            raise ValueError(f"build: {name} and {other} share memory; tie them as one nn.Parameter")
