"""Predictions from a job's profile, for other links and numbers of workers. No torch, no pandas.

The job computes as it was recorded. What an operation costs on the job's own network is projected to another network.
A method's own work, its bytes and its requests were measured for two numbers of workers; lines through them give
other numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlgs_bench.buckets import Plan, merge_all, merge_up_to, per_layer
from dlgs_bench.errors import listed, meant, shown
from dlgs_bench.timemodel.checked_range import WITHIN, outside_checked
from dlgs_bench.timemodel.curves import Curve
from dlgs_bench.timemodel.iterations import break_even_mbit, predicted, saved
from dlgs_bench.timemodel.job_profile import DTYPES
from dlgs_bench.timemodel.links import Network, project_costs
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import ALL_GATHER, DENSE, Traffic

BUCKETS = tuple(2**power for power in range(12, 31))  # entries of the merged buckets that are tried
MOST_ENTRIES = 10**13
LEAST_S = 1e-9  # lower bound of computing and of an operation
UNCOMPRESSED = "none"
SLOWEST_MBIT, FASTEST_MBIT = 1e-3, 1e9  # limits of the search for a rate
REACHED = 0.9  # utilisation from which on communication counts as hidden
UTILISATIONS = (0.5, 0.75, 0.9)
# Operation -> the key of its requests, the key of its bytes, and the traffic of one float32 word.
OPERATIONS = {
    "all-reduce": ("sums", "summed_bytes", Traffic(summed=DENSE)),
    "all-gather": ("gathers", "gathered_bytes", Traffic(gathered=DENSE)),
    "message": ("messages", "message_bytes", Traffic(messages=DENSE)),
}


@dataclass(frozen=True)
class Job:
    """A job as it was recorded.

    ``shapes``: of the tensors, in the order in which gradients arrive; ``backward_s``: seconds per tensor.
    ``rest_s``: what comes after the exchange. ``words``: float32 words per entry of a gradient. ``here``: the network
    of the recording, of infinite rate if the profile is of one process. ``operations``: seconds by float32 words.
    """

    shapes: list[list[int]]
    forward_s: float
    backward_s: list[float]
    rest_s: float
    words: float
    here: Network
    operations: dict[str, Curve]
    recorded_s: float
    device: str

    @property
    def sizes(self) -> list[int]:
        """Entries per tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def alone_s(self) -> float:
        """One iteration without communication."""
        return self.forward_s + sum(self.backward_s) + self.rest_s


def read_job(profile: dict) -> Job:
    """The job of a valid profile; ValueError in one line if nothing can be predicted from it."""
    rows = [row for row in profile["parameters"] if row["arrived_s"] is not None and math.prod(row["shape"])]
    rows.sort(key=lambda row: row["arrived_s"])
    sizes = [math.prod(row["shape"]) for row in rows]
    if not 0 < sum(sizes) <= MOST_ENTRIES:
        raise ValueError("parameters: they have no entry, or more than 1e13; record the profile again")
    arrived = np.array([row["arrived_s"] for row in rows])
    times = {part: spread["median_s"] for part, spread in profile["times"].items()}
    rest_s = times["optimizer"] + times["other"] + max(0.0, times["backward"] - float(arrived[-1]))
    workers = profile["job"]["workers"]
    if workers == 1:
        rest_s += times["waiting"]  # a single process does not wait: it clips gradients, for example
    operations = {name: _curve([row for row in profile["network"] if row["operation"] == name]) for name in OPERATIONS}
    job = Job(
        [row["shape"] for row in rows],
        times["forward"] + times["loss"],
        np.diff(arrived, prepend=0.0).tolist(),
        rest_s,
        sum(size * DTYPES[row["dtype"]] for size, row in zip(sizes, rows, strict=True)) / DENSE / sum(sizes),
        Network(workers, _rate_mbit(operations, workers)),
        operations,
        times["iteration"],
        profile["job"]["device"],
    )
    if job.alone_s < LEAST_S:
        raise ValueError(f"times: computing takes {job.alone_s:g} s; record the profile again")
    return job


