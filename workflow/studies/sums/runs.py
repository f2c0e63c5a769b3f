"""OmniReduce beside other sums, at each shape of its streams; none without a testbed."""

from harness.spec import Cluster, Measurement, RunSpec, Scheme


def runs(values: dict) -> dict[str, RunSpec]:
    if values["network"] != "testbed":
        return {}
    study = values["studies"]["sums"]
    return {
        f"sums/{workers}workers-{aggregators}aggregators-{fused}fused-{in_flight}inflight": _run(
            study, workers, {"fused": fused, "in_flight": in_flight, "aggregators": aggregators}
        )
        for workers in study["workers"]
        for aggregators in (1, workers)
        for fused in study["fused"]
        for in_flight in study["in_flight"]
    }


def _run(study: dict, workers: int, streams: dict) -> RunSpec:
    rates = (float(study["rate_mbit"]),) * workers
    return RunSpec(
        "sums",
        scheme=Scheme(streams={"block": study["block"]} | streams),
        cluster=Cluster(study["engine"], workers, network="testbed", rates_mbit=rates),
        measurement=Measurement(repeats=study["repeats"], largest_entries=study["entries"]),
    )
