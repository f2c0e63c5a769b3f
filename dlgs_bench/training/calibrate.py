"""Measures what the time model is made of: t_f and t_b of a model, t_s and t_c of a method.

All workers run, since communication takes the same cores as everything else.
"""

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from dlgs_bench import plugins
from dlgs_bench.buckets import Scope, assign_buckets
from dlgs_bench.comm import Communicator, Pending
from dlgs_bench.data import DataSet
from dlgs_bench.exchange import Bucket, StepContext
from dlgs_bench.exchange.async_device import catch_up
from dlgs_bench.exchange.driver import Exchange, ServerExchange, WorkerExchange
from dlgs_bench.exchange.flat import FlatGradients
from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.spec import LaunchSettings, RunSpec, Training
from dlgs_bench.training.build import build_shapes, trained
from dlgs_bench.training.clock import Clock, moment, seconds
from dlgs_bench.training.optimizer import optimizer_of
from dlgs_bench.training.rows import joined
from dlgs_bench.training.session import Session, make_method
from dlgs_bench.training.timed import phase_share, since_start_s, timed_steps

SMALLEST = 256  # entries: 1 KB of float32
SIZES = 5
TOGETHER = 8  # buckets
FEWEST = 4  # iterations in a launch of a calibration of layers, however long they take
TOGETHER_SHAPED = 2**25  # entries of all buckets sent together: of a method that compresses shapes, little is sent
CHEAP = 2**20  # entries: smaller samples cost little and show the latency, so there are more of them
OVERLAPPED = 2**22  # entries of the largest bucket whose communication is timed beside computing
Shapes = tuple[tuple[int, ...], ...]  # of the layers in a bucket; of one piece of d entries ((d,),)
PRODUCTS = 50  # computed alone before each sample, to know how long one takes


class LayerTimes:
    """Stands in an exchange's place and notes when each layer's gradient is ready."""

    def __init__(self, device: torch.device):
        self._device = device

    def start(self) -> None:
        self._moments = [(None, moment(self._device))]

    def ready(self, layer: int) -> None:
        self._moments.append((layer, moment(self._device)))

    def seconds(self) -> dict[int, float]:
        """By layer, from the one before it in backward; to be read when the iteration has ended."""
        return {layer: seconds(begun, ended) for (_, begun), (layer, ended) in itertools.pairwise(self._moments)}


