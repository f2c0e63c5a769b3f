"""Predictions from a job's profile, for other links and numbers of workers. No torch, no pandas.

The job computes as it was recorded. What an operation costs on the job's own network is projected to another network.
A method's own work, its bytes and its requests were measured for two numbers of workers; lines through them give
other numbers. ``models`` merges layers at will; ``script_models`` predicts the recorded script as it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dlgs_bench.buckets import Plan, fill, merge_all, merge_up_to, per_layer
from dlgs_bench.engines import FIRST_BYTES
from dlgs_bench.errors import listed, meant, short_repr
from dlgs_bench.spec import UNCOMPRESSED
from dlgs_bench.timemodel import iterations
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR, outside_checked
from dlgs_bench.timemodel.cost_curve import Cost, Curve, Number
from dlgs_bench.timemodel.iterations import (
    LEAST_SAVED,
    NEAR,
    RATES_MBIT,
    REACHED,
    UTILISATIONS,
    bisected,
    break_even_mbit,
    lowest_mbit,
    paying_mbit,
    predicted,
    saved,
)
from dlgs_bench.timemodel.job_profile import DDP_DEFAULTS, DTYPES, ONE_EXCHANGE
from dlgs_bench.timemodel.links import Network, project_costs
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import ALL_GATHER, FLOAT32_BYTES, Traffic

BUCKETS = tuple(2**power for power in range(12, 31))  # entries of the merged buckets that are tried
MOST_ENTRIES = 10**13
LEAST_S = 1e-9  # lower bound of computing and of an operation
LEAST_REQUESTS = 1e-6  # lower bound of a method's requests, by which its bytes are divided
SCRIPT = "script"  # uncompressed too, with the buckets that the job's script has
DENSE_NAMES = (UNCOMPRESSED, SCRIPT)
BUCKETS_MIB = tuple(2.0**power for power in range(-2, 11))  # values of DistributedDataParallel's bucket_cap_mb
KINDS = {  # of jobs, in words
    "hsdp": "a job with hybrid sharding",
    "horovod": "a job with Horovod",
    "distributed": "several processes in which nothing that the probe knows exchanges the gradients",
}
SEGMENT_BYTES = 2**20  # Gloo: the largest part of an all-reduce that is sent at once; two parts are in flight
MOST_LOCAL_STEPS = 500  # what the authors of DiLoCo make (arXiv 2311.08105); more are marked
# Operation -> the key of its requests, the key of its bytes, and the traffic of one float32 word.
OPERATION_FIELDS = {
    "all-reduce": ("sums", "summed_bytes", Traffic(summed=FLOAT32_BYTES)),
    "all-gather": ("gathers", "gathered_bytes", Traffic(gathered=FLOAT32_BYTES)),
    "message": ("messages", "message_bytes", Traffic(messages=FLOAT32_BYTES)),
}


@dataclass(frozen=True)
class Job:
    """A job as it was recorded.

    ``shapes``: of the tensors, in the order in which gradients arrive; ``backward_s``: seconds per tensor.
    ``rest_s``: what comes after the exchange. ``lengths``: bytes per tensor. ``here``: the network of the recording, of
    infinite rate if the profile is of one process. ``operations``: seconds by float32 words, of an all-reduce without
    the waits between its segments; ``segment_ms``: the latency for which each of them waited.
    ``buffer_words``: of the buffers that rank 0 broadcasts before forward, which ``forward_s`` contains.
    ``unexplained_s``: by how much the recorded iteration was longer than the time model gives.
    ``processors``: processor seconds of an operation on a worker, by float32 words; ``delays``: the part of them that
    delays computing, 1 if no core is idle.
    ``passes``, ``exchanges``: of a step: forward and backward passes, and how many of them exchanged gradients; None if
    the profile is too old to contain it.
    ``kind``: as in the profile.
    """

    shapes: list[list[int]]
    forward_s: float
    backward_s: list[float]
    rest_s: float
    lengths: list[int]
    here: Network
    operations: dict[str, Curve]
    segment_ms: float
    recorded_s: float
    device: str
    backend: str = "none"
    buffer_words: float = 0.0
    unexplained_s: float = 0.0
    processors: dict[str, Curve] = field(default_factory=dict)
    delays: float = 0.0
    passes: int = 1
    exchanges: int | None = 1
    kind: str = "ddp"

    @property
    def sizes(self) -> list[int]:
        """Entries per tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def latency_ms(self) -> float:
        """The latency of the recorded network."""
        return _recorded_latency_ms(self.operations, self.processors)

    def with_latency(self, there: Network) -> Network:
        """The network ``there`` with the latency of the recorded network added."""
        return replace(there, latency_ms=there.latency_ms + self.latency_ms)

    @property
    def words(self) -> float:
        """Float32 words per entry of a gradient."""
        return sum(self.lengths) / FLOAT32_BYTES / sum(self.sizes)

    @property
    def alone_s(self) -> float:
        """One iteration without communication. The unexplained time counts as computing."""
        return self.forward_s + sum(self.backward_s) + self.rest_s + self.unexplained_s


