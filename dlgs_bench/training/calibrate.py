"""Measures the inputs of the time model: seconds of forward and backward of a model (t_f, t_b), and of selection and
communication of a method (t_s, t_c).

All workers run, since communication and computation share the cores.
"""

import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dlgs_bench import plugins
from dlgs_bench.buckets import Scope, assign_buckets
from dlgs_bench.comm import Communicator, Pending
from dlgs_bench.data import DataSet
from dlgs_bench.device import moment, seconds
from dlgs_bench.exchange import Bucket, LocalSteps, StepContext
from dlgs_bench.exchange.async_device import synchronize
from dlgs_bench.exchange.driver import Exchange, ServerExchange, WorkerExchange
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.transport import ParameterServerTransport, transport
from dlgs_bench.spec import LaunchSettings, RunSpec, Training
from dlgs_bench.training.build import build, trainable, without_values
from dlgs_bench.training.clock import Clock
from dlgs_bench.training.optimizer import SGD
from dlgs_bench.training.rows import joined
from dlgs_bench.training.session import Session, decide, make_method
from dlgs_bench.training.timed import phase_share, since_start_s, timed_steps

SMALLEST = 256  # entries of the smallest bucket: 1 KB of float32
SIZES = 5
TOGETHER = 8  # buckets in flight
FEWEST = 4  # iterations in a launch of a calibration of layers, whatever the budget
TOGETHER_SHAPED = 2**25  # entries of all buckets in flight, for a method that compresses shapes and so sends little
CHEAP = 2**20  # entries: smaller samples cost little and show the latency, so there are more of them
OVERLAPPED = 2**22  # entries of the largest bucket whose communication is timed while workers compute
Shapes = tuple[tuple[int, ...], ...]  # shapes of the layers in a bucket; ((d,),) for one layer of d entries
PRODUCTS = 50  # products timed alone before each sample
CACHES_BYTES = 2**25  # of other data: more than a core's own caches, written in milliseconds