def _curve(rows: list[dict]) -> Curve:
    """Seconds of an operation by float32 words. A time above the time of a larger tensor is noise, and is lowered."""
    if not rows:
        return Curve((1.0, 2.0), (0.0, 0.0))
    seconds: dict[float, float] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        seconds[max(1.0, row["bytes"] / DENSE)] = max(LEAST_S, row["seconds"])
    rising = np.minimum.accumulate(np.array(list(seconds.values()))[::-1])[::-1]
    return Curve(tuple(seconds), tuple(rising.tolist()))


def _rate_mbit(operations: dict[str, Curve], workers: int) -> float:
    """The rate of the links: the highest that an operation reaches between its two largest sizes."""
    rates = []
    for name, curve in operations.items():
        grown_s = curve.seconds[-1] - curve.seconds[-2] if len(curve.seconds) > 1 else 0.0
        if grown_s > 0:
            words = curve.entries[-1] - curve.entries[-2]
            rates.append(ALL_GATHER.link_bytes(OPERATIONS[name][2], 1, workers) * words * 8e-6 / grown_s)
    return max(rates, default=math.inf)


def projected(job: Job, there: Network) -> dict[str, Curve]:
    """Seconds of each operation by float32 words, on another network."""
    curves = {}
    for name, (_, _, traffic) in OPERATIONS.items():
        here, other = job.here, there
        if name == "message":  # a message is between two hosts
            here, other = replace(here, workers=2), replace(there, workers=2)
        costs = Costs(0.0, [], Curve((1.0,), (0.0,)), job.operations[name], Curve((1.0,), (0.0,)))
        curves[name] = project_costs(costs, ALL_GATHER, traffic, here, other).communicate
    return curves


@dataclass(frozen=True)
class _Share:
    """The share of one operation in a method's exchange: requests and bytes by (entries, workers)."""

    requests: Callable[[np.ndarray, int], np.ndarray]
    bytes_each: Callable[[np.ndarray, int], np.ndarray]


class JobModel:
    """The time model of one job and one method, or uncompressed if ``method`` is None.

    It implements ``iterations.Model``. ``method``: a row of the profile's ``methods``.
    """

    def __init__(self, job: Job, method: dict | None = None):
        self.job = job
        self.name, self.title = (method["name"], method["title"]) if method else (UNCOMPRESSED, "uncompressed")
        self.options = method["options"] if method else {}
        self._method = method
        total = sum(job.sizes)
        self._grid = np.unique([float(min(2**power, total)) for power in range(4, 45)])
        if method:
            self._shares = {operation: _share(method["samples"], *keys[:2]) for operation, keys in OPERATIONS.items()}
            self._seconds_by = _fit(method["samples"], lambda row: row["seconds"], lambda workers: workers)
        self._ends = np.concatenate([[0], np.cumsum(job.sizes)])
        self._backward_ends = np.concatenate([[0.0], np.cumsum(job.backward_s)])
        self._plans = [np.array(plan) for plan in self._candidates()]
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
            self._iterations[there] = min(self._timed(costs, plan) for plan in self._plans)
        return self._iterations[there]

    def plan(self, there: Network) -> Plan:
        """The plan with the shortest iteration on a network."""
        return [(int(start), int(stop)) for start, stop in self._fastest(self.costs(there))]

    def _fastest(self, costs: Costs) -> np.ndarray:
        return min(self._plans, key=lambda plan: self._timed(costs, plan))

    def saved(self, there: Network) -> dict[str, float]:
        """By how many seconds an iteration would be shorter, with the same plan, if one thing cost nothing."""
        costs = self.costs(there)
        plan = self._fastest(costs)
        unlimited = self.costs(replace(there, rate_mbit=math.inf))
        return saved(costs, unlimited, lambda other: self._timed(other, plan))

    def costs(self, there: Network) -> Costs:
        """The costs of the job's exchanges on a network, by entries of a bucket."""
        entries, operations = self._grid, projected(self.job, there)
        if not self._method:
            sparsify_s, sent_s = np.zeros_like(entries), operations["all-reduce"](entries * self.job.words)
        else:
            sparsify_s = self._seconds_by(entries, there.workers)
            sent_s = sum(
                share.requests(entries, there.workers)
                * operations[operation](share.bytes_each(entries, there.workers) / DENSE)
                for operation, share in self._shares.items()
            )
        nothing, grid = Curve((1.0,), (0.0,)), tuple(entries.tolist())
        sparsify, communicate = Curve(grid, tuple(sparsify_s.tolist())), Curve(grid, tuple(sent_s.tolist()))
        return Costs(self.job.forward_s, self.job.backward_s, sparsify, communicate, nothing)

    def _timed(self, costs: Costs, plan: np.ndarray) -> float:
        """The sum of ``schedule(...).iteration_s`` and ``rest_s``, for costs without contention."""
        start, stop = plan[:, 0], plan[:, 1]
        entries = self._ends[stop] - self._ends[start]
        ready = costs.forward_s + self._backward_ends[stop] + np.cumsum(costs.sparsify(entries))
        behind = np.cumsum(costs.communicate(entries)[::-1])[::-1]  # this bucket's communication and all after it
        return float(np.max(ready + behind) + costs.latency(entries[-1]) + self.job.rest_s)