def read_job(profile: dict, hooked: bool = False) -> Job:
    """The job of a valid profile; ValueError in one line if nothing can be predicted from it.

    ``hooked``: layers are in the order of a communication hook's buckets, and their gradients arrive when
    DistributedDataParallel gives them to the hook.
    """
    rows = [row for row in profile["parameters"] if row["arrived_s"] is not None and math.prod(row["shape"])]
    if hooked:
        rows, arrived = _delivered(rows, profile["job"]["ddp"])
    else:
        rows.sort(key=lambda row: row["arrived_s"])
        arrived = np.array([row["arrived_s"] for row in rows])
    sizes = [math.prod(row["shape"]) for row in rows]
    if not 0 < sum(sizes) <= MOST_ENTRIES:
        raise ValueError("parameters: they have no entry, or more than 1e13; record the profile again")
    times = {part: spread["median_s"] for part, spread in profile["times"].items()}
    rest_s = times["optimizer"] + times["other"] + max(0.0, times["backward"] - float(arrived[-1]))
    workers = profile["job"]["workers"]
    if workers == 1:
        rest_s += times["waiting"]  # a single process does not wait: it clips gradients, for example
    rows_of = {name: [row for row in profile["network"] if row["operation"] == name] for name in OPERATION_FIELDS}
    operations = {name: _curve(rows, "seconds") for name, rows in rows_of.items()}
    timed = all(row["processor_s"] is not None for row in profile["network"])
    processors = {name: _curve(rows if timed else [], "processor_s") for name, rows in rows_of.items()}
    segment_ms = 0.0
    if profile["job"]["backend"] == "gloo":
        segment_ms = _segment_ms(operations, workers, _recorded_latency_ms(operations, processors))
    operations["all-reduce"] = _without_waits(operations["all-reduce"], segment_ms, workers)
    idle_cores = profile["job"]["idle_cores"]
    job = Job(
        shapes=[row["shape"] for row in rows],
        forward_s=times["forward"] + times["loss"],
        backward_s=np.diff(arrived, prepend=0.0).tolist(),
        rest_s=rest_s,
        lengths=_lengths(rows),
        here=Network(workers, _rate_mbit(operations, workers)),
        operations=operations,
        segment_ms=segment_ms,
        recorded_s=times["iteration"],
        device=profile["job"]["device"],
        backend=profile["job"]["backend"],
        buffer_words=(profile["job"]["ddp"] or DDP_DEFAULTS)["buffer_bytes"] / FLOAT32_BYTES,
        processors=processors,
        # A GPU computes while the host waits for it.
        delays=0.0 if idle_cores is None or profile["job"]["device"] == "cuda" else max(0.0, 1 - idle_cores),
        passes=profile["job"]["passes"],
        exchanges=profile["job"]["exchanges"] if profile["job"]["kind"] in ("ddp", "hsdp") else 1,
        kind=profile["job"]["kind"],
    )
    if job.alone_s < LEAST_S:
        raise ValueError(f"times: computing takes {job.alone_s:g} s; record the profile again")
    return job


def _delivered(rows: list[dict], ddp: dict) -> tuple[list[dict], np.ndarray]:
    """The parameters in the order of a hook's buckets, and when DistributedDataParallel has given them to the hook.

    A parameter is given with its whole bucket, and a hook begins its own buckets in their order. ``rows``: in the order
    of model.parameters().
    """
    arriving = sorted(rows, key=lambda row: row["arrived_s"])
    full_s: dict[int, float] = {}
    for start, stop in fill(_lengths(arriving), ddp["first_bucket_bytes"], ddp["bucket_bytes"]):
        full_s |= dict.fromkeys(map(id, arriving[start:stop]), arriving[stop - 1]["arrived_s"])
    layers = rows[::-1]
    return layers, np.maximum.accumulate([full_s[id(row)] for row in layers])


def _lengths(rows: list[dict]) -> list[int]:
    """Bytes of each parameter."""
    return [math.prod(row["shape"]) * DTYPES[row["dtype"]] for row in rows]


def _curve(rows: list[dict], key: str) -> Curve:
    """``key`` of an operation by float32 words. A time above the time of a larger tensor is noise, and is lowered."""
    if not rows:
        return Curve((1.0, 2.0), (0.0, 0.0))
    seconds: dict[float, float] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        seconds[max(1.0, row["bytes"] / FLOAT32_BYTES)] = max(LEAST_S, row[key])
    return _rising(tuple(seconds), np.array(list(seconds.values())))


