"""Predictions from the calibration runs of a configuration. No torch."""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.buckets import Plan, planner_of
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel.costs import Calibration, calibration
from dlgs_bench.timemodel.iterations import saved
from dlgs_bench.timemodel.links import Network, project_costs
from dlgs_bench.timemodel.planner import planners
from dlgs_bench.timemodel.timeline import Costs, schedule
from dlgs_bench.topology import ALL_GATHER, RoundCount, Topology, ring_rounds

SELECTIONS = ("torch", "compiled")  # the paper's first


def read(layers: Path, iterations: Path, samples: Path, spec: RunSpec, cost: str = "amortised") -> Calibration:
    """The costs from the tables of a model's layers and of the exchanges of the scheme of ``spec``.

    ``cost``: as in ``calibration``.
    """
    within, every = spec.scheme.options.get("within", "group"), pd.read_csv(samples)
    own = every[every["variant"] == replace(spec.scheme, bucketing="").label]
    return calibration(pd.read_csv(layers), pd.read_csv(iterations), own, within=within, cost=cost)


class Calibrations:
    """The calibration runs in some folders, by what they measured."""

    def __init__(self, folders: Iterable[Path]) -> None:
        specs = {folder: RunSpec.in_folder(folder) for folder in sorted(set(folders))}
        self._layers = {_model(s): f for f, s in specs.items() if s.kind == "layers"}
        self._exchanges = [(f, m) for f, s in specs.items() if s.kind == "exchanges" for m in s.members.values()]

    def of(self, run: RunSpec) -> Calibration:
        """The calibration of a timing run; KeyError or StopIteration if no folder has its model or its exchanges."""
        layers = self._layers[_model(run)]
        exchanges = next(f for f, s in self._exchanges if _exchange(s) == _exchange(run))
        return _read_folders(layers, exchanges, run)

    @property
    def selections(self) -> list[str]:
        """The calibrated kinds of selection; the paper's kind if no calibrated method selects."""
        calibrated = {spec.scheme.options.get("selection") for _, spec in self._exchanges}
        return [kind for kind in SELECTIONS if kind in calibrated] or [SELECTIONS[0]]

    def each(self, computing: int = 0) -> list["Projection"]:
        """The time model of every calibrated exchange.

        ``computing``: the number of workers that shared this machine when layers were timed; 0: as many as exchanged.
        """
        projections = []
        for folder, spec in self._exchanges:
            model, workers = _model(spec)
            projections.append(Projection(self._layers[model, computing or workers], folder, spec))
        return projections

    def projections(
        self, ratio: float | None = None, topology: Topology = ALL_GATHER, selection: str = SELECTIONS[0]
    ) -> dict[tuple[str, str], "Projection"]:
        """(model, variant) -> its time model over a topology; each variant at ``ratio``, or at its smallest ratio.

        Variants that select are included if their exchanges were calibrated with this ``selection``.
        """
        calibrated: dict[tuple[str, str], list[tuple[Path, RunSpec]]] = {}
        for folder, spec in self._exchanges:
            if spec.topology == topology and spec.scheme.options.get("selection", selection) == selection:
                calibrated.setdefault((spec.training.model, spec.variant), []).append((folder, spec))

        def order(exchange: tuple[Path, RunSpec]) -> tuple[bool, float]:
            own = exchange[1].ratio
            return own != ratio, own or 0.0

        chosen = {key: min(exchanges, key=order) for key, exchanges in calibrated.items()}
        return {key: Projection(self._layers[_model(spec)], folder, spec) for key, (folder, spec) in chosen.items()}