def _share(samples: Sequence[dict], requests: str, sent: str) -> _Share:
    """The share of the operation with these keys of its requests and bytes."""
    return _Share(
        _fit(samples, lambda row: row[requests], math.log2, extended=False),
        _fit(samples, lambda row: row[sent] / row[requests] if row[requests] else 0.0, lambda workers: 1 / workers),
    )


def _fit(
    samples: Sequence[dict], value: Callable[[dict], float], basis: Callable[[int], float], extended: bool = True
) -> Callable[[np.ndarray, int], np.ndarray]:
    """A function of (entries, workers): along the entries of the samples, and a + b basis(workers), at least 0.

    ``extended``: beyond the largest sample the value grows in proportion; otherwise it stays.
    """
    by_entries: dict[int, dict[int, float]] = {}
    for row in samples:
        by_entries.setdefault(row["entries"], {})[row["workers"]] = value(row)
    sizes = sorted(by_entries)
    lines = [_line([(basis(workers), y) for workers, y in by_entries[size].items()]) for size in sizes]

    def at(entries: np.ndarray, workers: int) -> np.ndarray:
        values = [max(0.0, a + b * basis(workers)) for a, b in lines]
        if extended:
            return Curve(tuple(map(float, sizes)), tuple(values))(entries)
        return np.interp(entries, sizes, values)

    return at


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """a and b of y = a + b x through the points (least squares); b is 0 if there is only one x."""
    x, y = map(np.array, zip(*points, strict=True))
    if np.ptp(x) == 0:
        return float(y.mean()), 0.0
    b, a = np.polyfit(x, y, 1)
    return float(a), float(b)


def slowed(job: Job, slowdown: float) -> Job:
    """The job on a device that computes ``slowdown`` times as slowly."""
    backward_s = [seconds * slowdown for seconds in job.backward_s]
    return replace(job, forward_s=job.forward_s * slowdown, backward_s=backward_s, rest_s=job.rest_s * slowdown)