def _rising(entries: tuple[float, ...], seconds: np.ndarray) -> Curve:
    """A curve in which a time above the time of a larger tensor is lowered."""
    return Curve(entries, tuple(np.minimum.accumulate(seconds[::-1])[::-1].tolist()))


def _segment_ms(operations: dict[str, Curve], workers: int, latency_ms: float) -> float:
    """The latency for which the segments of the recorded sums waited: at most ``latency_ms`` of the recorded network.

    If messages take long without latency, it is less, since sums are not faster on the links than other operations.
    """
    summed = operations["all-reduce"]
    words, seconds = (values[-2:] for values in (summed.entries, summed.seconds))
    waits = np.ptp(_more_waits(np.array(words), workers))
    if not waits:
        return latency_ms
    rate_mbit = _rate_mbit({name: curve for name, curve in operations.items() if name != "all-reduce"}, workers)
    sent = ALL_GATHER.link_bytes(OPERATION_FIELDS["all-reduce"][2], 1, workers) * np.ptp(words)
    waited_s = np.ptp(seconds) - sent * 8e-6 / rate_mbit
    return float(np.clip(waited_s / waits / 2e-3, 0.0, latency_ms))


def _without_waits(summed: Curve, latency_ms: float, workers: int) -> Curve:
    """The seconds of an all-reduce without the waits between its segments."""
    waits_s = 2e-3 * latency_ms * _more_waits(np.array(summed.entries), workers)
    return _rising(summed.entries, np.maximum(0.0, summed.seconds - waits_s))


def _rate_mbit(operations: dict[str, Curve], workers: int) -> float:
    """The rate of the links: the highest rate that an operation reaches between its two largest sizes."""
    rates = []
    for name, curve in operations.items():
        if len(curve.seconds) < 2:
            continue
        grown_s = curve.seconds[-1] - curve.seconds[-2]
        if grown_s > 0:
            words = curve.entries[-1] - curve.entries[-2]
            rates.append(ALL_GATHER.link_bytes(OPERATION_FIELDS[name][2], 1, workers) * words * 8e-6 / grown_s)
    return max(rates, default=math.inf)


def _extended(curve: Curve) -> Curve:
    """``curve`` with a point beyond every size, on the line through its last two points.

    Beyond its last point, a curve would multiply also what does not depend on the size.
    """
    far = 10.0 * MOST_ENTRIES
    if len(curve.entries) < 2:
        return Curve((*curve.entries, far), (*curve.seconds, float(curve(far))))
    slope = (curve.seconds[-1] - curve.seconds[-2]) / (curve.entries[-1] - curve.entries[-2])
    return Curve((*curve.entries, far), (*curve.seconds, curve.seconds[-1] + slope * (far - curve.entries[-1])))


def projected(job: Job, there: Network) -> dict[str, Cost]:
    """Seconds of each operation by float32 words, on another network.

    ``there``: its latency is added to the latency that the recorded network has.
    """
    costs_of, nothing = {}, Curve((1.0,), (0.0,))
    for name, (_, _, traffic) in OPERATION_FIELDS.items():
        here, other = replace(job.here, latency_ms=job.latency_ms), job.with_latency(there)
        if name == "message":  # a message is between two hosts
            here, other = replace(here, workers=2), replace(other, workers=2)
        costs = Costs(0.0, [], nothing, _extended(job.operations[name]), nothing)
        costs_of[name] = project_costs(costs, ALL_GATHER, traffic, here, other).communicate
    summed, latency_ms = costs_of["all-reduce"], job.segment_ms + there.latency_ms
    if job.backend == "gloo":
        costs_of["all-reduce"] = lambda words: summed(words) + 2e-3 * latency_ms * _more_waits(words, there.workers)
    return costs_of


def _processors(job: Job, workers: int) -> dict[str, Curve]:
    """Processor seconds of each operation on a worker, with another number of workers.

    The time of the smallest message grows with the number of the other workers, and the rest with the bytes.
    """
    curves = dict(job.processors)
    for name in {"all-reduce", "all-gather"} & set(curves) if job.here.workers > 1 else ():
        traffic, curve = OPERATION_FIELDS[name][2], _extended(curves[name])
        bytes_here, bytes_there = (ALL_GATHER.link_bytes(traffic, 1, each) for each in (job.here.workers, workers))
        fixed_s, seconds = curve.seconds[0], np.array(curve.seconds)
        rounds = (workers - 1) / (job.here.workers - 1)
        scaled = fixed_s * rounds + (seconds - fixed_s) * bytes_there / bytes_here
        curves[name] = Curve(curve.entries, tuple(scaled.tolist()))
    return curves


