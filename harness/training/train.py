"""Synchronous data-parallel SGD with a method between backward and the optimizer (paper, Section 3.4)."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from harness import plugins
from harness.timemodel import planner
from harness.comm import Communicator
from harness.exchange.driver import Exchange
from harness.training.flat import FlatModel
from harness.exchange.method import Bucket, Method
from harness.training.optimizer import SGD
from harness.training.server import Server
from harness.spec import RunSpec
from harness.timemodel.timeline import Plan
from harness.training.clock import Clock
from harness.exchange.answers import TOPOLOGIES

_SEEDING = threading.Lock()  # local workers are threads that share torch's one generator


class Trainer:
    """One worker's model, optimizer and clock, and the method whose turn it is."""

    def __init__(self, spec: RunSpec, comm: Communicator, data, device: torch.device):
        self.spec, self.comm, self.data = spec, comm, data
        with _SEEDING:
            torch.manual_seed(spec.seed)
            model = plugins.load("models", spec.model).build()
        self.flat = FlatModel(model.to(device, memory_format=torch.channels_last))
        comm.broadcast(self.flat.parameters)
        torch.manual_seed(spec.seed * spec.workers + comm.rank)  # from here on workers draw their own
        self.optimizer = SGD(self.flat.parameters, spec.lr, spec.momentum, spec.weight_decay)
        # Where the server owns the optimizer, its new weights lie in the buckets in the gradients' place.
        self.update = self.flat.parameters.copy_ if spec.topology == "ps-weights" else self.optimizer.step
        self.clock = Clock(device)
        self.exchange: Exchange | None = None
        for layer, (parameter, view) in enumerate(self.flat.views):
            parameter.register_post_accumulate_grad_hook(self._hook(layer, view))

    def _hook(self, layer: int, view: Tensor):
        """Put the gradient into its bucket, already divided by the workers: sums become means."""
        share = 1 / self.spec.workers

        def hook(parameter: Tensor) -> None:
            with self.clock("other"):
                torch.mul(parameter.grad, share, out=view)
                parameter.grad = None
            if self.exchange is not None:
                self.exchange.ready(layer)

        return hook

    def prepare(self, method: Method, groups: Plan | None = None) -> Exchange:
        """Cut the gradient into this method's buckets, or into those of ``groups``."""
        groups = groups or cut(self.flat.sizes, method.scope, self.spec)
        ratios = self.spec.ratios if self.spec.ratios and not method.exact else [None] * len(groups)
        buckets = [
            Bucket(i, self.flat.slice(start, stop), tuple(self.flat.sizes[start:stop]), ratio)
            for i, ((start, stop), ratio) in enumerate(zip(groups, ratios, strict=True))
        ]
        topology = TOPOLOGIES[self.spec.topology](self.comm, self.spec.wire)
        return Exchange(method, groups, buckets, topology, self.clock)

    def step(self, exchange: Exchange, number: int, batches: Iterator) -> tuple[dict, Tensor]:
        """One iteration: its parts in seconds, its bytes and density; [loss sum, correct, images]."""
        self.exchange = exchange
        self.clock.start()
        images, labels = next(batches)
        exchange.begin(number)
        with self.clock("forward"):
            outputs = self.flat.model(images)
            loss = F.cross_entropy(outputs, labels)
        with self.clock("backward"):
            loss.backward()
        exchange.finish()
        with self.clock("optimizer"):
            self.update(self.flat.gradients)
        row = {
            "step": number,
            "phase": exchange.method.phase(number),
            **self.clock.stop(),
            "sent_bytes": exchange.topology.sent_bytes,
            "received_bytes": exchange.topology.received_bytes,
            "density": exchange.topology.sent_entries / len(self.flat.gradients),
        }
        correct = (outputs.detach().argmax(1) == labels).sum()
        images = torch.full_like(correct, len(labels))
        return row, torch.stack([loss.detach() * len(labels), correct, images]).double()

    def evaluate(self, limit: int) -> dict[str, float]:
        """Loss and accuracy on the first ``limit`` test images, the work shared by the workers."""
        self._average_buffers()
        self.flat.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.flat.parameters.device)
        with torch.no_grad():
            for images, labels in self.data.test(250, self.spec.workers, self.comm.rank, limit):
                outputs = self.flat.model(images)
                sums[0] += F.cross_entropy(outputs, labels, reduction="sum")
                sums[1] += (outputs.argmax(1) == labels).sum()
                sums[2] += len(labels)
        self.flat.model.train()
        return _means("test", self.comm.allreduce(sums))

    def _average_buffers(self) -> None:
        """BatchNorm's running statistics are each worker's own: use their mean."""
        buffers = self.flat.buffers()
        if not buffers:
            return
        mean = torch.cat([b.view(-1) for b in buffers]) / self.spec.workers
        parts = self.comm.allreduce(mean).split([b.numel() for b in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def local_gradient(self, batches: Iterator, listener=None) -> None:
        """Leave one gradient of this worker alone in the buckets: nothing is exchanged or updated.

        ``listener.start()`` is called when backward starts, ``listener.ready(layer)`` as in an exchange.
        """
        self.exchange = listener
        self.clock.start()
        images, labels = next(batches)
        with self.clock("forward"):
            loss = F.cross_entropy(self.flat.model(images), labels)
        if listener is not None:
            listener.start()
        with self.clock("backward"):
            loss.backward()


def join(spec: RunSpec, comm: Communicator, data, device: torch.device) -> Trainer | Server:
    """This process's part in the training: a worker's or the server's."""
    trainer = Trainer(spec, comm, data, device)
    return Server(trainer) if spec.serves(comm.rank) else trainer


def cut(sizes: list[int], scope: str, spec: RunSpec) -> Plan:
    """The groups of layers for a method's scope, float32 gradients of ``sizes`` entries."""
    if scope == "model":
        return planner.merge_all(sizes)
    if scope == "size":
        return planner.merge_up_to(sizes, most=spec.bucket_bytes // 4)
    if scope == "plan" and spec.groups:
        if spec.groups[-1][1] != len(sizes):
            raise ValueError(f"the plan covers {spec.groups[-1][1]} layers, {spec.model} has {len(sizes)}")
        return list(spec.groups)
    return planner.per_layer(sizes)


def make_method(name: str, ratio: float | None, options: dict) -> Method:
    method = plugins.load("methods", name)
    return method(**options) if method.exact else method(ratio=ratio, **options)


def _means(split: str, sums: Tensor) -> dict[str, float]:
    loss, correct, images = sums.tolist()
    return {f"{split}_loss": loss / images, f"{split}_accuracy": correct / images}


def epochs_of(spec: RunSpec, comm: Communicator, data) -> Iterator:
    """This worker's training batches, epoch after epoch, without end."""
    return itertools.chain.from_iterable(
        data.train(spec.batch, spec.workers, comm.rank, spec.seed, epoch) for epoch in itertools.count()
    )


def train(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """An accuracy run: ``points`` of the curves, ``iterations`` with their parts, ``groups`` and ``sent``.

    Training accuracy and loss are means over the augmented batches since the point before, as the
    model was when it saw them; test accuracy and loss are taken at the point.
    """
    trainer = join(spec, comm, data, device)
    exchange = trainer.prepare(make_method(spec.method, spec.ratio, spec.options))
    stream = epochs_of(spec, comm, data)
    epoch_steps = -(-data.train_size // (spec.batch * spec.workers))
    total = max(spec.evaluations, round(spec.train_epochs * epoch_steps))
    marks = {round(total * (i + 1) / spec.evaluations) for i in range(spec.evaluations)}
    points, iterations, sent = [], [], []
    sums, begun = torch.zeros(3, dtype=torch.float64, device=device), time.perf_counter()
    for number in range(1, total + 1):
        trainer.optimizer.lr = spec.learning_rate((number - 1) / epoch_steps)
        row, batch_sums = trainer.step(exchange, number, stream)
        iterations.append(row)
        sent.append(sent_row(exchange, step=number))
        sums += batch_sums
        if number in marks:
            point = {"epoch": number / epoch_steps, "step": number}
            point |= _means("train", comm.allreduce(sums))
            point |= trainer.evaluate(spec.final_test_images if number == total else spec.test_images)
            points.append(point | {"elapsed_s": time.perf_counter() - begun})
            sums.zero_()
        report(number, total)
    return {"points": points, "iterations": iterations, "groups": group_rows(spec.method, exchange), "sent": sent}


def sent_row(exchange: Exchange, **about) -> dict:
    """How many entries of each bucket were sent in the last step; column: the bucket's index."""
    return about | {str(bucket): n for bucket, n in enumerate(exchange.sent_entries)}


def group_rows(variant: str, exchange: Exchange) -> list[dict]:
    """Which layers are exchanged together: bucket by bucket (start, stop) and their entries."""
    return [
        {"variant": variant, "bucket": bucket.index, "start": start, "stop": stop, "entries": bucket.size}
        for (start, stop), bucket in zip(exchange.groups, exchange.buckets, strict=True)
    ]
