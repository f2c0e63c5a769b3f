"""A small model trained by hybrid parallelism, on one rank; for test_hybrid, and for the processes of test_comm."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from dlgs_bench.comm.hybrid_messages import Layout
from dlgs_bench.spec import Training
from dlgs_bench.training.hybrid import KINDS, HybridWorker, worker_of

STEPS, ROWS, TRAINING = 4, 3, Training(lr=0.2, momentum=0.9, weight_decay=1e-2)
WIDTHS = (32, 7, 5, 9)  # of the features and of each layer of the head


class Small(nn.Module):
    """Images (n, 1, 6, 6) -> scores (n, 9); three layers in the head, the second without a bias."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.Flatten())
        first, second, third = (nn.Linear(*pair) for pair in pairwise(WIDTHS))
        second.bias = None
        self.classifier = nn.Sequential(first, nn.ReLU(), second, nn.Tanh(), third)

    def forward(self, images):
        return self.classifier(self.body(images))


def small() -> nn.Module:
    """A model with the same weights on all ranks, although threads share torch's generator."""
    model, generator = Small(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a backbone worker."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 1, 6, 6, generator=generator), torch.randint(0, 9, (ROWS,), generator=generator)


def observed(worker: HybridWorker, step: int) -> dict:
    """One step: the loss (of head workers), the gradients and weights by the parameter's name, the input gradient (of
    backbone workers), and what was sent."""
    answers, communicate = {}, worker.communicate
    worker.communicate = (
        lambda kind, *rest, **more: answers.setdefault(kind, []).append(communicate(kind, *rest, **more))
        or (answers[kind][-1])
    )
    rank = worker.comm.rank
    worker.step(*batch(step, rank) if rank in worker.layout.backbone else ())
    del worker.communicate
    views = zip(worker.flat.names, worker.flat.views, strict=True)
    found = {name: (view.clone(), parameter.detach().clone()) for name, (parameter, view) in views}
    return {
        "parameters": found,
        "loss": getattr(worker, "loss", None),
        "input gradient": answers["input_gradients"][-1],
        "sent": [worker.sent[kind] for kind in KINDS],
    }


def trained(comm, heads: int) -> list[dict]:
    """The results of this rank in each step."""
    layout = Layout(comm.world_size, heads, ROWS)
    worker = worker_of(small(), F.cross_entropy, layout, comm, TRAINING, "ring")
    return [observed(worker, step) for step in range(STEPS)]