def recorded_broadcast_s(job: Job) -> float:
    """Seconds of the broadcast of buffers in the recording, which ``forward_s`` contains."""
    return float(projected(job, job.here)["message"](job.buffer_words)) if job.buffer_words else 0.0


def _more_waits(words: Number, workers: int) -> Number:
    """Round trips of Gloo's ring all-reduce in addition to the 2 (N - 1) that the time model has.

    A worker's chunk is sent in at least two segments. Two segments are in flight, so each pair waits once per round. A
    single word is one segment.
    """
    segments: Any = np.maximum(2, np.ceil(words * FLOAT32_BYTES / (workers * SEGMENT_BYTES)))
    return (workers - 1) * (segments - 2 - (np.asarray(words) <= 1))


@dataclass(frozen=True)
class _Load:
    """What one operation carries in a method's exchange: requests and bytes of each, by (entries, workers)."""

    requests: Callable[[np.ndarray, int], np.ndarray]
    bytes_each: Callable[[np.ndarray, int], np.ndarray]


class JobModel:
    """The time model of one job and one method, or uncompressed if ``method`` is None.

    It implements ``iterations.Model``. ``method``: a row of the profile's ``methods``. ``plans``: what is tried instead
    of the plans of the method's scope. ``hooked``: the method runs in a hook, which exchanges a flag at the end.
    ``name``, ``title``: of a model of uncompressed.
    """

    def __init__(
        self,
        job: Job,
        method: dict | None = None,
        plans: Sequence[Plan] = (),
        hooked: bool = False,
        name: str = UNCOMPRESSED,
        title: str = "uncompressed",
    ) -> None:
        self.job = job
        self.name: str = method["name"] if method else name
        self.title: str = method["title"] if method else title
        self.options = method["options"] if method else {}
        ratio = self.options.get("ratio")
        self.label = f"{self.title}, ratio {ratio:g}" if isinstance(ratio, int | float) else self.title
        self._method, self.hooked = method, hooked
        total = sum(job.sizes)
        self._grid = np.unique([float(min(2**power, total)) for power in range(4, 45)])
        if method:
            self._loads = {
                operation: _load(method["samples"], *keys[:2]) for operation, keys in OPERATION_FIELDS.items()
            }
            self._seconds_by = _fit(_steady(method["samples"]), lambda row: row["seconds"], float)
        self._ends = np.concatenate([[0], np.cumsum(job.sizes)])
        self._backward_ends = np.concatenate([[0.0], np.cumsum(job.backward_s)])
        self.plans = list(plans) or self._candidates()
        self._arrays = [np.array(plan) for plan in self.plans]
        self._iterations: dict[Network, float] = {}

    def _candidates(self) -> list[Plan]:
        """The plans that are tried. They do not depend on the network, so faster links are never predicted slower."""
        sizes = self.job.sizes
        scope = self._method["scope"] if self._method else "size"
        if scope == "model":
            return [merge_all(sizes)]
        if scope == "layer":
            return [per_layer(sizes)]
        merged = [merge_up_to(sizes, most=most) for most in BUCKETS]
        plans = {tuple(plan): plan for plan in (per_layer(sizes), *merged, merge_all(sizes))}
        return list(plans.values())

    def iteration_s(self, there: Network) -> float:
        """One iteration on a network, with the best of the plans."""
        if there not in self._iterations:
            costs = self.costs(there)
            self._iterations[there] = min(self._timed(costs, plan) for plan in self._arrays)
        return self._iterations[there]

    def plan(self, there: Network) -> Plan:
        """The plan with the shortest iteration on a network."""
        return self.plans[self.fastest(there)]

    def fastest(self, there: Network) -> int:
        """The index in ``plans`` of the plan with the shortest iteration on a network."""
        return self._fastest(self.costs(there))

    def _fastest(self, costs: Costs) -> int:
        return min(range(len(self._arrays)), key=lambda index: self._timed(costs, self._arrays[index]))

    def saved(self, there: Network) -> dict[str, float]:
        """Seconds that an iteration would save, with the same plan, if one thing cost nothing."""
        costs = self.costs(there)
        plan = self._arrays[self._fastest(costs)]
        unlimited = replace(there, rate_mbit=math.inf)
        prompt = replace(unlimited, latency_ms=-self.job.latency_ms)
        return saved(costs, self.costs(unlimited), self.costs(prompt), lambda other: self._timed(other, plan))

    def costs(self, there: Network) -> Costs:
        """The costs of the job's exchanges on a network, by entries of a bucket."""
        entries, operations = self._grid, projected(self.job, there)
        sparsify_s = self._seconds_by(entries, there.workers) if self._method else np.zeros_like(entries)
        sent_s = self._exchanged_s(operations, there.workers)
        delay_s = np.zeros_like(entries)
        if self.job.delays:
            delay_s = self.job.delays * self._exchanged_s(_processors(self.job, there.workers), there.workers)
        grid = tuple(entries.tolist())
        after_s = np.full_like(entries, float(operations["all-reduce"](1.0)) if self.hooked else 0.0)
        if not self._method and self.job.backend == "gloo":
            overlapped_s = self._overlapped_s(sent_s, there)
            sent_s, after_s = sent_s - overlapped_s, after_s + overlapped_s
        return Costs(
            self.job.forward_s + self._buffers_s(operations),
            self.job.backward_s,
            Curve(grid, tuple(sparsify_s.tolist())),
            Curve(grid, tuple(sent_s.tolist())),
            Curve(grid, tuple(after_s.tolist())),
            interference=Curve(grid, tuple(delay_s.tolist())),
        )

    def _overlapped_s(self, sent_s: np.ndarray, there: Network) -> np.ndarray:
        """The part of each sum's waits for latency in which Gloo makes the next sum: it has two threads."""
        words, rounds = self._grid * self.job.words, 2 * (there.workers - 1)
        waits = rounds + _more_waits(words, there.workers)  # round trips
        return np.minimum(2e-3 * self.job.with_latency(there).latency_ms * waits, sent_s / 2)

    def _exchanged_s(self, operations: Mapping[str, Cost], workers: int) -> np.ndarray:
        """Seconds of the operations of one exchange, for each bucket in the grid."""
        if not self._method:
            return operations["all-reduce"](self._grid * self.job.words)
        seconds = np.zeros_like(self._grid)
        for operation, load in self._loads.items():
            words = load.bytes_each(self._grid, workers) / FLOAT32_BYTES
            seconds += load.requests(self._grid, workers) * self._sent_s(operations, operation, words)
        return seconds

    def _sent_s(self, operations: Mapping[str, Cost], operation: str, words: np.ndarray) -> np.ndarray:
        """Seconds of an operation. On Gloo, a gathered message of more than ``FIRST_BYTES`` is sent in two parts."""
        first = FIRST_BYTES / FLOAT32_BYTES
        if operation != "all-gather" or self.job.backend != "gloo":
            return operations[operation](words)
        whole, rest = operations[operation](np.minimum(words, first)), operations[operation](words - first)
        return whole + np.where(words > first, rest, 0.0)

    def _buffers_s(self, operations: Mapping[str, Cost]) -> float:
        """Seconds by which the broadcast of buffers takes longer on a network than in the recording, at least 0.

        ``operations``: projected to that network.
        """
        if not self.job.buffer_words:
            return 0.0
        there_s = float(operations["message"](self.job.buffer_words))
        return max(0.0, there_s - recorded_broadcast_s(self.job))

    def _timed(self, costs: Costs, plan: np.ndarray) -> float:
        """The sum of ``schedule(...).iteration_s``, ``rest_s`` and ``unexplained_s``, for costs without contention."""
        start, stop = plan[:, 0], plan[:, 1]
        entries = self._ends[stop] - self._ends[start]
        delays = np.cumsum(costs.interference(entries))
        ready = costs.forward_s + self._backward_ends[stop] + np.cumsum(costs.sparsify(entries))
        ready[1:] += delays[:-1]
        behind = np.cumsum(costs.communicate(entries)[::-1])[::-1]  # this bucket's communication and all after it
        return float(np.max(ready + behind) + costs.latency(entries[-1]) + self.job.rest_s + self.job.unexplained_s)