class Projection:
    """The time model of one model and variant over its topology, for other links and numbers of workers.

    ``folder``, ``spec``: the calibration of exchanges, and the scheme in it. ``here``: its network; the host's own
    network counts as infinitely fast. ``collective``: makes the dense sums on other networks.
    """

    def __init__(self, layers: Path, exchanges: Path, spec: RunSpec) -> None:
        self.folder, self.spec = exchanges, spec
        self.collective = spec.scheme.collective
        self._layers = layers
        layers_spec = RunSpec.in_folder(layers)
        cluster = self.spec.cluster
        self.here = Network(cluster.workers, min(cluster.rates_mbit, default=math.inf), cluster.latency_ms)
        description = plugins.describe("methods", self.spec.scheme.method)
        every, planner = planners(layers_spec.scheme.bucket_bytes // 4), layers_spec.scheme.planner
        # Baselines are timed with several ways of merging, and the fastest counts.
        names = dict.fromkeys([planner_of(description["scope"], planner), *([planner] * description["baseline"])])
        self._planners = [every[name] for name in names]
        self._growth = description["link_growth"]

    @cached_property
    def _calibration(self) -> Calibration:
        """The costs, which are fitted when they are first used: a caller may need few of many time models."""
        return _read_folders(self._layers, self.folder, self.spec)

    def is_at(self, ratio: float) -> bool:
        """Whether the calibration is at this ratio, or its method has none. Another ratio says nothing about a run."""
        return self.spec.ratio in (None, ratio)

    def collective_variants(self, workers: int) -> list["Projection"]:
        """This time model, and its copies with collectives that make another number of rounds than the engine.

        We assume that a round costs the same for every collective.
        """
        if self.collective != "engine" or self.spec.topology != ALL_GATHER or not self._calibration.traffic.summed:
            return [self]
        variants = [self]
        for name in plugins.names("collectives"):
            rounds = plugins.describe("collectives", name)["rounds"].get(str(workers))
            if rounds is not None and rounds != ring_rounds(workers):
                variants.append(copy(self))
                variants[-1].collective = name
        return variants

    def iteration_s(self, there: Network) -> float:
        """The time of an iteration on a network, with layers merged as in runs; the fastest way of a baseline."""
        costs = self._costs(there)
        return self._iteration_s(costs, self._plan(costs))

    @property
    def computing_s(self) -> float:
        """Forward and backward of one iteration, which no exchange can undercut, without waiting for a worker."""
        costs = self._calibration.costs
        return costs.forward_s + sum(costs.backward_s) - self._calibration.skew_s

    @property
    def alone_s(self) -> float:
        """One iteration without communication, in seconds."""
        return self.computing_s + self._calibration.skew_s + self._calibration.rest_s

    def exchange_s(self, there: Network) -> float:
        """Seconds of an exchange of all entries in one bucket, while nothing is computed."""
        costs, entries = self._costs(there), float(sum(self._calibration.sizes))
        return float(costs.communicate(entries) + costs.latency(entries))

    def saved(self, there: Network) -> dict[str, float]:
        """Seconds that an iteration would save, with the same plan, if one part cost nothing.

        The parts are described in ``dlgs_bench.timemodel.iterations.saved``.
        """
        costs = self._costs(there)
        plan = self._plan(costs)
        unlimited = replace(there, rate_mbit=math.inf)
        prompt = self._costs(replace(unlimited, latency_ms=0.0))
        return saved(costs, self._costs(unlimited), prompt, lambda other: self._iteration_s(other, plan))

    def _plan(self, costs: Costs) -> Plan:
        plans = [planner(self._calibration.sizes, costs) for planner in self._planners]
        return min(plans, key=lambda plan: self._iteration_s(costs, plan))

    def _costs(self, there: Network) -> Costs:
        calibration = self._calibration
        return project_costs(
            calibration.costs,
            self.spec.topology,
            calibration.traffic,
            self.here,
            there,
            sum_rounds(self.spec.scheme.collective),
            sum_rounds(self.collective),
            self._growth,
        )

    def _iteration_s(self, costs: Costs, plan: Plan) -> float:
        return schedule(self._calibration.sizes, costs, plan).iteration_s + self._calibration.rest_s


def sum_rounds(collective: str) -> RoundCount:
    """The function number of workers -> rounds of a dense sum. It raises KeyError for an unsupported number.

    ValueError if the rounds of the collective depend on the data.
    """
    if collective == "engine":
        return ring_rounds
    rounds = plugins.describe("collectives", collective)["rounds"]
    if not rounds:
        why = "what it sends depends on the gradient"
        raise ValueError(f"collective: {collective} has no time model, since {why}; give another collective")
    return lambda workers: rounds[str(workers)]


def _read_folders(layers: Path, exchanges: Path, spec: RunSpec) -> Calibration:
    return read(layers / "layers.csv", layers / "iterations.csv", exchanges / "samples.csv", spec)


def _model(spec: RunSpec) -> tuple:
    """The fields of a spec that decide the times of a model's layers."""
    return spec.training.model, spec.cluster.workers


def _exchange(spec: RunSpec) -> tuple:
    """The fields of a spec that decide the times of an exchange. The model decides the sizes of buckets."""
    scheme = spec.scheme
    return (
        spec.training.model,
        scheme.method,
        scheme.options,
        scheme.topology,
        scheme.collective,
        scheme.streams,
        scheme.wire,
        spec.cluster,
    )