def models(profile: dict, names: Sequence[str] | None = None, slowdown: float = 1.0) -> list[JobModel]:
    """The time models of uncompressed, which comes first, and of the profile's methods, or those in ``names``.

    ``slowdown``: by which the job's computing, but no selection and no exchange, is made slower. ValueError in one line
    for a name that the profile does not have.
    """
    job, known = slowed(read_job(profile), slowdown), {method["name"]: method for method in profile["methods"]}
    for name in names or ():
        if name not in known and name != UNCOMPRESSED:
            why = profile["left_out"].get(name)
            reason = f"the probe left it out: {why}" if why else listed(known)
            raise ValueError(
                f"methods: {shown(name)} is not in the profile{meant(name, known)}; {' '.join(reason.split())}"
            )
    chosen = [method for name, method in known.items() if names is None or name in names or method["baseline"]]
    return [JobModel(job), *(JobModel(job, method) for method in chosen)]


def utilisation(model: JobModel, there: Network) -> float:
    """The part of an iteration in which the job computes, from 0 to 1."""
    return model.job.alone_s / model.iteration_s(there)


def needed_mbit(model: JobModel, there: Network, least: float = REACHED) -> float:
    """The lowest rate of the links, in Mb/s, at which ``utilisation`` is at least ``least``.

    0 if every rate is enough, infinite if none is. ``there``: workers and latency; its rate is not used.
    """

    def enough(rate_mbit: float) -> bool:
        return utilisation(model, replace(there, rate_mbit=rate_mbit)) >= least

    if enough(SLOWEST_MBIT):
        return 0.0
    if not enough(FASTEST_MBIT):
        return math.inf
    low, high = SLOWEST_MBIT, FASTEST_MBIT
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def exchange_s(job: Job, there: Network) -> float:
    """Seconds of an exchange of weights: they are summed in one bucket of float32."""
    return float(projected(job, there)["all-reduce"](sum(job.sizes)))


def local_steps(job: Job, there: Network, least: float) -> int:
    """The number of local steps between two exchanges of weights that makes the utilisation at least ``least``.

    The weights are summed in one bucket of float32. Workers do not compute meanwhile.
    """
    return max(1, math.ceil(least / (1 - least) * exchange_s(job, there) / job.alone_s - 1e-9))


def interval(dense: JobModel, there: Network) -> tuple[float, list[str]]:
    """The factor around a predicted gain, and why it is wider than the factor that was checked.

    Outside the range that was checked, it is the square. It is at least the error of the time model on the job itself.
    """
    job = dense.job
    reasons = ["on a GPU nothing was checked"] if job.device == "cuda" else []
    reasons += outside_checked(there, dense.iteration_s(there))
    factor = WITHIN**2 if reasons else WITHIN
    if job.here.workers > 1 and job.recorded_s > 0:
        own_s = dense.iteration_s(job.here)
        off = max(own_s / job.recorded_s, job.recorded_s / own_s)
        if off > WITHIN:
            reasons.append(f"the recorded iteration differs from the time model by a factor of {off:.2f}")
        factor = max(factor, off)
    return factor, reasons


def rank(known: Sequence[JobModel], there: Network, factor: float) -> list[dict]:
    """One row per model, the fastest first: its iteration, the gain over uncompressed with an interval, and what
    limits it. ``known``: as ``models`` returns them."""
    dense_s = known[0].iteration_s(there)
    rows = []
    for model in known:
        row = predicted(model, there)
        gain, off = dense_s / row["iteration_s"], 1.0 if model is known[0] else factor
        rows.append(row | {"name": model.name, "title": model.title, "gain": gain,
                           "gain_low": gain / off, "gain_high": gain * off})  # fmt: skip
    return sorted(rows, key=lambda row: row["iteration_s"])


def inverse(known: Sequence[JobModel], there: Network) -> list[dict]:
    """One row per model: ``needed_mbit``, and below which rate it starts to pay (NaN for uncompressed)."""
    return [
        {"name": model.name, "title": model.title, "needed_mbit": needed_mbit(model, there),
         "pays_below_mbit": break_even_mbit(known[0], model, there) if model is not known[0] else math.nan}
        for model in known
    ]  # fmt: skip
