"""The head of a model: the fully connected layers at its end, taken off the backbone and cut by columns."""

import torch
from torch import nn

ENTRYWISE = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)  # what they do to a column needs no other


def cut_off(model: nn.Module) -> list[nn.Sequential]:
    """Take the head off the model, which then returns the features; a stage for each layer of the head: the layer, and
    what follows it entry by entry.

    The head is the end of the model's last child, an ``nn.Linear`` or a sequence. ValueError if there is none.
    """
    if frozen := next((name for name, p in model.named_parameters() if not p.requires_grad), None):
        raise ValueError(f"{frozen} is frozen; a model whose head is cut off trains all parameters")
    name, last = next(reversed(dict(model.named_children()).items()), ("", model))
    modules = list(last) if isinstance(last, nn.Sequential) else [last]
    start = len(modules)
    while start and isinstance(modules[start - 1], (nn.Linear, *ENTRYWISE)):
        start -= 1
    while start < len(modules) and not isinstance(modules[start], nn.Linear):
        start += 1
    if not name or start == len(modules):
        what = f"{type(model).__name__} ends in {type(modules[-1]).__name__}"
        raise ValueError(f"{what}: a head to cut is fully connected layers, nn.Linear, at the end of the model")
    setattr(model, name, nn.Sequential(*modules[:start]))
    if not any(True for _ in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no parameters but those of its head, so no backbone to train")
    stages: list[list[nn.Module]] = []
    for module in modules[start:]:
        if isinstance(module, nn.Linear):
            stages.append([])
        stages[-1].append(module)
    return [nn.Sequential(*stage) for stage in stages]


def outputs(stage: nn.Sequential) -> int:
    """The columns of a stage's layer."""
    return stage[0].out_features


def slice_of(stage: nn.Sequential, columns: slice) -> nn.Sequential:
    """The stage with these columns of its layer alone."""
    layer, *after = stage
    part = nn.Linear(layer.in_features, columns.stop - columns.start, layer.bias is not None, device="meta")
    part.weight = nn.Parameter(layer.weight.detach()[columns].clone())
    if layer.bias is not None:
        part.bias = nn.Parameter(layer.bias.detach()[columns].clone())
    return nn.Sequential(part, *after)


def widths(model: nn.Module, inputs: torch.Tensor) -> list[int]:
    """The columns of each layer of the head, which is taken off; empty without a head that takes a row a sample."""
    try:
        stages = cut_off(model)
    except ValueError:
        return []
    rows = model(inputs)
    takes = (len(inputs), stages[0][0].in_features)
    return [outputs(stage) for stage in stages] if rows.shape == takes else []
