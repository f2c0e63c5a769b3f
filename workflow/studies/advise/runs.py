"""The timing runs that check advice: all variants in turns, over networks without a calibration."""

from dlgs_bench.config import grid
from dlgs_bench.config.variants import chosen
from dlgs_bench.spec import RunSpec
from dlgs_bench.topology import ALL_GATHER


def changed(values: dict) -> list[dict]:
    """The configuration over each of the study's networks; an empty list without a testbed.

    Their calibrations are used for plans only. The advice is made from the configuration's own calibration, and from
    the computing times of this number of workers on this machine. Numbers of workers that the collective does not
    support are left out.
    """
    study = values["studies"]["advise"]
    if values["network"] != "testbed":
        return []
    networks = [{"workers": values["workers"]} | network for network in study["check"]]
    models = grid.only(values, study["models"], [ALL_GATHER.name])
    timing = grid.shorter(values) | {"ratios": [study["ratio"]], "together": list(chosen(values))}
    configurations = []
    for network in networks:
        links = {key: value for key, value in network.items() if key != "workers"}
        if not grid.refusal(values["collective"], network["workers"]):
            testbed = values["testbed"] | {"host_rates_mbit": {}, "latency_ms": 0} | links
            changes = {"models": models, "timing": timing, "workers": network["workers"], "testbed": testbed}
            configurations.append(values | changes)
    return configurations


def runs(values: dict) -> dict[str, RunSpec]:
    return {
        name.replace("timing/", "timing/advise-"): spec
        for one in changed(values)
        for name, spec in grid.timing(one).items()
    }