def _steady(samples: Sequence[dict]) -> Sequence[dict]:
    """The samples of a method that only sums, with equal seconds for all numbers of workers; others as they are.

    The smallest seconds count: the method's own work is the same, and the others are disturbed.
    """
    if any(row["gathers"] or row["messages"] for row in samples):
        return samples
    least: dict[int, float] = {}
    for row in samples:
        least[row["entries"]] = min(row["seconds"], least.get(row["entries"], math.inf))
    return [row | {"seconds": least[row["entries"]]} for row in samples]


def _load(samples: Sequence[dict], requests: str, sent: str) -> _Load:
    """The load of an operation. ``requests``, ``sent``: the keys of its requests and bytes in ``samples``."""
    return _Load(
        _fit(samples, lambda row: row[requests], math.log2, extended=False),
        _fit(
            samples,
            lambda row: row[sent] / max(row[requests], LEAST_REQUESTS),
            lambda workers: 1 / workers,
            least=lambda workers: 1 / workers,
        ),
    )


def _fit(
    samples: Sequence[dict],
    value: Callable[[dict], float],
    basis: Callable[[int], float],
    extended: bool = True,
    least: Callable[[int], float] = lambda workers: 1.0,
) -> Callable[[np.ndarray, int], np.ndarray]:
    """A function of (entries, workers): along the entries of the samples, and a + b basis(workers), at least 0.

    ``extended``: beyond the largest sample the value grows in proportion; otherwise it stays. Beyond the largest number
    of workers it is at least the value there, multiplied by the change of ``least``: a line through one disturbed
    sample may fall below 0.
    """
    by_entries: dict[int, dict[int, float]] = {}
    for row in samples:
        by_entries.setdefault(row["entries"], {})[row["workers"]] = value(row)
    complete = max(map(len, by_entries.values()))  # a large size may have been too much for the memory of some
    sizes = sorted(size for size, values in by_entries.items() if len(values) == complete)
    most = max(row["workers"] for row in samples)
    lines = [_line([(basis(workers), y) for workers, y in by_entries[size].items()]) for size in sizes]

    def value_at(entries: np.ndarray, workers: int) -> np.ndarray:
        values = np.array([max(0.0, a + b * basis(workers)) for a, b in lines])
        if workers > most:
            floors = [max(0.0, a + b * basis(most)) * least(workers) / least(most) for a, b in lines]
            values = np.maximum(values, floors)
        if extended:
            return Curve(tuple(map(float, sizes)), tuple(values.tolist()))(entries)
        return np.interp(entries, sizes, values)

    return value_at


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """a and b of y = a + b x through the points (least squares); b is 0 if there is only one x."""
    x, y = map(np.array, zip(*points, strict=True))
    if np.ptp(x) == 0:
        return float(y.mean()), 0.0
    b, a = np.polyfit(x, y, 1)
    return float(a), float(b)


