"""Measures what the time model is made of: t_f and t_b of a model, t_s and t_c of a method.

All workers run, since communication takes the same cores as everything else.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from harness.comm import Communicator
from harness.exchange import Exchange
from harness.method import Bucket
from harness.optimizer import SGD
from harness.server import Serving
from harness.spec import RunSpec
from harness.timing import Clock
from harness.topology import TOPOLOGIES
from harness.train import Trainer, epochs_of, make_method, phase_share, timed_steps

SMALLEST = 256  # entries: 1 KB of float32
SIZES = 9
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
    """``layers``: t_b of each layer and iteration, its copy into the bucket included; ``iterations``: t_f
    and the rest. Nothing is exchanged; BatchNorm's statistics and the weights are left as they were.

    A layer whose gradient is ready before the layer's in front of it (parallel branches) has its time
    counted there: backward's sum is exact.
    """
    trainer = Trainer(spec, comm, data, device)
    trainer.optimizer.lr = 0.0
    stream = epochs_of(spec, comm, data)
    kept = [b.clone() for b in trainer.flat.buffers()]
    times = LayerTimes(len(trainer.flat.sizes))
    rows, iterations = [], []
    for number in range(spec.repeats + 2):
        comm.barrier()
        trainer.local_gradient(stream, times)
        with trainer.clock("optimizer"):
            trainer.optimizer.step(trainer.flat.gradients)
        parts = trainer.clock.stop()
        if number >= 2:  # the first two choose kernels
            iterations.append({"repeat": number - 1} | parts)
            for layer, (name, entries) in enumerate(zip(trainer.flat.names, trainer.flat.sizes, strict=True)):
                rows.append({"layer": layer, "name": name, "entries": entries, "backward_s": times.seconds[layer]})
        report(number, spec.repeats + 1)
    for buffer, before in zip(trainer.flat.buffers(), kept, strict=True):
        buffer.copy_(before)
    return {"layers": rows, "iterations": iterations}


def exchanges(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """``samples``: t_s and t_c of one bucket by size and phase, at the method's steady state."""
    sizes = np.geomspace(SMALLEST, spec.largest_entries, SIZES).round().astype(int).tolist()
    samples = []
    for done, size in enumerate(sizes, start=1):
        bucket = Bucket(0, torch.randn(size, device=device))
        method = make_method(spec.method, spec.ratio, spec.options)
        method.settle(bucket)
        clock = Clock(device)
        exchange = Exchange(method, [(0, 1)], [bucket], TOPOLOGIES[spec.topology](comm), clock)
        if spec.serves(comm.rank):
            exchange = Serving(exchange, bucket.gradient, SGD(torch.zeros_like(bucket.gradient), 0.0, 0.9, 0.0))
        turns = spec.repeats * (4 if size < CHEAP else 1)
        for turn in range(turns + 1):  # the first warms up
            for step in timed_steps(method, repeats=1):
                bucket.gradient.normal_()
                comm.barrier()
                clock.start()
                exchange.begin(turn * method.cycle + step)
                exchange.ready(0)
                exchange.finish()
                parts = clock.stop()
                if turn:
                    phase = method.phase(step)
                    samples.append(
                        {"entries": size, "phase": phase, "share": phase_share(method, phase)}
                        | {key: parts[key] for key in ("sparsify_s", "communication_s")}
                        | {"sent_bytes": exchange.topology.sent_bytes}
                    )
        report(done, len(sizes))
    return {"samples": samples}
