"""Hybrid parallelism: backbone workers train data-parallel, head workers hold slices of the fully connected layers.

Source: a patent of Shanghai Ocean University (halving-doubling all-reduce and hybrid parallelism). We assume that each
backbone worker gets the sum of its rows of the input gradient by a reduce-scatter. Computation and communication do not
overlap.
"""

import itertools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dlgs_bench import plugins
from dlgs_bench.comm import Communicator, collectives
from dlgs_bench.comm.collectives import PeerExchanges
from dlgs_bench.comm.hybrid_messages import Layout, gather_columns, gather_rows, scatter_columns, scatter_rows
from dlgs_bench.data import DataSet, Shard, whole_steps
from dlgs_bench.spec import RunSpec, Training
from dlgs_bench.training.build import build_seeded, seed_all, to_device
from dlgs_bench.training.flat_model import FlatModel
from dlgs_bench.training.head import cut_off, linear, outputs, slice_of
from dlgs_bench.training.optimizer import TIMED_LR, optimizer_of

KINDS = ("features", "columns", "input_gradients", "backbone_gradients")  # kinds of messages
NEVER = float("-inf")


class HybridWorker:
    """A worker with a part of the model and its optimizer.

    ``marks``: (begin, end) of every communication of the last step, by ``time.perf_counter``. All ranks have the same
    number of marks; they are ``NEVER`` for a communication without this rank. ``sent``: kind -> (messages, bytes) of
    the last step. ``head``: the number of columns of each layer of the head.
    """

    collective: ModuleType
    head: list[int]
    step: Callable[..., None]

    def __init__(self, part: nn.Module, layout: Layout, comm: Communicator, training: Training) -> None:
        self.layout, self.comm = layout, comm
        self.flat = FlatModel(part)
        self.optimizer = optimizer_of(training, self.flat.parameters)
        self.begin()

    def begin(self) -> None:
        """Reset the marks and counts of a step."""
        self.marks: list[tuple[float, float]] = []
        self.sent = dict.fromkeys(KINDS, (0, 0))

    def communicate(self, kind: str, rounds: PeerExchanges, takes_part: bool = True) -> Any:
        """Make the rounds of one communication, and return their result. ``takes_part``: whether this rank has data."""
        before, began = (self.comm.sent_messages, self.comm.sent_bytes), time.perf_counter()
        result = self.comm.start_rounds(rounds).wait()
        self.marks.append((began, time.perf_counter()) if takes_part else (NEVER, NEVER))
        messages, sent_bytes = self.sent[kind]
        messages += self.comm.sent_messages - before[0]
        self.sent[kind] = messages, sent_bytes + self.comm.sent_bytes - before[1]
        return result

    def sum_backbone(self, gradients: Tensor | None) -> None:
        """Sum the backbone workers' gradients in place; head workers pass None."""
        backbone = len(self.layout.backbone)
        rounds = collectives.sum_over_first(self.collective, self.comm.rank, backbone, gradients)
        self.communicate("backbone_gradients", rounds, takes_part=gradients is not None)

    def collect(self) -> None:
        """Copy the gradients into the flat tensor."""
        for parameter, view in self.flat.views:
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
            parameter.grad = None