def slowed(job: Job, slowdown: float) -> Job:
    """The job on a device that computes ``slowdown`` times as slowly, and broadcasts as fast as before."""
    backward_s = [seconds * slowdown for seconds in job.backward_s]
    broadcast_s = min(recorded_broadcast_s(job), job.forward_s)
    forward_s = broadcast_s + slowdown * (job.forward_s - broadcast_s)
    scaled = {key: getattr(job, key) * slowdown for key in ("rest_s", "unexplained_s")}
    return replace(job, backward_s=backward_s, forward_s=forward_s, **scaled)


def models(profile: dict, names: Sequence[str] | None = None, slowdown: float = 1.0) -> list[JobModel]:
    """The time models of uncompressed, which comes first, and of the profile's methods, or those in ``names``.

    ``slowdown``: by which the job's computing, but no selection and no exchange, is made slower. ValueError in one line
    for a name that the profile does not have.
    """
    job = slowed(read_job(profile), slowdown)
    return [JobModel(job), *(JobModel(job, method) for method in _chosen(profile, names))]


def script_models(
    profile: dict, names: Sequence[str] | None = None, slowdown: float = 1.0, rehearsed: bool = False
) -> list[JobModel]:
    """The models of the recorded script with its own buckets, if it uses DistributedDataParallel; otherwise ``models``.

    Uncompressed has the best value of ``bucket_cap_mb``. The second model, ``SCRIPT``, has the value of the script.
    Methods have this value too, and run in a ``DDPHook``. The part of the recorded iteration that the time model does
    not explain, such as copies of gradients and waiting for the slowest worker, counts as computing in every
    prediction.

    ``slowdown``: by which computing, but no exchange, is made slower; selection too, if the script uses
    DistributedDataParallel. ``rehearsed``: workers wait instead of computing, so the slowdown is not for selection, and
    exchanges delay no computing.
    """
    if rehearsed:
        profile = profile | {"job": profile["job"] | {"idle_cores": None}}
    ddp = profile["job"]["ddp"]
    if ddp is None:
        return models(profile, names, slowdown)
    filled = ddp["first_bucket_bytes"], ddp["bucket_bytes"]
    job = read_job(profile)
    own = fill(job.lengths, *filled)
    unexplained_s = max(0.0, job.recorded_s - JobModel(job, plans=[own]).iteration_s(job.here))
    job = slowed(replace(job, unexplained_s=unexplained_s), slowdown)
    hooked = slowed(replace(read_job(profile, hooked=True), unexplained_s=unexplained_s), slowdown)
    caps = [int(mib * 2**20) for mib in BUCKETS_MIB]
    script = JobModel(job, plans=[own], name=SCRIPT, title="uncompressed, the script's buckets")
    job_models = [JobModel(job, plans=[own, *(fill(job.lengths, cap, cap) for cap in caps)]), script]
    for method in _chosen(profile, names):
        slower = 1.0 if rehearsed else slowdown
        samples = [row | {"seconds": row["seconds"] * slower} for row in method["samples"]]
        plans = [fill(hooked.lengths, *filled)] if method["scope"] in ("size", "plan") else ()
        job_models.append(JobModel(hooked, method | {"samples": samples}, plans, hooked=True))
    return job_models


