"""A made-up set of finished runs, as run folders hold them: for the report, without training anything."""

import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench import checksums
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training

MODELS = {"resnet20": "ResNet-20", "resnet50": "ResNet-50", "transformer": "Transformer", "vgg16": "VGG16"}
# variant -> (title, method, whether it has a ratio, scope)
VARIANTS = {
    "none": ("uncompressed", "none", False, "size"),
    "topk": ("Top-K", "topk", True, "model"),
    "dlgs": ("DLGS", "dlgs", True, "plan"),
    "topk-plain": ("Top-K, no feedback", "topk", True, "model"),
    "lags": ("LAGS", "lags", True, "layer"),
    "qsgd": ("QSGD", "qsgd", False, "layer"),
    "powersgd-r2": ("PowerSGD, rank 2", "powersgd", False, "layer"),
    "ef-sign": ("EF-signSGD", "ef-sign", False, "layer"),
    "adaptive": ("LAGS, adaptive", "lags_adaptive", True, "layer"),
}
RATIOS, TOPOLOGIES = (0.1, 0.01), ("allgather", "ps-weights")
LAYERS = [100, 5000, 300, 200_000, 40_000]
CLUSTER = Cluster(network="testbed", rates_mbit=(500.0, 500.0))
PARTS = ("forward_s", "backward_s", "sparsify_s", "communication_s", "optimizer_s", "other_s")


def describe(kind: str, name: str) -> dict:
    """Replaces ``dlgs_bench.plugins.describe``, which loads torch."""
    if kind == "models":
        metric = "perplexity" if name == "transformer" else "accuracy"
        parameters = {"parameters": sum(LAYERS), "layers": LAYERS, "metric": metric}
        return parameters | {"title": MODELS[name], "multiply_adds": 4e9 if name == "resnet50" else 1e8}
    if kind == "collectives":
        return {"rounds": {"halving-doubling": {"2": 2, "8": 6}, "ring": {"2": 2, "8": 14}}.get(name, {})}
    has_ratio, scope = next((ratio, scope) for _, method, ratio, scope in VARIANTS.values() if method == name)
    fields = {"selection": {"default": "torch"}} if has_ratio else {}
    fields |= {"refresh_every": {"default": 32}} if name == "dlgs" else {}
    return {
        "baseline": name == "none",
        "link_growth": "N - 1",
        "scope": scope,
        "plan": {"dlgs": "groups", "lags_adaptive": "ratios"}.get(name),
        "fields": fields,
    }


