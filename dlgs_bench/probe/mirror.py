"""Measures methods on one worker: the messages of the other workers are copies of this worker's messages."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from dlgs_bench import plugins, stats
from dlgs_bench.buckets import Plan, merge_all, per_layer
from dlgs_bench.comm import Communicator, Pending
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.exchange import Bucket, LocalSteps, Method, StepContext
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.exchange.method import Max, Request, Sum
from dlgs_bench.exchange.plugin import method_class, method_info
from dlgs_bench.exchange.transport import CollectiveTransport
from dlgs_bench.probe.marks import Marks
from dlgs_bench.topology import ALL_GATHER

WORKERS = (2, 8)  # two numbers separate the work that grows with the number of workers from the rest
TARGETS = (2**10, 2**14, 2**18)  # the approximate sizes of small buckets; the job's own buckets are measured too
MOST_ENTRIES = 2**23  # of a bucket; DistributedDataParallel's default buckets have 6.6 million float32 entries
ALIKE = 1.25  # buckets whose sizes differ by less are measured once
REPEATS = 3
LARGE, REPEATS_IF_LARGE = 2**20, 2  # entries of a large bucket, on which a disturbance weighs less
LIMIT_S = 1.0  # a method that took longer on a bucket is not measured on larger buckets
# Roughly: the time of an exchange, in Top-K selections of its bucket by torch, and a time that every exchange takes.
EXCHANGE_IN_TOPKS, LEAST_EXCHANGE_S = 1.0, 0.015
RATIO = 0.01
LOCAL_STEPS = "the method exchanges weights after local steps"
NEEDS_PLAN = "the method takes the ratio of each layer from a plan, which a hook does not have"
Shapes = tuple[tuple[int, ...], ...]


class _Answered:
    """A request with its answer."""

    ended_at = None

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def done(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._answer


class Mirror(Communicator):
    """Rank 0 of a world in which all ranks have this rank's tensors. Nothing is sent, so only local work takes time.

    In some methods, workers take turns to choose indices, and only one worker has something to gather. While
    ``observes``, the caller exchanges as another rank, and the gathers to which this rank adds nothing are noted. In
    later exchanges only rank 0 adds to them, and their bytes count in full, since the worker whose turn it is sends
    them to all others. Call ``reset`` before each exchange.
    """

    def __init__(self, workers: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = 0, workers, device
        self._silent: set[int] = set()  # gathers to which other ranks add nothing, by their order in an exchange
        self.reset()

    def reset(self, observes: bool = False) -> None:
        """Prepare for an exchange."""
        self._observes, self._gathers = observes, 0
        if observes:
            self._silent.clear()

    def start_allreduce(self, tensor: Tensor) -> _Answered:
        return _Answered(tensor)  # a mean; with undivided sums, residuals would overflow in long cycles

    def start_max(self, tensor: Tensor) -> _Answered:
        return _Answered(tensor)

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> _Answered:
        number, self._gathers = self._gathers, self._gathers + 1
        if self._observes and not len(tensor):
            self._silent.add(number)
        others = tensor
        if number in self._silent:
            others = tensor[:0]
        return _Answered([tensor, *[others] * (self.world_size - 1)])

    def start_round(self, peer_exchange: PeerExchange) -> _Answered:
        sends, receives = peer_exchange.sends, peer_exchange.receives
        like = next(iter(sends.values()), torch.zeros(1, dtype=peer_exchange.dtype, device=self.device))
        return _Answered({peer: _of_length(sends.get(peer, like), entries) for peer, entries in receives.items()})

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        pass

    def close(self) -> None:
        pass

    def _starter(self) -> NoReturn:
        raise NotImplementedError("a mirror has no streams")


class _HookExchange(FiniteExchange):
    """The exchange of one bucket as in a hook, but without the flags of a step, a small message.

    ``arrived``: where the script has the gradient, shape (d,). A hook copies it to the bucket and back if that is
    other memory.
    """

    def __init__(self, method: Method, bucket: Bucket, arrived: Tensor, transport: CollectiveTransport) -> None:
        super().__init__(method, [(0, len(bucket.shapes))], [bucket], transport, lambda label: nullcontext())
        self._bucket, self._arrived = bucket, arrived

    def _begin_bucket(self, bucket: Bucket) -> None:
        if bucket.gradient is not self._flags:
            super()._begin_bucket(bucket)

    def step(self, context: StepContext) -> None:
        """Do all that a hook does in a step; FloatingPointError if the aggregate is not finite."""
        self.begin(context)
        torch.mul(self._arrived, 1 / context.workers, out=self._bucket.gradient)
        for layer in range(*self.groups[0]):
            self.ready(layer)
        self.finish()
        if self._arrived is not self._bucket.gradient:
            self._arrived.copy_(self._bucket.gradient)
        self.conclude([self._arrived])
        if self.restore():
            raise FloatingPointError("the aggregate is not finite")


class _EmptyExchange(_HookExchange):
    """What a hook does once per step, whatever its number of buckets. No bucket is exchanged."""

    def _begin_bucket(self, bucket: Bucket) -> None:
        pass


class _CountingTransport(CollectiveTransport):
    """``kinds``: the requests since the last ``reset``, by kind."""

    def reset(self) -> None:
        super().reset()
        self.kinds = {"sums": 0, "gathers": 0, "messages": 0}

    def start(self, request: Request) -> Pending:
        summed = isinstance(request, Max) or (isinstance(request, Sum) and request.indices is None)
        self.kinds["sums" if summed else "messages" if isinstance(request, PeerExchange) else "gathers"] += 1
        return super().start(request)


def _of_length(tensor: Tensor, entries: int | None) -> Tensor:
    if entries is None or len(tensor) == entries:
        return tensor.clone()
    return torch.cat([tensor, tensor.new_zeros(max(0, entries - len(tensor)))])[:entries]


def bucket_shapes(layers: Sequence[Sequence[int]], target: int) -> Shapes:
    """The shapes of the job's first layers, in the order of their gradients, up to ``target`` entries.

    The last layer is shortened to fit.
    """
    shapes: list[tuple[int, ...]] = []
    left = target
    for shape in layers:
        entries = math.prod(shape)
        if entries > left:
            columns = entries // shape[0] if shape else 1
            rows = left // columns
            if rows or not shapes:
                shapes.append((rows, *shape[1:]) if rows else (left,))
            break
        shapes.append(tuple(shape))
        left -= entries
        if not left:
            break
    return tuple(shapes)


def layer_shape(layers: Sequence[Sequence[int]], target: int) -> tuple[int, ...]:
    """The shape of the layer whose size is nearest to ``target``, with fewer rows if it has more than ``target``."""
    shape = min(layers, key=lambda shape: abs(math.log(math.prod(shape) / target)))
    rows, columns = _matrix(shape)
    return (min(rows, max(1, target // columns)), *shape[1:])


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """The number of rows of a layer, and the entries of each."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def own_buckets(layers: Sequence[Sequence[int]], plan: Plan) -> list[Shapes]:
    """The job's largest and median bucket, as the shapes of their layers; one bucket if they are about as large.

    ``plan``: the job's buckets. A bucket of more than ``MOST_ENTRIES`` is shortened.
    """
    by_size = sorted((bucket_shapes(layers[start:stop], MOST_ENTRIES) for start, stop in plan), key=_entries)
    return _unlike([by_size[-1], by_size[(len(by_size) - 1) // 2]])


def _unlike(buckets: Sequence[Shapes]) -> list[Shapes]:
    """The buckets whose size differs from all buckets before them by a factor of ``ALIKE`` or more."""
    unlike: list[Shapes] = []
    for bucket in buckets:
        size = _entries(bucket)
        if not any(size < ALIKE * _entries(other) and _entries(other) < ALIKE * size for other in unlike):
            unlike.append(bucket)
    return unlike


def _entries(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))


def _buckets(layers: Sequence[Sequence[int]], scope: str, plan: Plan) -> list[Shapes]:
    """The buckets on which a method of this scope is measured, each as the shapes of its layers.

    They are small buckets, and the median and the largest bucket that the method has in this job, the smallest first.
    """
    sizes, small = [math.prod(shape) for shape in layers], [bucket_shapes(layers, target) for target in TARGETS]
    if scope == "layer":
        plan, small = per_layer(sizes), [(layer_shape(layers, target),) for target in TARGETS]
    elif scope == "model":
        plan = merge_all(sizes)
    return sorted(_unlike(own_buckets(layers, plan) + small), key=_entries)


def padded(shapes: Shapes, workers: int) -> Shapes:
    """The shapes with more rows, or with another layer, so that all workers have equally long parts of the bucket.

    The messages of the other workers are copies of this worker's messages, so their parts must be as long as its part.
    """
    multiple = math.lcm(*WORKERS, workers)  # a bucket has the same size for all numbers of workers that are measured
    if len(shapes) == 1:
        rows, columns = _matrix(shapes[0])
        step = multiple // math.gcd(columns, multiple)
        return ((-(-rows // step) * step, *shapes[0][1:]),)
    missing = -_entries(shapes) % multiple
    return (*shapes, (missing,)) if missing else shapes


def chosen(names: Sequence[str] | None) -> tuple[dict[str, dict], dict[str, str]]:
    """The descriptions of the methods to measure, by name, and a reason per omitted method.

    ``names``: the methods, all if None; baselines are always measured.
    """
    methods, left_out = {}, {}
    for name in plugins.names("methods"):
        try:
            method = method_info(name)
            if method["uncompressed"] or (names is not None and name not in names and not method["baseline"]):
                continue
            if issubclass(method_class(name), LocalSteps):
                left_out[name] = LOCAL_STEPS
            elif method["plan"] == "ratios":
                left_out[name] = NEEDS_PLAN
            else:
                methods[name] = method
        except Exception as error:  # the job must continue, whatever a plug-in raises
            if names is None or name in names:
                left_out[name] = _reason(error)
    return methods, left_out


def expected_s(methods: int, layers: Sequence[Sequence[int]], plan: Plan, selection: Sequence[dict]) -> float:
    """A rough estimate of the time of ``measure``, from the time of a Top-K in the rows of ``selection_rows``."""
    sizes = [_entries(shapes) for shapes in _buckets(layers, "size", plan)]
    each_s = max((row["seconds"] / row["entries"] for row in selection if row["operation"] == "top-k"), default=0.0)
    seconds = [(1 + _repeats(entries)) * (EXCHANGE_IN_TOPKS * each_s * entries + LEAST_EXCHANGE_S) for entries in sizes]
    return methods * len(WORKERS) * sum(seconds)


def measure(
    methods: Mapping[str, dict],
    layers: Sequence[Sequence[int]],
    plan: Plan,
    marks: Marks,
    device: torch.device,
    reordered: bool = False,
    other_memory: bool = False,
) -> tuple[list[dict], dict[str, str]]:
    """Measure the local work and the messages of methods; return a row per method, and a reason per failed method.

    ``methods``: from ``chosen``. ``layers``: the shapes of the job's parameters, in the order of their gradients, all
    with entries. ``plan``: the job's buckets of them. A hook copies gradients and aggregates if they are not in the
    memory of its buckets. ``reordered``: whether the job's buckets have layers in another order; elementwise methods
    ignore it. ``other_memory``: whether no gradient is in this memory, or gradients have another dtype.
    """
    rows, failed = [], {}
    per_step_s = _per_step_s(marks, device)
    for name, method in methods.items():
        try:
            scope = method["scope"]
            merges_buckets = scope == "model" and len(plan) > 1
            order_matters = scope != "layer" and not method_class(name).elementwise
            copies = other_memory or merges_buckets or (reordered and order_matters)
            sample = partial(_sample, marks=marks, device=device, copies=copies, per_step_s=per_step_s)
            options, samples = _samples(name, method["fields"], _buckets(layers, scope, plan), sample)
        except Exception as error:  # the job must continue, whatever a plug-in raises
            failed[name] = _reason(error)
        else:
            facts = {key: method[key] for key in ("title", "scope", "baseline")}
            rows.append({"name": name, **facts, "options": options, "samples": samples})
    return rows, failed


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _samples(
    name: str, fields: dict, shapes: Sequence[Shapes], sample: Callable[..., tuple[dict, float]]
) -> tuple[dict, list[dict]]:
    """The options and samples of a method, with compiled selection if this device supports it."""
    options: dict[str, Any] = {"ratio": RATIO} if "ratio" in fields else {}
    plain, *compiled = fields.get("selection", {}).get("choices", [None])
    for selection in reversed(compiled):
        chosen = options | {"selection": selection}
        with suppress(Exception):  # such as a missing compiler, which Triton reports in its first kernel
            return chosen, _sampled(lambda: method_class(name)(**chosen), shapes, sample)  # noqa: B023
    chosen = options | ({"selection": plain} if plain else {})
    return chosen, _sampled(lambda: method_class(name)(**chosen), shapes, sample)


def _sampled(
    make: Callable[[], Method], shapes: Sequence[Shapes], sample: Callable[..., tuple[dict, float]]
) -> list[dict]:
    samples: list[dict] = []
    for of_bucket in shapes:
        took_s = 0.0
        for workers in WORKERS:
            try:
                row, seconds = sample(make(), of_bucket, workers)
            except torch.OutOfMemoryError:
                if not samples:
                    raise
                return samples
            samples.append(row)
            took_s += seconds
        if took_s > LIMIT_S:
            break
    return samples


def _sample(
    method: Method, shapes: Shapes, workers: int, marks: Marks, device: torch.device, copies: bool, per_step_s: float
) -> tuple[dict, float]:
    """The amortised work and traffic of one bucket in a hook's step, and the time of the measurement.

    ``copies``: whether the hook copies gradient and aggregate. ``per_step_s``: what a step takes without the bucket.
    """
    shapes = padded(shapes, workers)
    size = _entries(shapes)
    generator = torch.Generator(device).manual_seed(size)
    bucket = Bucket(0, torch.randn(size, generator=generator, device=device) / workers, shapes)
    mirror = Mirror(workers, device)
    transport = _CountingTransport(ALL_GATHER, mirror, "indices", "engine", {})
    method.warm_start(bucket, workers)
    arrived = torch.empty_like(bucket.gradient) if copies else bucket.gradient
    exchange = _HookExchange(method, bucket, arrived, transport)
    phases: dict[str, list[int]] = {}
    for step in range(1, method.cycle + 1):
        phases.setdefault(method.phase(step), []).append(_turn_of_rank_0(step, method.cycle, workers))
    rows, took_s = [], 0.0
    for phase, steps in phases.items():
        for repeat in range(1 + _repeats(size)):
            arrived.normal_(generator=generator)  # a new gradient per step, as in training
            mirror.reset(observes=not repeat)
            context = StepContext(steps[repeat % len(steps)], 0 if repeat else workers - 1, workers, 0.1)
            seconds = max(0.0, marks.timed(partial(exchange.step, context)) - per_step_s)
            if repeat:  # the first repeat is for warm-up and compilation, as another rank
                took_s += seconds
                traffic = transport.traffic
                rows.append((phase, len(steps) / method.cycle, {
                    "seconds": seconds, **transport.kinds, "summed_bytes": traffic.summed,
                    "gathered_bytes": traffic.gathered, "message_bytes": traffic.messages,
                }))  # fmt: skip
    amortised = {
        key: float(stats.amortised((values[key], phase, share) for phase, share, values in rows)) for key in rows[0][2]
    }
    return {"entries": size, "workers": workers, **amortised}, took_s


def _per_step_s(marks: Marks, device: torch.device) -> float:
    """Seconds of what a hook does once per step, whatever its number of buckets."""
    bucket = Bucket(0, torch.ones(1, device=device), ((1,),))
    transport = CollectiveTransport(ALL_GATHER, Mirror(1, device), "indices", "engine", {})
    exchange = _EmptyExchange(Method(), bucket, bucket.gradient, transport)
    return marks.median(partial(exchange.step, StepContext(1, 0, 1, 0.1)))


def _repeats(entries: int) -> int:
    return REPEATS if entries <= LARGE else min(REPEATS, REPEATS_IF_LARGE)


def _turn_of_rank_0(step: int, cycle: int, workers: int) -> int:
    """The first step from ``step`` on that is at the same place of the cycle, and at which it is rank 0's turn if
    workers take turns; ``step`` if there is none.

    Methods give the turn to the rank that is the step modulo the number of workers.
    """
    return next((later for later in range(step, step + cycle * workers, cycle) if later % workers == 0), step)


def selection_rows(sizes: Sequence[int], marks: Marks, device: torch.device) -> list[dict]:
    """The time to select 1 % of the entries, by each implementation, and to round all entries to 16 bits and back.

    ``sizes``: the numbers of entries for which this is measured, except those for which memory is too small.
    """
    rows = []
    for entries in sizes:
        with suppress(torch.OutOfMemoryError):
            rows += _selection_rows(entries, marks, device)
    return rows


def _selection_rows(entries: int, marks: Marks, device: torch.device) -> list[dict]:
    from dlgs_bench.exchange.selection import IMPLEMENTATIONS, Threshold, TopK, implementation

    generator = torch.Generator(device).manual_seed(entries)
    gradient = torch.randn(entries, generator=generator, device=device)

    def select(take: Callable[..., Any], rule: TopK | Threshold) -> Any:
        return take(gradient.clone(), rule)

    def round_to(dtype: torch.dtype) -> Tensor:
        return gradient.to(dtype).float()

    works: dict[tuple[str, str], Callable[[], Any]] = {}
    for name in IMPLEMENTATIONS:
        try:
            take = implementation(name).take
        except Exception:  # the job must continue, also where nothing can be compiled
            continue
        rules: dict[str, TopK | Threshold] = {
            "top-k": TopK(max(1, entries // 100)),
            "threshold": Threshold(2.576),  # 1 % of normal entries reach it
        }
        for operation, rule in rules.items():
            works[operation, name] = partial(select, take, rule)
    for dtype in ("float16", "bfloat16"):
        works[dtype, "torch"] = partial(round_to, getattr(torch, dtype))
    rows = []
    for (operation, name), work in works.items():
        with suppress(Exception):  # such as a missing compiler, which Triton reports in its first kernel
            seconds = marks.median(work)
            rows.append({"operation": operation, "implementation": name, "entries": entries, "seconds": seconds})
    return rows
