"""The head of a model: the fully connected layers at its end, removed from the backbone and cut by columns."""

from typing import cast

import torch
from torch import nn

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)  # so each column can be computed alone


def cut_off(model: nn.Module) -> list[nn.Sequential]:
    """Remove the head from the model, which then returns features, and return the head as stages.

    A stage is one ``nn.Linear`` and the elementwise layers after it. The head is the end of the model's last child,
    which is an ``nn.Linear`` or a sequence. ValueError in one line if the model has no head.
    """
    if frozen := next((name for name, p in model.named_parameters() if not p.requires_grad), None):
        raise ValueError(f"{frozen} is frozen; unfreeze it, since hybrid parallelism trains all parameters")
    name, last = next(reversed(dict(model.named_children()).items()), ("", model))
    modules = list(last) if isinstance(last, nn.Sequential) else [last]
    start = len(modules)
    while start and isinstance(modules[start - 1], (nn.Linear, *ELEMENTWISE)):
        start -= 1
    while start < len(modules) and not isinstance(modules[start], nn.Linear):
        start += 1
    if not name or start == len(modules):
        end = f"{type(model).__name__} ends in {type(modules[-1]).__name__}"
        raise ValueError(f"{end}: the model has no head; make nn.Linear, or a sequence that ends in it, its last child")
    setattr(model, name, nn.Sequential(*modules[:start]))
    if not list(model.parameters()):
        raise ValueError(f"{type(model).__name__} has parameters in its head only, so there is no backbone to train")
    stages: list[list[nn.Module]] = []
    for module in modules[start:]:
        if isinstance(module, nn.Linear):
            stages.append([])
        stages[-1].append(module)
    return [nn.Sequential(*stage) for stage in stages]


def outputs(stage: nn.Sequential) -> int:
    """The number of columns of a stage's layer."""
    return linear(stage).out_features


def linear(stage: nn.Sequential) -> nn.Linear:
    """The fully connected layer of a stage."""
    return cast(nn.Linear, stage[0])


def slice_of(stage: nn.Sequential, columns: slice) -> nn.Sequential:
    """A copy of the stage with only these columns of its layer."""
    layer, after = linear(stage), list(stage)[1:]
    part = nn.Linear(layer.in_features, columns.stop - columns.start, layer.bias is not None, device="meta")
    part.weight = nn.Parameter(layer.weight.detach()[columns].clone())
    if layer.bias is not None:
        part.bias = nn.Parameter(layer.bias.detach()[columns].clone())
    return nn.Sequential(part, *after)


def widths(model: nn.Module, inputs: torch.Tensor) -> list[int]:
    """The number of columns of each layer of the head, which is removed from the model.

    The list is empty if the model has no head, or if the features of a sample are not one row.
    """
    try:
        stages = cut_off(model)
    except ValueError:
        return []
    one_row_per_sample = (len(inputs), stages[0][0].in_features)
    return [outputs(stage) for stage in stages] if model(inputs).shape == one_row_per_sample else []
