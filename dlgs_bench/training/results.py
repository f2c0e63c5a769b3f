"""Writes the results of a run: tidy tables, and the provenance of their numbers."""

import csv
import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from dlgs_bench.data import DataSet
from dlgs_bench.device import processor
from dlgs_bench.engines import ENGINES
from dlgs_bench.spec import Cluster, RunSpec


def provenance(spec: RunSpec, begun_at: str) -> dict:
    """The machine, the versions, the commit and the date, without host names and paths.

    ``begun_at``: the commit when the run began, whose code it executed.
    """
    packages = ("torch", "torchvision", "horovod", "numpy", "pandas", "snakemake")
    return {
        "machine": machine(spec.cluster.device),
        **_network(spec.cluster),
        "python": platform.python_version(),
        "versions": {p: version(p) for p in packages if _installed(p)},
        "commit": begun_at,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _network(cluster: Cluster) -> dict:
    """The kind of network between the workers. A testbed also has the requested and measured rates and latency."""
    if cluster.network == "testbed":
        rates = {"rate_mbit": min(cluster.rates_mbit), "fastest_mbit": max(cluster.rates_mbit)}
        # Set by dlgs_bench/launch/hosts.py.
        rates["measured_mbit"] = float(os.environ["TESTBED_MEASURED_MBIT"])
        latency = {"latency_ms": cluster.latency_ms, "round_trip_ms": float(os.environ["TESTBED_ROUND_TRIP_MS"])}
        return {"network": "testbed"} | rates | latency
    return {"network": "loopback" if ENGINES[cluster.engine].one_machine(os.environ) else "host"}


def machine(device: str) -> str:
    """Processor with the instructions that torch uses, such as AVX512, cores, memory and GPUs, in words."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    words = f"{processor()} ({torch.backends.cpu.get_cpu_capability()}), {cores} cores, {memory:.0f} GiB"
    if device == "cuda":
        words += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return words


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except ModuleNotFoundError:
        return False


def write_rows(path: Path, rows: list[dict]) -> None:
    """Write the rows as CSV. A row without a column has an empty cell there."""
    columns = dict.fromkeys(column for row in rows for column in row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def chrome_trace(rows: list[dict]) -> dict:
    """A trace in the format of Perfetto and chrome://tracing, in microseconds, with one process per variant."""
    processes = {variant: i for i, variant in enumerate(dict.fromkeys(r["variant"] for r in rows))}
    threads = {row: i for i, row in enumerate(dict.fromkeys(r["row"] for r in rows))}
    names = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": variant}} for variant, pid in processes.items()
    ]
    names += [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": i, "args": {"name": row}}
        for pid in processes.values()
        for row, i in threads.items()
    ]
    events = [
        {
            "name": r["name"],
            "ph": "X",
            "pid": processes[r["variant"]],
            "tid": threads[r["row"]],
            "ts": r["begin_s"] * 1e6,
            "dur": (r["end_s"] - r["begin_s"]) * 1e6,
        }
        for r in rows
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def write_run(folder: Path, spec: RunSpec, results: dict, data: DataSet | None, begun_at: str) -> None:
    """Write one CSV per table, and ``run.json`` with the spec, the provenance, and facts about the run and its data.

    ``results``: table -> rows, and "metadata" -> facts about the run, if any. ``data``: None for a run without data.
    ``begun_at``: the commit when the run began. The launcher adds ``wall_s``.
    """
    tables = {name: rows for name, rows in results.items() if name != "metadata"}
    for name, rows in tables.items():
        write_rows(folder / f"{name}.csv", rows)
    if "trace" in tables:
        (folder / "trace.json").write_text(json.dumps(chrome_trace(tables["trace"])) + "\n", encoding="utf-8")
    metadata = dict(results.get("metadata", {}))
    about = provenance(spec, begun_at)
    if machines := metadata.pop("machines", []):  # a run that was stopped may have continued on another machine
        about["machine"] = " / ".join(dict.fromkeys(machines))
    run = {"spec": json.loads(spec.to_json()), "provenance": about} | metadata
    if data:
        run |= {"train_samples": data.train_size, "test_samples": data.test_size, "titles": {"data": data.title}}
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
