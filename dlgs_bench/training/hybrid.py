"""Hybrid parallelism: backbone workers train data-parallel, head workers hold slices of the fully connected layers.

Patent of Shanghai Ocean University (halving-doubling all-reduce and hybrid parallelism). That each backbone worker
gets the sum of its rows of the input gradient by a reduce-scatter is our reading. Nothing overlaps: a worker computes
or communicates.
"""

import itertools
import time
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

from dlgs_bench import plugins
from dlgs_bench.comm import Communicator, collectives
from dlgs_bench.comm.collectives import PeerExchanges
from dlgs_bench.comm.hybrid import Layout, gather_columns, gather_rows, scatter_columns, scatter_rows
from dlgs_bench.data import DataSet, Shard
from dlgs_bench.spec import RunSpec, Training
from dlgs_bench.training.build import build, to_device
from dlgs_bench.training.flat import FlatModel
from dlgs_bench.training.head import cut_off, outputs, slice_of
from dlgs_bench.training.optimizer import optimizer_of

KINDS = ("features", "columns", "input_gradients", "backbone_gradients")  # of messages
NEVER = float("-inf")


class Worker:
    """What both kinds of workers have: a part of the model and its optimizer.

    ``marks``: (begin, end) of every communication of the last step, by ``time.perf_counter``; the same number on all
    ranks, ``NEVER`` where this one had no part. ``sent``: kind -> messages and bytes of the last step.
    """

    collective: ModuleType

    def __init__(self, part: nn.Module, layout: Layout, comm: Communicator, training: Training):
        self.layout, self.comm = layout, comm
        self.flat = FlatModel(part)
        self.optimizer = optimizer_of(training, self.flat.parameters)
        self.begin()

    def begin(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.sent = dict.fromkeys(KINDS, (0, 0))

    def talk(self, kind: str, rounds: PeerExchanges, joins: bool = True):
        """Run the rounds of one communication; what they return. ``joins``: whether this rank has a part in it."""
        before, begun = (self.comm.sent_messages, self.comm.sent_bytes), time.perf_counter()
        answer = self.comm.start_rounds(rounds).wait()
        self.marks.append((begun, time.perf_counter()) if joins else (NEVER, NEVER))
        messages, sent_bytes = self.sent[kind]
        messages += self.comm.sent_messages - before[0]
        self.sent[kind] = messages, sent_bytes + self.comm.sent_bytes - before[1]
        return answer

    def sum_backbone(self, gradients: Tensor | None) -> None:
        """Sum the backbone workers' gradients, in place."""
        backbone = len(self.layout.backbone)
        rounds = collectives.sum_over_first(self.collective, self.comm.rank, backbone, gradients)
        self.talk("backbone_gradients", rounds, joins=gradients is not None)

    def collect(self) -> None:
        """Bring the gradients into the flat tensor."""
        for parameter, view in self.flat.views:
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
            parameter.grad = None


class Backbone(Worker):
    """``head``: columns of each of its layers."""

    def __init__(self, model: nn.Module, head: list[int], layout, comm, training, collective: str):
        super().__init__(model, layout, comm, training)
        self.head, self.collective = head, collectives.load(collective, len(layout.backbone))

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """One iteration. The class of each sample travels as one more column of its features."""
        if len(inputs) != self.layout.rows:
            raise ValueError(f"a batch of {len(inputs)} samples, where all workers expect {self.layout.rows}")
        self.begin()
        who = self.layout, self.comm.rank
        features = self.flat.model(inputs)
        rows = torch.cat([features.detach(), targets.view(-1, 1).to(features.dtype)], 1)
        self.talk("features", gather_rows(*who, rows, rows.shape[1]))
        for columns in self.head:
            self.talk("columns", gather_columns(*who, None, columns), joins=False)
        for _ in self.head[1:]:
            self.talk("input_gradients", scatter_columns(*who, None), joins=False)
        gradient = self.talk("input_gradients", scatter_rows(*who, None, features.shape[1]))
        features.backward(gradient)
        self.collect()
        self.sum_backbone(self.flat.gradients)
        self.optimizer.step(self.flat.gradients)


class Head(Worker):
    """``stages``: this worker's slices; ``head``: columns of each layer; ``loss``: of the last step, of all rows."""

    def __init__(self, stages: list[nn.Sequential], layout, comm, training, collective: str, loss: Callable):
        self.head = [outputs(stage) for stage in stages]
        slices = [slice_of(s, layout.columns(comm.rank, n)) for s, n in zip(stages, self.head, strict=True)]
        super().__init__(nn.ModuleList(slices), layout, comm, training)
        self.stages, self._loss = slices, loss
        self.collective = plugins.load("collectives", collective)

    def step(self) -> None:
        """One iteration."""
        self.begin()
        who = self.layout, self.comm.rank
        width = self.stages[0][0].in_features
        rows = self.talk("features", gather_rows(*who, None, width + 1))
        x, targets, passes = rows[:, :-1], rows[:, -1].long(), []
        for stage, columns in zip(self.stages, self.head, strict=True):
            x = x.detach().requires_grad_()
            y = stage(x)
            passes.append((x, y))
            x = self.talk("columns", gather_columns(*who, y.detach(), columns))
        scores = x.requires_grad_()
        loss = self._loss(scores, targets)
        loss.backward()
        self.loss = loss.detach()
        gradient = scores.grad[:, self.layout.columns(self.comm.rank, self.head[-1])]
        for x, y in reversed(passes):
            y.backward(gradient)
            if x is not passes[0][0]:
                gradient = self.talk("input_gradients", scatter_columns(*who, x.grad))
        self.talk("input_gradients", scatter_rows(*who, x.grad, width))
        self.collect()
        self.sum_backbone(None)
        self.optimizer.step(self.flat.gradients)


def worker_of(
    model: nn.Module, loss: Callable, layout: Layout, comm: Communicator, training: Training, collective: str
) -> Worker:
    """This rank's part of a model, which is cut. ValueError in one line if the model or its head cannot be cut so."""
    stages = cut_off(model)
    if (narrowest := min(map(outputs, stages))) < layout.heads:
        raise ValueError(f"{layout.heads} slices of a layer of {narrowest} columns; give at most {narrowest} heads")
    if comm.rank in layout.head:
        return Head(stages, layout, comm, training, collective, loss)
    return Backbone(model, [outputs(stage) for stage in stages], layout, comm, training, collective)


def hybrid(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable) -> dict:
    """``iterations``: the seconds of each, and of its parts along the path of the last rank, which add up to it;
    ``sent``: by rank and kind, messages and bytes of an iteration.

    ``spec.training.batch``: of a backbone worker. The run's option ``heads``: how many workers hold the head.
    """
    training, module = spec.training, plugins.load("models", spec.training.model)
    layout = Layout(comm.world_size, spec.scheme.options["heads"], training.batch)
    torch.manual_seed(training.seed)  # the same weights everywhere
    model = to_device(build(module), device)
    worker = worker_of(model, module.loss, layout, comm, training, spec.scheme.collective)
    worker.optimizer.lr = 1e-4  # as in timing runs
    del model
    shard = Shard(training.batch, len(layout.backbone), comm.rank, training.seed)
    rows, repeats = [], spec.measurement.repeats
    for step in range(repeats + 1):  # the first warms up
        comm.barrier()
        begun = time.perf_counter()
        worker.step(*data.batch(step, shard) if comm.rank in layout.backbone else ())
        if step:
            rows.append({"step": step} | along_the_path(worker, begun, time.perf_counter()))
        report(step + 1, repeats + 1)
    return {"iterations": rows, "sent": sent_rows(worker)}


def along_the_path(worker: Worker, begun: float, ended: float) -> dict[str, float]:
    """An iteration's seconds, and those of its parts: a communication lasts from when the last of its ranks came to it
    until the last one left it, the rest is computing. The clocks of all ranks are one: they share a machine."""
    own = torch.tensor([begun, *itertools.chain(*worker.marks), ended], dtype=torch.float64)
    latest = list(itertools.accumulate(worker.comm.start_max(own).wait().tolist(), max))
    lasted = [after - before for before, after in itertools.pairwise(latest)]
    stages = len(worker.head)
    kinds = ["features", *["columns"] * stages, *["input_gradients"] * stages, "backbone_gradients"]
    parts = {"iteration_s": latest[-1] - latest[0], "computing_s": sum(lasted[::2])}
    return parts | {
        f"{kind}_s": sum(s for k, s in zip(kinds, lasted[1::2], strict=True) if k == kind) for kind in KINDS
    }


def sent_rows(worker: Worker) -> list[dict]:
    """What every rank sent in its last step, by kind."""
    own = torch.tensor([worker.sent[kind] for kind in KINDS], dtype=torch.int64).view(-1)
    return [
        {"rank": rank, "part": "head" if rank in worker.layout.head else "backbone", "kind": kind}
        | {"messages": messages, "bytes": sent_bytes}
        for rank, sent in enumerate(worker.comm.allgather(own))
        for kind, (messages, sent_bytes) in zip(KINDS, sent.view(-1, 2).tolist(), strict=True)
    ]