def bucket_mib(job_models: Sequence[JobModel], there: Network) -> float | None:
    """The best ``bucket_cap_mb`` on a network, or None if it saves less than ``LEAST_SAVED`` of an iteration.

    ``job_models``: from ``script_models``.
    """
    dense, script = job_models[:2]
    if script.name != SCRIPT or dense.iteration_s(there) > (1 - LEAST_SAVED) * script.iteration_s(there):
        return None
    return BUCKETS_MIB[dense.fastest(there) - 1]


def _chosen(profile: dict, names: Sequence[str] | None) -> list[dict]:
    """The methods with these names, and the baselines; ValueError in one line for an unknown name."""
    recorded = {method["name"]: method for method in profile["methods"]}
    for name in names or ():
        if name not in recorded and name != UNCOMPRESSED:
            why = profile["left_out"].get(name)
            titled = {method["title"].casefold(): method["name"] for method in recorded.values()}
            hint = meant(titled.get(name.casefold(), name), recorded)
            reason = f"the probe left it out: {why}" if why else listed(recorded)
            raise ValueError(f"methods: {short_repr(name)} is not in the profile{hint}; {' '.join(reason.split())}")
    return [method for name, method in recorded.items() if names is None or name in names or method["baseline"]]


def utilisation(model: JobModel, there: Network) -> float:
    """The part of an iteration in which the job computes, from 0 to 1."""
    return model.job.alone_s / model.iteration_s(there)


def needed_mbit(model: JobModel, there: Network, least: float = REACHED) -> float:
    """The lowest rate of the links, in Mb/s, at which ``utilisation`` is at least ``least``.

    0 if every rate is enough, infinite if none is. ``there``: workers and latency; its rate is not used.
    """
    return iterations.needed_mbit(model.job.alone_s, model.iteration_s, there, least)


def exchange_s(job: Job, there: Network) -> float:
    """Seconds of an exchange of weights: they are summed in one bucket of float32."""
    return float(projected(job, there)["all-reduce"](sum(job.sizes)))


def local_steps(job: Job, there: Network, least: float) -> int:
    """The number of local steps between two exchanges of weights that makes the utilisation at least ``least``.

    The weights are summed in one bucket of float32. Workers do not compute meanwhile.
    """
    return iterations.local_steps(job.alone_s, exchange_s(job, there), least)


def local_steps_utilisation(job: Job, there: Network, steps: float) -> float:
    """The part of the time in which a job with this number of local steps computes, from 0 to 1."""
    computing_s = steps * job.alone_s
    return computing_s / (computing_s + exchange_s(job, there))


def local_steps_rows(job: Job, there: Network) -> list[dict]:
    """One row per utilisation: its local steps, and the seconds from one exchange of weights to the next.

    ``most_mbit``: the lowest rate of the links at which ``MOST_LOCAL_STEPS`` reach the utilisation.
    """
    rows = []
    for least in UTILISATIONS:
        steps = local_steps(job, there, least)
        most_mbit = lowest_mbit(
            there,
            lambda network: local_steps(job, network, least) <= MOST_LOCAL_STEPS,  # noqa: B023 - called at once
        )
        cycle_s = steps * job.alone_s + exchange_s(job, there)
        rows.append({"utilisation": least, "steps": steps, "cycle_s": cycle_s, "most_mbit": most_mbit})
    return rows


def interval(job_models: Sequence[JobModel], there: Network) -> tuple[float, list[str]]:
    """The factor around a predicted gain, and why it is wider than the factor that was checked.

    Outside the range that was checked, it is the square. It is at least the error of the time model on the job itself.
    """
    dense = job_models[0]
    job = dense.job
    whole = job.with_latency(there)
    reasons = _unchecked(job) + outside_checked(whole, dense.iteration_s(there)) + _more_exchanges(job)
    factor, off = SPEEDUP_FACTOR**2 if reasons else SPEEDUP_FACTOR, _own_error(job_models)
    if off > SPEEDUP_FACTOR:
        reasons.append(f"the recorded iteration differs from the time model by a factor of {off:.2f}")
    return max(factor, off), reasons


def _own_error(job_models: Sequence[JobModel]) -> float:
    """The factor by which the recorded iteration differs from what the time model gives for it; 1 if unknown."""
    job = job_models[0].job
    if job.here.workers == 1 or not job.recorded_s:
        return 1.0
    own_s = explained_s(job_models)
    return max(own_s / job.recorded_s, job.recorded_s / own_s)


def _recorded_latency_ms(operations: dict[str, Curve], processors: dict[str, Curve]) -> float:
    """The latency of the recorded network: half of what the smallest message takes beyond the processors' time.

    It is rounded to 0.01 ms. A profile without processor time has whole milliseconds of half the time of the
    message, since a message without latency takes 0.3 to 1.8 ms on most of the checked machines.
    """
    whole_ms, processor_ms = (1e3 * curves["message"].seconds[0] for curves in (operations, processors))
    if not processor_ms:
        return float(math.floor(whole_ms / 2))
    return max(0.0, round(whole_ms / 2 - processor_ms, 2))


