"""OmniReduce beside other sums, at each shape of its streams; none without a testbed."""

from harness.config.errors import ConfigError
from harness.engines import ENGINES
from harness.spec import Cluster, Measurement, RunSpec, Scheme


def runs(values: dict) -> dict[str, RunSpec]:
    if values["network"] != "testbed":
        return {}
    study = values["studies"]["sums"]
    if study["apart"] and ENGINES[study["engine"]].everybody:
        why = f"{study['engine']} has no messages between two processes alone"
        raise ConfigError(f"studies.sums.apart: {why}; give false, or another engine")
    return {
        f"sums/{workers}workers-{aggregators}{'apart' if apart else 'aggregators'}-{fused}fused-{in_flight}inflight": (
            _run(study, workers, {"fused": fused, "in_flight": in_flight, "aggregators": aggregators} | apart)
        )
        for workers in study["workers"]
        for apart in ({}, {"apart": True})[: 1 + study["apart"]]
        for aggregators in (1, workers)
        for fused in study["fused"]
        for in_flight in study["in_flight"]
    }


def _run(study: dict, workers: int, streams: dict) -> RunSpec:
    rates = (float(study["rate_mbit"]),) * (workers + streams["aggregators"] * ("apart" in streams))
    return RunSpec(
        "sums",
        scheme=Scheme(streams={"block": study["block"]} | streams),
        cluster=Cluster(study["engine"], workers, network="testbed", rates_mbit=rates),
        measurement=Measurement(repeats=study["repeats"], largest_entries=study["entries"]),
    )
