"""Whole training scripts, drawn by test_hook_properties: what a rank does, and the same computation in one process."""

from contextlib import nullcontext

import torch
from hook_parts import LR, hooked
from hypothesis import reject
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WORKERS = 2
HEADS = {"both": ("left", "right"), "left": ("left",), "right": ("right",)}


class TwoHeads(nn.Module):
    """A trunk with a gain and two heads, of which a pass uses one or both."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(6)
        self.trunk, self.gain = nn.Linear(6, 5), nn.Parameter(torch.tensor(1.0))
        self.left, self.right = nn.Linear(5, 3), nn.Linear(5, 4)
        self.to(dtype)

    def forward(self, inputs: Tensor, heads: tuple[str, ...]) -> Tensor:
        seen = (self.gain * self.trunk(inputs)).tanh()
        return sum((getattr(self, head)(seen).float() - 0.3).square().mean() for head in heads)


def optimizers_of(net: TwoHeads, kind: str) -> list[torch.optim.Optimizer]:
    vectors = [p for p in net.parameters() if p.dim() < 2]
    matrices = [p for p in net.parameters() if p.dim() == 2]
    match kind:
        case "SGD":
            return [torch.optim.SGD(net.parameters(), lr=LR)]
        case "momentum":
            return [torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9, weight_decay=1e-2, nesterov=True)]
        case "AdamW":
            return [torch.optim.AdamW(net.parameters(), lr=LR / 10)]
        case "two":
            return [torch.optim.SGD(matrices, lr=LR, momentum=0.9), torch.optim.Adam(vectors, lr=LR / 10)]
    raise ValueError(kind)


def backward(model, script: dict, number: int, part: int, rank: int) -> None:
    """Pass ``part`` of step ``number`` on a rank; where the step is bad there, its gradients are not finite."""
    step = script["steps"][number]
    generator = torch.Generator().manual_seed(1000 * number + 10 * part + rank)
    inputs = torch.randn(4, 6, generator=generator).to(script["dtype"])
    loss = model(inputs, HEADS[step["uses"][rank]])
    if step["bad"] == (part, rank):
        loss = loss * float("inf")
    with torch.autocast("cpu", torch.bfloat16, enabled=script["autocast"]):
        loss.backward()


def update(net: TwoHeads, optimizers: list, step: dict) -> None:
    """What the script does after backward: it skips steps that are not finite, and some others; it may clip."""
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    if step["skip"] or not all(grad.isfinite().all() for grad in grads):
        return
    if step["clip"]:
        nn.utils.clip_grad_norm_(net.parameters(), step["clip"])
    for optimizer in optimizers:
        optimizer.step()


def weights(net: TwoHeads) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def play(comm, engine: str, script: dict, method: str | None, options: dict) -> list[Tensor]:
    """The weights of a rank at the script's end; without a method, of plain DistributedDataParallel."""
    net = TwoHeads(script["dtype"])
    optimizers = optimizers_of(net, script["optimizer"])
    if method is None:
        model = DistributedDataParallel(net, find_unused_parameters=True, gradient_as_bucket_view=script["view"])
    else:
        model, _hook = hooked(engine, net, optimizers, method, unused=True, view=script["view"], **options)
    for number, step in enumerate(script["steps"]):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step["none"])
        for part in range(step["passes"]):
            local = engine == "torch_dist" and step["local"] and part < step["passes"] - 1
            with model.no_sync() if local else nullcontext():
                backward(model, script, number, part, comm.rank)
        update(net, optimizers, step)
    return weights(net)


def alone(engine: str, script: dict, ratio: float | None) -> list[Tensor]:
    """The same script in one process: gradients are averaged, or exchanged by Top-K with error feedback.

    DDP exchanges what a parameter's gradient holds after the pass, Horovod's hook what the pass has added. What Top-K
    sends of a head that no rank uses waits until a pass uses the head.
    """
    net = TwoHeads(script["dtype"])
    optimizers, layers = optimizers_of(net, script["optimizer"]), list(net.parameters())
    size = sum(p.numel() for p in layers)
    residuals = [torch.zeros(size) for _ in range(WORKERS)]
    waiting = [torch.zeros(p.shape) for p in layers]
    part_of = [name.split(".")[0] for name, _ in net.named_parameters()]  # such as "trunk" or "left"
    ddp = engine == "torch_dist"

    def exchange(grads: list[list[Tensor | None]]) -> list[Tensor]:
        """The aggregate of every layer; a step that is not finite leaves residuals as they are."""
        total, kept = torch.zeros(size), []
        for mine, residual in zip(grads, residuals, strict=True):
            parts = [torch.zeros_like(p) if g is None else g for p, g in zip(layers, mine, strict=True)]
            corrected = residual + torch.cat([part.float().flatten() for part in parts]) / WORKERS
            k = size if ratio is None else max(1, int(ratio * size))
            largest = corrected.abs().sort(descending=True)
            if k < size and 0 < largest.values[k - 1] == largest.values[k]:
                reject()  # any of several equal entries may be sent: rounding to 16 bits makes some
            chosen = largest.indices[:k]
            total[chosen] += corrected[chosen]
            kept.append(corrected.index_fill(0, chosen, 0))
        if not total.isfinite().all():
            total.fill_(torch.nan)
        elif ratio is not None:
            residuals[:] = kept
        split = total.split([p.numel() for p in layers])
        return [part.view_as(p).to(p.dtype) for part, p in zip(split, layers, strict=True)]

    for number, step in enumerate(script["steps"]):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step["none"])
        held = [[p.grad for p in layers] for _ in range(WORKERS)]
        for part in range(step["passes"]):
            grads: list[list[Tensor | None]] = []
            for rank in range(WORKERS):
                for p, grad in zip(layers, held[rank], strict=True):
                    p.grad = grad.clone() if ddp and grad is not None else None
                backward(net, script, number, part, rank)
                grads.append([p.grad for p in layers])
            if ddp and step["local"] and part < step["passes"] - 1:
                held = grads
                continue
            after: list[Tensor | None] = []
            for layer, aggregate in enumerate(exchange(grads)):
                unused = set(HEADS["both"]) - {head for use in step["uses"] for head in HEADS[use]}
                before = held[0][layer]
                if part_of[layer] in unused:
                    waiting[layer] += aggregate.float().nan_to_num()
                    if ddp:  # DDP leaves this gradient alone, even in a step that is not finite
                        after.append(before)
                        continue
                    aggregate = aggregate * 0
                total = aggregate if ddp or before is None else before + aggregate
                if part_of[layer] not in unused and total.isfinite().all():
                    total = total.add_(waiting[layer])
                    waiting[layer].zero_()
                after.append(total)
            held = [after] * WORKERS
        for p, grad in zip(layers, held[0], strict=True):
            p.grad = None if grad is None else grad.clone()
        update(net, optimizers, step)
    return weights(net)