class LayerTimes:
    """Replaces an exchange, and records when the gradient of each layer is ready."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        self._moments: list[tuple[int, torch.cuda.Event | float]] = [(-1, moment(self._device))]

    def ready(self, layer: int) -> None:
        self._moments.append((layer, moment(self._device)))

    def seconds(self) -> dict[int, float]:
        """Layer -> seconds since the previous layer of backward was ready. Call it after the iteration."""
        return {layer: seconds(began, ended) for (_, began), (layer, ended) in itertools.pairwise(self._moments)}


def layers(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """The tables ``layers`` (t_b of each layer and iteration) and ``iterations`` (t_f and the other parts).

    t_b includes the copy of the gradient into its bucket. ``skew_s`` is the time that this worker waits for the others
    at the end of an iteration, as in synchronous training. Nothing is exchanged. The weights and BatchNorm's statistics
    do not change.

    In parallel branches, a layer can be ready before the layer in front of it. Its time since the gradient before it
    counts for the layer in front, so the sum over all layers is exact.
    """
    session = Session(spec, comm, data, device)
    flat, optimizer = session.flat, session.optimizer
    optimizer.lr = 0.0
    saved_buffers = [buffer.clone() for buffer in flat.buffers()]
    times = LayerTimes(device)
    rows, iterations, measurement = [], [], spec.measurement
    comm.barrier()
    for number in range(measurement.repeats + 2):
        session.local_gradient(times, times.start)
        with session.clock("optimizer"):
            optimizer.step(flat.gradients)
        parts = session.clock.stop()
        ended = time.perf_counter()
        comm.barrier()
        skew_s = time.perf_counter() - ended
        if number >= 2:  # in the first two iterations, libraries choose kernels
            iterations.append({"repeat": number - 1, "skew_s": skew_s} | parts)
            seconds_of = times.seconds()
            for layer, (name, entries) in enumerate(zip(flat.names, flat.sizes, strict=True)):
                backward_s = seconds_of.get(layer, 0.0)
                rows.append({"layer": layer, "name": name, "entries": entries, "backward_s": backward_s})
        report(number, measurement.repeats + 1)
        late = settings.launch_budget_s is not None and since_start_s() > settings.launch_budget_s
        if decide(session.comm, late and len(iterations) >= FEWEST):
            break
    for buffer, saved in zip(flat.buffers(), saved_buffers, strict=True):
        buffer.copy_(saved)
    return {"layers": rows, "iterations": iterations}


class SequentialExchange(WorkerExchange):
    """An exchange without overlap, so that t_s and t_c are timed separately.

    It makes all selections, then all communications, and unpacks the first message when the last has arrived.

    ``overlapped``: a computation that is repeated while communication is in flight, to imitate backward; or None.
    ``taken_s``: how much communication slowed this computation in the last step, in seconds.
    """

    def __init__(self, *exchange: Any, overlapped: Callable[[], object] | None) -> None:
        super().__init__(*exchange)
        self._overlapped = overlapped

    def begin(self, context: StepContext) -> None:
        super().begin(context)
        self.taken_s = 0.0
        if self._overlapped:
            began = time.perf_counter()
            for _ in range(PRODUCTS):
                self._overlapped()
            self._alone_s = (time.perf_counter() - began) / PRODUCTS

    def ready(self, layer: int) -> None:
        """Do nothing: ``finish`` makes the whole exchange."""

    def finish(self) -> None:
        for bucket in self.buckets:
            self._begin_bucket(bucket)
        self._post()
        for item in self._open:
            if item.pending is not None:
                with self._clock("communication"):
                    if self._overlapped:
                        self._compute_until(item.pending)
                    item.pending.wait()
        self._advance(wait=True)

    def _compute_until(self, pending: Pending) -> None:
        synchronize(self.buckets[0].gradient.device)  # selection must not count as communication
        began = time.perf_counter()
        while not pending.done():
            self._overlapped()
            self.taken_s -= self._alone_s
        self.taken_s += time.perf_counter() - began


def exchanges(
    spec: RunSpec, comm: Communicator, data: None, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """The table ``samples``: t_s and t_c by size, number of buckets and phase, in the method's stationary state.

    Column ``variant``: the label of a scheme of the run. t_c lasts until the last worker has received its messages.

    - One bucket alone shows the latency.
    - Several buckets in flight show the cost of each if they follow each other.
    - Several buckets in flight while workers compute (``overlapped``) show how long a communication waits for a core.
      This wait does not depend on the size, so it is measured with small buckets, which are cheap.
    - ``taken_s`` is the slowdown of this computation in seconds, the mean of the workers. It grows with the size, so
      single large buckets are also sent while workers compute.

    Small cases come first. Each case gets a share of the launch's budget in proportion to its entries + ``CHEAP``, and
    has fewer repeats once the shares up to it are spent. When the budget is spent, cases of more than ``CHEAP`` entries
    are left out. The time model then extends the line through the measured sizes.
    """
    cases = sorted(
        (
            (label, member, case)
            for label, member in spec.members.items()
            for case in cases_of(member, spec.measurement.largest[label])
        ),
        key=lambda labelled: _entries(labelled[2]),
    )
    samples, began_s = [], since_start_s()
    weights = [CHEAP + _entries(case) for _, _, case in cases]

    def late(done: int) -> bool:
        """Whether more of the budget is spent than the first ``done`` cases should take."""
        if settings.launch_budget_s is None:
            return False
        part = sum(weights[:done]) / sum(weights)
        return decide(comm, since_start_s() > began_s + part * (settings.launch_budget_s - began_s))

    for done, (label, member, case) in enumerate(cases, start=1):
        if _entries(case) <= CHEAP or not late(len(cases)):
            rows = _samples(member, comm, device, *case, late=partial(late, done))
            samples += [{"variant": label} | row for row in rows]
        report(done, len(cases))
    over_all_workers: dict[str, Callable] = dict.fromkeys(("taken_s", "sent_bytes"), torch.mean)
    # The worker that sends most holds up the others, as the one whose turn it is with CLT-k.
    slowest = ("communication_s", "summed_bytes", "gathered_bytes", "message_bytes")
    over_all_workers |= dict.fromkeys(slowest, torch.amax)
    return {"samples": joined(samples, over_all_workers, comm, spec.cluster.workers)}


def _entries(case: tuple[Shapes, int, bool]) -> int:
    """The number of entries of all buckets of a case."""
    shapes, count, _ = case
    return sum(map(math.prod, shapes)) * count


def _samples(
    spec: RunSpec,
    comm: Communicator,
    device: torch.device,
    shapes: Shapes,
    count: int,
    overlapped: bool,
    late: Callable[[], bool],
) -> list[dict]:
    """The samples of one case of ``cases_of``. The first repeat warms up, and counts only if it is ``late`` already."""
    clock, size, samples = Clock(device), sum(map(math.prod, shapes)), []
    exchange = _exchange_without_model(spec, comm, clock, shapes, count, device, overlapped)
    exchange.warm_start()
    other_data = torch.zeros(CACHES_BYTES // 4, device=device)
    repeats = spec.measurement.repeats * (2 if size * count < CHEAP else 1)
    for repeat in range(repeats + 1):
        rows = []
        for step in timed_steps(exchange.method, repeats=1):
            row = _sample(spec, comm, clock, exchange, other_data, repeat * exchange.method.cycle + step)
            phase = exchange.method.phase(step)
            share = phase_share(exchange.method, phase)
            case = {"entries": size, "buckets": count, "overlapped": overlapped, "phase": phase, "share": share}
            rows.append(case | row)
        is_late = late()
        if repeat or is_late:
            samples += rows
        if is_late:
            break
    return samples


def cases_of(spec: RunSpec, largest: int) -> list[tuple[Shapes, int, bool]]:
    """(shapes of a bucket, number of such buckets, whether workers compute meanwhile) for each measured case.

    ``largest``: entries of the largest bucket.
    """
    method = method_class(spec.scheme.method)
    if method.cost_depends_on_shapes:
        buckets, most, few = _buckets_of_model(spec, method.scope), TOGETHER_SHAPED, TOGETHER_SHAPED
    else:
        sizes = np.geomspace(SMALLEST, largest, SIZES).round().astype(int).tolist()
        buckets, most, few = {size: ((size,),) for size in sizes}, largest, min(CHEAP, largest)
    cases = [(b, n, False) for size, b in buckets.items() for n in (1, TOGETHER) if n == 1 or n * size <= most]
    overlapped = {size: b for size, b in buckets.items() if size <= OVERLAPPED}
    return cases + [(b, TOGETHER if TOGETHER * size <= few else 1, True) for size, b in overlapped.items()]


def _buckets_of_model(spec: RunSpec, scope: Scope) -> dict[int, Shapes]:
    """Entries -> shapes of some buckets of the run's model, the smallest first.

    They are buckets of the method's scope, and single layers with several dimensions, so that some are small.
    """
    module = plugins.load("models", spec.training.model)
    flat = FlatGradients(trainable(without_values(lambda: build(module))).values())
    buckets, layers = (
        {sum(flat.sizes[i:j]): tuple(flat.shapes[i:j]) for i, j in assign_buckets(flat.sizes, how, "size", most)}
        for how, most in ((scope, spec.scheme.bucket_bytes // 4), ("layer", 0))
    )
    matrices = {size: shapes for size, shapes in layers.items() if len(shapes[0]) > 1}
    chosen = _spread(buckets, SIZES) | _spread(matrices, max(2, SIZES - len(buckets)))
    return dict(sorted(chosen.items()))


def _spread(buckets: dict[int, Shapes], most: int) -> dict[int, Shapes]:
    """Up to ``most`` of the buckets, evenly spread by rank of size, with the smallest and the largest."""
    sizes = sorted(buckets)
    indices = np.linspace(0, len(sizes) - 1, min(most, len(sizes))).round().astype(int)
    return {sizes[i]: buckets[sizes[i]] for i in indices}


def _exchange_without_model(
    spec: RunSpec, comm: Communicator, clock: Clock, shapes: Shapes, count: int, device: torch.device, overlapped: bool
) -> Exchange:
    """The exchange of the run's method on ``count`` buckets of random numbers, in the role of this process."""
    scheme = spec.scheme
    method = make_method(scheme.method, scheme.options)
    size = sum(map(math.prod, shapes))
    if isinstance(method, LocalSteps):  # an exchange sends one fragment
        size = -(-size // method.fragments)
        shapes = ((size,),)
    flat = torch.randn(count * size, device=device)
    buckets = [Bucket(i, gradient, shapes) for i, gradient in enumerate(flat.split(size))]
    groups = [(i, i + 1) for i in range(len(buckets))]
    own_transport = transport(spec.topology, comm, scheme.wire, scheme.collective, scheme.streams)
    if spec.topology.serves(comm.rank, spec.cluster.workers):
        optimizer = SGD(torch.zeros_like(flat), lr=0.0, momentum=Training.momentum, weight_decay=0.0)
        server_transport = cast(ParameterServerTransport, own_transport)
        return ServerExchange(method, groups, buckets, server_transport, flat, optimizer)
    matrix = torch.randn(128, 128, device=flat.device)

    def product() -> None:  # about 0.1 ms
        torch.matmul(matrix, matrix)
        synchronize(flat.device)

    return SequentialExchange(method, groups, buckets, own_transport, clock, overlapped=product if overlapped else None)


def _sample(
    spec: RunSpec, comm: Communicator, clock: Clock, exchange: Exchange, other_data: Tensor, number: int
) -> dict:
    """Exchange all buckets, which are ready at the same time: the parts in seconds, and the bytes."""
    other_data.add_(1)  # forward and backward fill the caches with other data, too, and then write the gradient
    for bucket in exchange.buckets:
        bucket.gradient.normal_()
    comm.barrier()
    clock.start()
    exchange.begin(StepContext(number, comm.rank, spec.cluster.workers, lr=0.1))
    if exchange.method.exchanges_at(number):
        for layer in range(len(exchange.buckets)):
            exchange.ready(layer)
        exchange.finish()
    parts, traffic = clock.stop(), exchange.transport.traffic
    return {
        "sparsify_s": parts["sparsify_s"],
        "communication_s": parts["communication_s"],
        "taken_s": exchange.taken_s if isinstance(exchange, SequentialExchange) else 0.0,
        "sent_bytes": exchange.transport.sent_bytes,
        "summed_bytes": traffic.summed,
        "gathered_bytes": traffic.gathered,
        "message_bytes": traffic.messages,
        "sums": traffic.sums,
    }
