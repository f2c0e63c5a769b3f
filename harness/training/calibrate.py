"""Measures what the time model is made of: t_f and t_b of a model, t_s and t_c of a method.

All workers run, since communication takes the same cores as everything else.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from harness.comm import Communicator
from harness.exchange.driver import Exchange
from harness.exchange.method import Bucket
from harness.training.optimizer import SGD
from harness.training.server import Serving
from harness.spec import RunSpec
from harness.training.timed import phase_share, timed_steps
from harness.training.clock import Clock
from harness.exchange.answers import TOPOLOGIES
from harness.training.train import Trainer, epochs_of, make_method

SMALLEST = 256  # entries: 1 KB of float32
SIZES = 9
TOGETHER = 8  # buckets
CHEAP = 2**20  # entries: below this, samples cost little and latency is what they show; take more


class LayerTimes:
    """Stands in an exchange's place and notes when each layer's gradient is ready."""

    def __init__(self, layers: int):
        self.seconds = [0.0] * layers

    def start(self) -> None:
        self._last = time.perf_counter()

    def ready(self, layer: int) -> None:
        now = time.perf_counter()
        self.seconds[layer] = now - self._last
        self._last = now


def layers(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """``layers``: t_b of each layer and iteration, its copy into the bucket included; ``iterations``: t_f,
    the rest, and how long this worker waited for the others at the end (``skew_s``), which synchronous
    training does in every iteration. Nothing is exchanged; BatchNorm's statistics and the weights are left
    as they were.

    A layer whose gradient is ready before the layer's in front of it (parallel branches) has its time
    counted there: backward's sum is exact.
    """
    trainer = Trainer(spec, comm, data, device)
    trainer.optimizer.lr = 0.0
    stream = epochs_of(spec, comm, data)
    kept = [b.clone() for b in trainer.flat.buffers()]
    times = LayerTimes(len(trainer.flat.sizes))
    rows, iterations = [], []
    comm.barrier()
    for number in range(spec.repeats + 2):
        trainer.local_gradient(stream, times)
        with trainer.clock("optimizer"):
            trainer.optimizer.step(trainer.flat.gradients)
        parts = trainer.clock.stop()
        ended = time.perf_counter()
        comm.barrier()
        skew_s = time.perf_counter() - ended
        if number >= 2:  # the first two choose kernels
            iterations.append({"repeat": number - 1, "skew_s": skew_s} | parts)
            for layer, (name, entries) in enumerate(zip(trainer.flat.names, trainer.flat.sizes, strict=True)):
                rows.append({"layer": layer, "name": name, "entries": entries, "backward_s": times.seconds[layer]})
        report(number, spec.repeats + 1)
    for buffer, before in zip(trainer.flat.buffers(), kept, strict=True):
        buffer.copy_(before)
    return {"layers": rows, "iterations": iterations}


class Apart(Exchange):
    """An exchange whose selections are all done before the first communication and whose communications have
    all arrived before the first is unpacked, so that t_s and t_c are timed apart."""

    def _post(self) -> None:
        if self._next >= len(self.buckets) - 1:
            super()._post()

    def finish(self) -> None:
        for item in self._open:
            if item.pending is not None:
                with self._clock("communication"):
                    item.pending.wait()
        super().finish()


def exchanges(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """``samples``: t_s and t_c by size, number of buckets and phase, at the method's steady state.

    One bucket alone shows the latency of its communication as well, several together what each costs
    when they follow each other, as they do behind backward.
    """
    sizes = np.geomspace(SMALLEST, spec.largest_entries, SIZES).round().astype(int).tolist()
    cases = [(size, count) for size in sizes for count in (1, TOGETHER) if count * size <= spec.largest_entries]
    samples = []
    for done, (size, count) in enumerate(cases, start=1):
        buckets = [Bucket(i, torch.randn(size, device=device)) for i in range(count)]
        method = make_method(spec.method, spec.ratio, spec.options)
        clock = Clock(device)
        groups = [(i, i + 1) for i in range(count)]
        exchange = Apart(method, groups, buckets, TOPOLOGIES[spec.topology](comm, spec.wire), clock)
        if spec.serves(comm.rank):
            gradients = torch.empty(size * count, device=device)
            exchange = Serving(exchange, gradients, SGD(torch.zeros_like(gradients), 0.0, 0.9, 0.0))
        exchange.settle()
        turns = spec.repeats * (2 if size * count < CHEAP else 1)
        for turn in range(turns + 1):  # the first warms up
            for step in timed_steps(method, repeats=1):
                for bucket in buckets:
                    bucket.gradient.normal_()
                comm.barrier()
                clock.start()
                exchange.begin(turn * method.cycle + step)
                for layer in reversed(range(count)):  # the first bucket comes last: all begin at once
                    exchange.ready(layer)
                exchange.finish()
                parts = clock.stop()
                if turn:
                    phase = method.phase(step)
                    samples.append(
                        {"entries": size, "buckets": count, "phase": phase, "share": phase_share(method, phase)}
                        | {key: parts[key] for key in ("sparsify_s", "communication_s")}
                        | {"sent_bytes": exchange.topology.sent_bytes}
                    )
        report(done, len(cases))
    return {"samples": samples}