class Backbone(HybridWorker):
    """A worker that holds the backbone. ``head``: the number of columns of each layer of the head."""

    def __init__(
        self, model: nn.Module, head: list[int], layout: Layout, comm: Communicator, training: Training, collective: str
    ) -> None:
        super().__init__(model, layout, comm, training)
        self.head, self.collective = head, collectives.load(collective, len(layout.backbone))

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Make one iteration. The class of each sample is sent as one more column of its features."""
        if len(inputs) != self.layout.rows:
            raise ValueError(f"batch: {len(inputs)} samples, but all workers expect {self.layout.rows}")
        self.begin()
        position = self.layout, self.comm.rank
        features = self.flat.model(inputs)
        rows = torch.cat([features.detach(), targets.view(-1, 1).to(features.dtype)], 1)
        self.communicate("features", gather_rows(*position, rows, rows.shape[1]))
        for columns in self.head:
            self.communicate("columns", gather_columns(*position, None, columns), takes_part=False)
        for _ in self.head[1:]:
            self.communicate("input_gradients", scatter_columns(*position, None), takes_part=False)
        gradient = self.communicate("input_gradients", scatter_rows(*position, None, features.shape[1]))
        features.backward(gradient)
        self.collect()
        self.sum_backbone(self.flat.gradients)
        self.optimizer.step(self.flat.gradients)


class Head(HybridWorker):
    """A worker that holds a slice of each layer of the head.

    ``stages``: the slices. ``head``: the number of columns of each whole layer. ``loss``: of the last step, over all
    samples.
    """

    def __init__(
        self,
        stages: list[nn.Sequential],
        layout: Layout,
        comm: Communicator,
        training: Training,
        collective: str,
        loss: Callable,
    ) -> None:
        self.head = [outputs(stage) for stage in stages]
        slices = [slice_of(s, layout.columns(comm.rank, n)) for s, n in zip(stages, self.head, strict=True)]
        super().__init__(nn.ModuleList(slices), layout, comm, training)
        self.stages, self._loss = slices, loss
        self.collective = plugins.load("collectives", collective)

    @property
    def accuracy(self) -> Tensor:
        """The fraction of the last step's samples that were classified correctly. The step's time excludes it."""
        return (self._scores.argmax(1) == self._targets).float().mean()

    def step(self) -> None:
        """Make one iteration."""
        self.begin()
        position = self.layout, self.comm.rank
        width = linear(self.stages[0]).in_features
        rows = self.communicate("features", gather_rows(*position, None, width + 1))
        x, targets, passes = rows[:, :-1], rows[:, -1].long(), []
        for stage, columns in zip(self.stages, self.head, strict=True):
            x = x.detach().requires_grad_()
            y = stage(x)
            passes.append((x, y))
            x = self.communicate("columns", gather_columns(*position, y.detach(), columns))
        scores = x.requires_grad_()
        loss = self._loss(scores, targets)
        loss.backward()
        self.loss, self._scores, self._targets = loss.detach(), scores.detach(), targets
        gradient = scores.grad[:, self.layout.columns(self.comm.rank, self.head[-1])]
        for x, y in reversed(passes):
            y.backward(gradient)
            if x is not passes[0][0]:
                gradient = self.communicate("input_gradients", scatter_columns(*position, x.grad))
        self.communicate("input_gradients", scatter_rows(*position, x.grad, width))
        self.collect()
        self.sum_backbone(None)
        self.optimizer.step(self.flat.gradients)


def worker_of(
    model: nn.Module, loss: Callable, layout: Layout, comm: Communicator, training: Training, collective: str
) -> HybridWorker:
    """The worker of this rank, with its part of the model. ValueError in one line if the head cannot be cut."""
    stages = cut_off(model)
    if (narrowest := min(map(outputs, stages))) < layout.heads:
        why = f"heads: {layout.heads} slices, but a layer has only {narrowest} columns"
        raise ValueError(f"{why}; give at most {narrowest} heads")
    if comm.rank in layout.head:
        return Head(stages, layout, comm, training, collective, loss)
    return Backbone(model, [outputs(stage) for stage in stages], layout, comm, training, collective)


def hybrid(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable) -> dict:
    """The tables ``iterations``, ``sent`` and ``learnt``.

    ``iterations``: the seconds of each iteration and of its parts, which add up to it, see ``critical_path``. ``sent``:
    messages and bytes of a step. ``learnt``: training loss and accuracy of each step, over the samples of all workers.

    ``spec.training.batch`` is the batch of a backbone worker. The run's option ``heads`` is the number of workers that
    hold the head. A run with ``train_steps`` trains at its learning rate; other runs are timed.
    """
    training, module = spec.training, plugins.load("models", spec.training.model)
    layout = Layout(comm.world_size, spec.scheme.options["heads"], training.batch)
    model = to_device(build_seeded(module, training.seed), device)  # the same weights everywhere
    worker = worker_of(model, module.loss, layout, comm, training, spec.scheme.collective)
    worker.optimizer.lr = training.lr if training.train_steps else TIMED_LR
    del model
    comm.barrier()  # workers that are threads of one process share the generators: all have built their model
    seed_all(training.seed * comm.world_size + comm.rank)  # from here on, random numbers differ between workers
    shard = Shard(training.batch, len(layout.backbone), comm.rank, training.seed)
    steps = training.train_steps or spec.measurement.repeats + 1
    uneven = data.train_size % (shard.batch * shard.workers)
    if uneven and steps > (whole := whole_steps(data.train_size, shard)):
        raise ValueError(
            f"batch: {training.batch} samples on each of {len(layout.backbone)} backbone workers; an epoch of "
            f"{data.train_size} samples has {whole} such steps, and the run makes {steps}; give at most {whole} steps, "
            "or a batch that divides the samples"
        )
    rows, learnt = [], torch.zeros(steps, 2, dtype=torch.float64)
    for step in range(steps):  # the first step warms up
        comm.barrier()
        began = time.perf_counter()
        worker.step(*data.batch(step, shard) if comm.rank in layout.backbone else ())
        if step:
            rows.append({"step": step} | critical_path(worker, began, time.perf_counter()))
        if isinstance(worker, Head):
            learnt[step] = torch.stack([worker.loss, worker.accuracy])
        report(step + 1, steps)
    of_head = comm.allgather(learnt.view(-1))[layout.head.start].view(-1, 2)
    learnt_rows = [
        {"step": step, "train_loss": loss, "train_accuracy": accuracy}
        for step, (loss, accuracy) in enumerate(of_head.tolist(), start=1)
    ]
    return {"iterations": rows, "sent": sent_rows(worker), "learnt": learnt_rows}


def critical_path(worker: HybridWorker, began: float, ended: float) -> dict[str, float]:
    """The seconds of an iteration and of its parts, along the path of the rank that is last at each point.

    A communication lasts from the arrival of its last rank to the departure of its last rank. The rest is computing.
    The ranks share a machine, so their clocks agree.
    """
    own = torch.tensor([began, *itertools.chain(*worker.marks), ended], dtype=torch.float64)
    latest = list(itertools.accumulate(worker.comm.start_max(own).wait().tolist(), max))
    durations = [after - before for before, after in itertools.pairwise(latest)]
    stages = len(worker.head)
    kinds = ["features", *["columns"] * stages, *["input_gradients"] * stages, "backbone_gradients"]
    parts = {"iteration_s": latest[-1] - latest[0], "computing_s": sum(durations[::2])}
    return parts | {
        f"{kind}_s": sum(s for k, s in zip(kinds, durations[1::2], strict=True) if k == kind) for kind in KINDS
    }


def sent_rows(worker: HybridWorker) -> list[dict]:
    """The messages and bytes that each rank sent in its last step, by kind."""
    own = torch.tensor([worker.sent[kind] for kind in KINDS], dtype=torch.int64).view(-1)
    return [
        {"rank": rank, "part": "head" if rank in worker.layout.head else "backbone", "kind": kind}
        | {"messages": messages, "bytes": sent_bytes}
        for rank, sent in enumerate(worker.comm.allgather(own))
        for kind, (messages, sent_bytes) in zip(KINDS, sent.view(-1, 2).tolist(), strict=True)
    ]