@dataclass
class Runs:
    """Folders of runs by kind, under ``root``."""

    root: Path
    models: tuple[str, ...]

    def __post_init__(self):
        self.numbers = np.random.default_rng(0)
        self.titles = {"variants": {v: VARIANTS[v][0] for v in VARIANTS}, "models": {m: MODELS[m] for m in self.models}}
        self.titles["recipe"] = {"epochs": 80, "lr_steps": [40]}
        self.titles["kept_recipe"] = {"epochs": 80, "lr_steps": []}

    def every(self, kind: str, table: str) -> list[str]:
        """The paths of one table of all runs of a kind."""
        return sorted(map(str, (self.root / kind).glob(f"*/{table}")))

    def write(self, folder: str, spec: RunSpec, **tables: pd.DataFrame) -> Path:
        place = self.root / folder
        place.mkdir(parents=True)
        provenance = {"machine": "a machine of 2 cores", "date": "2026-01-01T00:00:00+00:00", "commit": "abc"}
        rate = min(spec.cluster.rates_mbit, default=None)
        provenance |= {"network": "loopback"} if rate is None else {
            "network": "testbed", "rate_mbit": rate, "fastest_mbit": rate, "measured_mbit": 0.96 * rate,
            "latency_ms": spec.cluster.latency_ms, "round_trip_ms": 2 * spec.cluster.latency_ms + 0.1,
        }  # fmt: skip
        run = {"spec": json.loads(spec.to_json()), "provenance": provenance, "train_samples": 640}
        run |= {"titles": {"data": "Made-up data"}} if spec.training.data == "cifar10" else {}
        (place / "run.json").write_text(json.dumps(checksums.signed(run | {"files": {}})))
        for name, rows in tables.items():
            rows.to_csv(place / f"{name}.csv", index=False)
        return place

    def schemes(self, topology: str) -> list[Scheme]:
        found = []
        for variant, (_, method, has_ratio, _) in VARIANTS.items():
            for ratio in RATIOS if has_ratio else (None,):
                options = {} if ratio is None else {"ratio": ratio, "selection": "torch"}
                options |= {"error_feedback": False} if variant == "topk-plain" else {}
                found.append(Scheme(method, variant, options, topology, planner="paper"))
        return found

    def calibrate(self) -> None:
        for model in self.models:
            layers = [
                {"layer": i, "name": f"p{i}", "entries": n, "backward_s": 1e-3 + 1e-8 * n}
                for i, n in enumerate(LAYERS)
                for _ in range(3)
            ]
            iterations = self.parts(3, 0.03).assign(skew_s=0.001, repeat=[1, 2, 3])
            scheme, training = Scheme(topology="allgather", planner="paper"), self.training(model)
            spec = RunSpec("layers", training, scheme, CLUSTER, Measurement(repeats=3))
            self.write(f"layers/{model}", spec, layers=pd.DataFrame(layers), iterations=iterations)
        for model, topology in product(self.models, TOPOLOGIES):
            for scheme in self.schemes(topology):
                spec = RunSpec("exchanges", Training(model), scheme, CLUSTER)
                self.write(f"exchanges/{model}-{name_of(spec)}", spec, samples=self.samples(scheme))

    def samples(self, scheme: Scheme) -> pd.DataFrame:
        rows, dense = [], scheme.method == "none"
        each = bytes_per_entry(scheme)
        cases = product((256, 4096, 65536, 400_000), ((1, False), (8, False), (8, True)), phases(scheme), "ab")
        for entries, (buckets, overlapped), (phase, share), _ in cases:
            total = entries * buckets
            rows.append({
                "variant": scheme.label, "entries": entries, "buckets": buckets, "overlapped": overlapped,
                "phase": phase, "share": share,
                "sparsify_s": 0 if dense else total * 2e-9 * self.numbers.uniform(1, 1.1),
                "communication_s": 1e-3 + each * total * 1.6e-8 + (2e-4 + 1e-3 * overlapped) * buckets,
                "taken_s": overlapped * (5e-4 + each * entries * 1e-9) * buckets,
                "sent_bytes": each * total, "summed_bytes": each * total * dense,
                "gathered_bytes": each * total * (not dense), "message_bytes": 0, "sums": dense * buckets,
            })  # fmt: skip
        return pd.DataFrame(rows)

    def training(self, model: str) -> Training:
        data = "text" if model == "transformer" else "cifar10"
        stand_in = model == "resnet50"
        return Training(model, data, stand_in, batch=32, epochs=80, train_epochs=2)

    def parts(self, n: int, seconds: float, columns: tuple[str, ...] = PARTS) -> pd.DataFrame:
        """``n`` iterations of about ``seconds``, in parts that add up."""
        numbers = self.numbers.uniform(0.8, 1.2, (n, len(columns))) * seconds / len(columns)
        parts = pd.DataFrame(numbers, columns=columns)
        return parts.assign(iteration_s=parts.sum(axis=1))

    def iterations(self, timed: str, scheme: Scheme, seconds: float) -> pd.DataFrame:
        blocks = [
            self.parts(2, seconds, (*PARTS, "waiting_s")).assign(block=block, phase=phase, share=share, slowdown=1.0)
            for block in (1, 2, 3)
            for phase, share in phases(scheme)
        ]
        rows = pd.concat(blocks, ignore_index=True)
        sent = bytes_per_entry(scheme) * sum(LAYERS)
        return rows.assign(variant=timed, step=range(len(rows)), sent_bytes=sent, received_bytes=sent, density=0.1)

    def time(self) -> None:
        trace = pd.DataFrame(
            {"row": ["compute", "compute", "communication"], "name": ["forward", "sparsify", "bucket 0"],
             "begin_s": [0.0, 0.01, 0.02], "end_s": [0.01, 0.02, 0.03]}
        )  # fmt: skip
        for model, topology in product(self.models, TOPOLOGIES):
            for place, scheme in enumerate(self.schemes(topology)):
                spec = RunSpec("timing", self.training(model), scheme, CLUSTER)
                own = [self.iterations(scheme.label, scheme, 0.05 + 0.002 * place)] * (scheme.variant != "none")
                iterations = pd.concat([self.iterations("none", Scheme(), 0.06), *own])
                groups = [{"variant": v, "bucket": 0, "start": 0, "stop": len(LAYERS), "entries": sum(LAYERS)}
                          for v in {"none", scheme.label}]  # fmt: skip
                name = f"timing/{model}-{name_of(spec)}"
                traces = trace.assign(variant=scheme.label)
                self.write(name, spec, iterations=iterations, groups=pd.DataFrame(groups), trace=traces)

    def time_planners(self, plans: dict[Path, RunSpec]) -> None:
        """A run of kind planners for each plan file."""
        for path, spec in plans.items():
            found = json.loads(path.read_text())["comparison"]
            rows = [self.iterations(planner, spec.scheme, 0.05) for planner in found]
            dense = {"none": 0.06, "none-256kib": 0.055}
            rows += [self.iterations(label, Scheme(), seconds) for label, seconds in dense.items()]
            overlapped = {label: {"method": "none", "variant": "none", "options": {}} for label in dense}
            spec = replace(spec, scheme=replace(spec.scheme, timed_with=overlapped))
            named = {**dense, **found}
            groups = pd.DataFrame({"variant": planner, "timed_as": planner, "start": 0, "stop": 5} for planner in named)
            iterations = pd.concat(rows)
            self.write(f"planners/{path.stem}", replace(spec, kind="planners"), iterations=iterations, groups=groups)

    def train(self, seeds=(0, 1)) -> None:
        for model, scheme, seed in product(self.models, self.schemes("allgather"), seeds):
            if scheme.options.get("ratio") == RATIOS[1]:
                continue
            self.accuracy(f"accuracy/{model}-{scheme.variant}-seed{seed}", model, scheme, seed)

    def intervals(self) -> None:
        for ratio, s in product(RATIOS, (1, 8, 32)):
            scheme = Scheme("dlgs", options={"ratio": ratio, "refresh_every": s})
            self.accuracy(f"refresh/dlgs-{ratio}-s{s}", self.models[0], scheme, 0)

    def accuracy(self, folder: str, model: str, scheme: Scheme, seed: int) -> None:
        spec = RunSpec("accuracy", replace(self.training(model), seed=seed), scheme)
        step = np.arange(10, 101, 10)
        values = self.numbers.uniform(0.95, 1.05, len(step))
        points = pd.DataFrame({"epoch": step / 50, "step": step, "sent_bytes": step * 1e5, "elapsed_s": step * 1.0})
        for split in ("train", "test"):
            points[f"{split}_loss"] = 5 / np.sqrt(step) * values + 0.02 * list(VARIANTS).index(spec.variant)
            points[f"{split}_accuracy"] = 1 - points[f"{split}_loss"] / 5
        sent = {"phase": "step", "density": np.arange(1, 101) / 1000, "sent_bytes": 1e5}
        sent["squared_mean"] = np.where(np.arange(1, 101) % 10 == 0, 2.0, np.nan)  # in the steps of the points
        sent["squared_error"] = sent["squared_mean"] / 4
        iterations = pd.DataFrame({"step": range(1, 101)} | sent)
        self.write(folder, spec, points=points, iterations=iterations)


def bytes_per_entry(scheme: Scheme) -> float:
    return 4.0 if scheme.method == "none" else 8 * scheme.options.get("ratio", 0.05)


def phases(scheme: Scheme) -> list[tuple[str, float]]:
    return [("refresh", 1 / 32), ("reuse", 31 / 32)] if scheme.method == "dlgs" else [("step", 1.0)]


def name_of(spec: RunSpec) -> str:
    ratio = f"-{spec.ratio}" if spec.ratio else ""
    return f"{spec.variant}{ratio}-{spec.scheme.topology}"
