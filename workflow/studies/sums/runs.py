"""Runs of OmniReduce and of other sums; none without a testbed.

Each number of workers has one shape of OmniReduce's streams for which all cases are timed: the last of ``fused`` and of
``in_flight``, with as many aggregators as workers. The other shapes are timed briefly. The same shape is timed briefly
with the most workers over a wide area, if the testbed supports links with latency.
"""

from itertools import product

from dlgs_bench.engines import ENGINES
from dlgs_bench.errors import ConfigError
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme
from dlgs_bench.testbed import testbed

WIDE_AREA = {"rate_mbit": 50, "latency_ms": 50.0}


def runs(values: dict) -> dict[str, RunSpec]:
    if values["network"] != "testbed":
        return {}
    study = values["studies"]["sums"]
    if study["dedicated"] and ENGINES[study["engine"]].requires_all_ranks:
        why = f"{study['engine']} has no messages between two processes"
        raise ConfigError(f"studies.sums.dedicated: {why}; give false, or another engine")
    specs = {}
    kinds = ("aggregators", "dedicated") if study["dedicated"] else ("aggregators",)
    for workers in study["workers"]:
        fully_timed = study["fused"][-1], study["in_flight"][-1], workers
        for kind, aggregators, fused, in_flight in product(kinds, (1, workers), study["fused"], study["in_flight"]):
            streams = {"fused": fused, "in_flight": in_flight, "aggregators": aggregators}
            streams |= {"dedicated": True} if kind == "dedicated" else {}
            name = f"sums/{workers}workers-{aggregators}{kind}-{fused}fused-{in_flight}inflight"
            specs[name] = _run(study, workers, streams, brief=(fused, in_flight, aggregators) != fully_timed)
        shape = {"fused": study["fused"][-1], "in_flight": study["in_flight"][-1], "aggregators": workers}
        for block in study["other_blocks"]:
            specs[f"sums/{workers}workers-block{block}"] = _run(study | {"block": block}, workers, shape, brief=True)
    if specs and study["wide_area"] and not testbed.why_unavailable(WIDE_AREA["latency_ms"], WIDE_AREA["rate_mbit"]):
        most = max(study["workers"])
        for in_flight in study["in_flight"]:
            shape = {"fused": study["fused"][-1], "in_flight": in_flight, "aggregators": most}
            specs[f"sums/{most}workers-wide-area-{in_flight}inflight"] = _run(
                study | WIDE_AREA, most, shape, brief=True
            )
    return specs


def _run(study: dict, workers: int, streams: dict, brief: bool) -> RunSpec:
    processes = workers + (streams["aggregators"] if "dedicated" in streams else 0)
    rates = (float(study["rate_mbit"]),) * processes
    links = {"network": "testbed", "rates_mbit": rates, "latency_ms": study.get("latency_ms", 0.0)}
    return RunSpec(
        "sums",
        scheme=Scheme(streams={"block": study["block"]} | streams),
        cluster=Cluster(study["engine"], workers, **links),
        measurement=Measurement(repeats=study["repeats"], largest_entries=study["entries"], brief=brief),
    )