def _unchecked(job: Job) -> list[str]:
    """Why predictions from jobs of this kind were not checked. They were checked from float32 jobs with DDP on CPUs."""
    reasons = ["on a GPU nothing was checked"] if job.device == "cuda" else []
    if job.here.workers == 1:
        reasons.append("a profile of one process, where profiles of several workers were checked")
    elif job.kind != "ddp":
        reasons.append(f"{KINDS.get(job.kind, job.kind)}, where DistributedDataParallel was checked")
    if job.words != 1:
        reasons.append("gradients that are not float32, where float32 was checked")
    return reasons


def _more_exchanges(job: Job) -> list[str]:
    """That the recorded steps exchanged gradients more than once, if they did or may have, or that a hook would."""
    if job.kind == "horovod" and job.passes > 1:
        return [f"HorovodHook would exchange in each of the {job.passes} passes of a step, but {ONE_EXCHANGE}"]
    if job.exchanges == 1 or job.passes == 1:
        return []
    number = f"{job.exchanges} of {job.passes}" if job.exchanges else f"1 or more of {job.passes}"
    return [f"{number} passes of a recorded step exchanged gradients, but {ONE_EXCHANGE}"]


def explained_s(job_models: Sequence[JobModel]) -> float:
    """What the time model alone gives for the recorded iteration. ``job_models``: from ``models``."""
    script = next((model for model in job_models if model.name == SCRIPT), job_models[0])
    return JobModel(replace(script.job, unexplained_s=0.0), plans=script.plans).iteration_s(script.job.here)


def rank(job_models: Sequence[JobModel], there: Network, factor: float) -> list[dict]:
    """One row per model, the fastest first: its iteration, the gain over uncompressed with an interval, and what
    limits it. ``job_models``: as ``models`` returns them."""
    dense_s = job_models[0].iteration_s(there)
    rows = []
    for model in job_models:
        row = predicted(model, there)
        gain, off = dense_s / row["iteration_s"], 1.0 if model.name in DENSE_NAMES else factor
        rows.append(row | {"name": model.name, "label": model.label, "options": model.options, "gain": gain,
                           "gain_low": gain / off, "gain_high": gain * off})  # fmt: skip
    return sorted(rows, key=lambda row: row["iteration_s"])


def inverse(job_models: Sequence[JobModel], there: Network, speedup: float = 1.0) -> list[dict]:
    """One row per model: ``needed_mbit``, and over which rates it has more than ``speedup`` (NaN for uncompressed).

    It has above ``faster_above_mbit`` and below ``faster_below_mbit``. Below ``interval_below_mbit`` the whole interval
    of the predicted speed-up is above ``speedup``. ``limit``: what limits an iteration over links of infinite rate, if
    no link is enough. ``there``: its rate is not used.
    """
    rows = []
    for model in job_models:
        needed, unlimited = needed_mbit(model, there), replace(there, rate_mbit=math.inf)
        limit = predicted(model, unlimited)["limit"] if math.isinf(needed) else iterations.COMPUTING
        above = below = interval_below = math.nan
        if model.name not in DENSE_NAMES:
            above, below = paying_mbit(job_models[0], model, there, speedup)
            interval_below = _interval_below_mbit(job_models, model, there, speedup)
        rows.append({"name": model.name, "label": model.label, "needed_mbit": needed, "limit": limit,
                     "faster_above_mbit": above, "faster_below_mbit": below,
                     "interval_below_mbit": interval_below})  # fmt: skip
    return rows


def _interval_below_mbit(job_models: Sequence[JobModel], model: JobModel, there: Network, speedup: float) -> float:
    """The rate below which the whole interval of ``model``'s predicted speed-up is above ``speedup``.

    The interval is wider outside the checked range, which depends on the rate. So the wide interval counts first; the
    narrow one extends the result as far as the rates above it lie inside the range.
    """

    def factor(rate_mbit: float) -> float:
        return interval(job_models, replace(there, rate_mbit=rate_mbit))[0]

    off = _own_error(job_models)
    wide, narrow = max(SPEEDUP_FACTOR**2, off), max(SPEEDUP_FACTOR, off)
    safe, most = (break_even_mbit(job_models[0], model, there, speedup * one) for one in (wide, narrow))
    if safe in (0.0, most) or factor(safe) > narrow:
        return safe
    most = min(most, RATES_MBIT[-1])
    return most if factor(most) == narrow else bisected(safe, most, lambda rate: factor(rate) > narrow, NEAR)[0]