def layers(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """``layers``: t_b of each layer and iteration, its copy into the bucket included; ``iterations``: t_f,
    the rest, and how long this worker waited for the others at the end (``skew_s``), which synchronous
    training does in every iteration. Nothing is exchanged; BatchNorm's statistics and the weights are left
    as they were.

    A layer whose gradient is ready before that of the layer in front of it (parallel branches) has its time
    counted there: backward's sum is exact.
    """
    session = Session(spec, comm, data, device)
    flat, optimizer = session.flat, session.optimizer
    optimizer.lr = 0.0
    kept = [b.clone() for b in flat.buffers()]
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
        if number >= 2:  # the first two choose kernels
            iterations.append({"repeat": number - 1, "skew_s": skew_s} | parts)
            took = times.seconds()
            for layer, (name, entries) in enumerate(zip(flat.names, flat.sizes, strict=True)):
                rows.append({"layer": layer, "name": name, "entries": entries, "backward_s": took.get(layer, 0.0)})
        report(number, measurement.repeats + 1)
        late = settings.share_s and since_start_s() > settings.share_s
        if session.decide(late and len(iterations) >= FEWEST):
            break
    for buffer, before in zip(flat.buffers(), kept, strict=True):
        buffer.copy_(before)
    return {"layers": rows, "iterations": iterations}


class SequentialExchange(WorkerExchange):
    """An exchange that does one thing after the other, so that t_s and t_c are timed apart: all selections, then
    all communications, and only when the last has arrived is the first one unpacked.

    ``overlapped``: what this worker computes again and again while they are under way, if anything: as backward does.
    ``taken_s``: how much longer that took in the last step than it takes alone.
    """

    def __init__(self, *exchange, overlapped: Callable[[], object] | None):
        super().__init__(*exchange)
        self._overlapped = overlapped

    def begin(self, at: StepContext) -> None:
        super().begin(at)
        self.taken_s = 0.0
        if self._overlapped:
            begun = time.perf_counter()
            for _ in range(PRODUCTS):
                self._overlapped()
            self._alone_s = (time.perf_counter() - begun) / PRODUCTS

    def ready(self, layer: int) -> None:
        """Everything happens in ``finish``."""

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
        catch_up(self.buckets[0].gradient.device)  # what was selected is no part of it
        begun = time.perf_counter()
        while not pending.done():
            self._overlapped()
            self.taken_s -= self._alone_s
        self.taken_s += time.perf_counter() - begun


def exchanges(
    spec: RunSpec, comm: Communicator, data: None, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """``samples``: t_s and t_c by size, number of buckets and phase, of each scheme of the run (column ``variant``: its
    label), at the method's steady state; t_c until the last worker has what it waits for.

    One bucket alone shows the latency, several together what each costs when they follow each other, and several
    ``overlapped`` computing how long a communication waits for a core. That is as long for a small message as for a
    large
    one, so it is measured where samples are cheap. ``taken_s``: what the communications take from that computing, in
    the mean of the workers; it grows with the size, so large buckets are sent beside computing too, one by one.

    Small cases come first. Each case gets a part of the launch's budget by its entries and is repeated less once this
    part is spent. When the budget is spent, cases of more than ``CHEAP`` entries are left out: the time model extends
    the line through the sizes that were measured.
    """
    cases = sorted(
        (
            (label, member, case)
            for label, member in spec.members.items()
            for case in cases_of(member, spec.measurement.largest[label])
        ),
        key=lambda one: _entries(one[2]),
    )
    samples, begun_s = [], since_start_s()
    weights = [CHEAP + _entries(case) for _, _, case in cases]

    def late(done: int) -> bool:
        """Whether more of the budget is spent than the first ``done`` cases should take."""
        part = sum(weights[:done]) / sum(weights)
        spent = since_start_s() > begun_s + part * (settings.share_s - begun_s)
        return _decide(comm, settings.share_s > 0 and spent)

    for done, (label, member, case) in enumerate(cases, start=1):
        if _entries(case) <= CHEAP or not late(len(cases)):
            own = _samples(member, comm, device, *case, late=lambda done=done: late(done))
            samples += [{"variant": label} | row for row in own]
        report(done, len(cases))
    of_workers = {"communication_s": torch.amax, "taken_s": torch.mean}
    return {"samples": joined(samples, of_workers, comm, spec.cluster.workers)}


def _entries(case: tuple[Shapes, int, bool]) -> int:
    """Entries of all buckets of a case."""
    shapes, count, _ = case
    return sum(map(math.prod, shapes)) * count


def _decide(comm: Communicator, yes: bool) -> bool:
    """What rank 0 says, for all processes: for what depends on the clock."""
    decision = torch.tensor([float(yes)], device=comm.device)
    comm.broadcast(decision)
    return bool(decision.item())


def _samples(
    spec: RunSpec,
    comm: Communicator,
    device: torch.device,
    shapes: Shapes,
    count: int,
    overlapped: bool,
    late: Callable[[], bool],
) -> list[dict]:
    """The samples of one case, see ``cases_of``. The first turn warms up and counts only if it is already ``late``."""
    clock, size, samples = Clock(device), sum(map(math.prod, shapes)), []
    exchange = _alone(spec, comm, clock, shapes, count, device, overlapped)
    exchange.warm_start()
    turns = spec.measurement.repeats * (2 if size * count < CHEAP else 1)
    for turn in range(turns + 1):
        kept = []
        for step in timed_steps(exchange.method, repeats=1):
            row = _sample(spec, comm, clock, exchange, turn * exchange.method.cycle + step)
            phase = exchange.method.phase(step)
            share = phase_share(exchange.method, phase)
            case = {"entries": size, "buckets": count, "overlapped": overlapped, "phase": phase, "share": share}
            kept.append(case | row)
        over = late()
        if turn or over:
            samples += kept
        if over:
            break
    return samples


def cases_of(spec: RunSpec, largest: int) -> list[tuple[Shapes, int, bool]]:
    """(layers of a bucket, how many such buckets, whether beside computing) for each case that is measured.

    ``largest``: entries of the largest bucket.
    """
    method = method_class(spec.scheme.method)
    if method.cost_depends_on_shapes:
        buckets, most, few = _of_model(spec, method.scope), TOGETHER_SHAPED, TOGETHER_SHAPED
    else:
        sizes = np.geomspace(SMALLEST, largest, SIZES).round().astype(int).tolist()
        buckets, most, few = {size: ((size,),) for size in sizes}, largest, min(CHEAP, largest)
    cases = [(b, n, False) for size, b in buckets.items() for n in (1, TOGETHER) if n == 1 or n * size <= most]
    overlapped = {size: b for size, b in buckets.items() if size <= OVERLAPPED}
    return cases + [(b, TOGETHER if TOGETHER * size <= few else 1, True) for size, b in overlapped.items()]


def _of_model(spec: RunSpec, scope: Scope) -> dict[int, Shapes]:
    """Layers by entries, the fewest first: of buckets that the scope cuts from the run's model, and of single layers
    with several dimensions, so that some are small."""
    net = build_shapes(plugins.load("models", spec.training.model))
    flat = FlatGradients(trained(net).values())
    own, single = (
        {sum(flat.sizes[i:j]): tuple(flat.shapes[i:j]) for i, j in assign_buckets(flat.sizes, how, "size", most)}
        for how, most in ((scope, spec.scheme.bucket_bytes // 4), ("layer", 0))
    )
    matrices = {size: shapes for size, shapes in single.items() if len(shapes[0]) > 1}
    chosen = _spread(own, SIZES) | _spread(matrices, max(2, SIZES - len(own)))
    return dict(sorted(chosen.items()))


def _spread(buckets: dict[int, Shapes], most: int) -> dict[int, Shapes]:
    """At most so many of the buckets, the smallest and the largest among them."""
    sizes = sorted(buckets)
    places = np.linspace(0, len(sizes) - 1, min(most, len(sizes))).round().astype(int)
    return {sizes[place]: buckets[sizes[place]] for place in places}


def _alone(
    spec: RunSpec, comm: Communicator, clock: Clock, shapes: Shapes, count: int, device: torch.device, overlapped: bool
) -> Exchange:
    """The method of the run on ``count`` buckets without a model, in this process's role."""
    scheme = spec.scheme
    method = make_method(scheme.method, scheme.options)
    size = sum(map(math.prod, shapes))
    flat = torch.randn(count * size, device=device)
    buckets = [Bucket(i, gradient, shapes) for i, gradient in enumerate(flat.split(size))]
    groups = [(i, i + 1) for i in range(len(buckets))]
    how = transport(spec.topology, comm, scheme.wire, scheme.collective, scheme.streams)
    if spec.topology.serves(comm.rank, spec.cluster.workers):
        optimizer = optimizer_of(Training(lr=0.0, weight_decay=0.0), torch.zeros_like(flat))
        return ServerExchange(method, groups, buckets, how, flat, optimizer)
    matrix = torch.randn(128, 128, device=flat.device)

    def product() -> None:  # about a tenth of a millisecond
        torch.matmul(matrix, matrix)
        catch_up(flat.device)

    return SequentialExchange(method, groups, buckets, how, clock, overlapped=product if overlapped else None)


def _sample(spec: RunSpec, comm: Communicator, clock: Clock, exchange: Exchange, number: int) -> dict:
    """One exchange of all buckets, all ready at once: its parts in seconds, its bytes."""
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
    }
