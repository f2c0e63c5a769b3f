"""The link rate at which this machine has the same ratio of computation to communication as other nodes. No torch.

This ratio decides the gain of compression. If this machine is k times slower than the nodes, links that are k times
slower keep the ratio.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlgs_bench import checksums, plugins
from dlgs_bench.spec import RunSpec

LEAST_MBIT, MOST_MBIT = 1, 4000  # rates of the testbed: at higher rates, packets keep a whole core busy


@dataclass(frozen=True)
class Nodes:
    """The nodes whose ratio is kept (``testbed.nodes`` of the configuration).

    ``multiply_adds_s``: multiply-adds of forward passes per second of training, as in published throughputs. The second
    includes backward, the count does not. ``computation_ms``: model -> milliseconds of forward and backward of one
    iteration, measured on a node. For a model without a measured value we assume ``multiply_adds_s``. A small model
    uses a GPU less well, so its links here are too slow, and compression seems to gain more than it does.
    """

    link_mbit: float
    multiply_adds_s: float
    computation_ms: Mapping[str, float] = field(default_factory=dict)
    latency_ms: float = 0.0  # of a message between two nodes

    def computation_s(self, model: str, batch: int) -> float:
        """The seconds of forward and backward of one iteration on a node."""
        if model in self.computation_ms:
            return self.computation_ms[model] / 1e3
        return batch * plugins.describe("models", model)["multiply_adds"] / self.multiply_adds_s


def slowdown(model: str, batch: int, computation_s: float, nodes: Nodes) -> dict[str, float]:
    """The slowdown of this machine against the nodes, and the rate and latency of links that keep the ratio.

    ``computation_s``: forward and backward on this machine. ``batch``: samples per worker on the nodes.
    ``proportional_mbit`` of the result keeps the ratio. ``rate_mbit`` is the nearest rate of the testbed, rounded to
    three digits.
    """
    there_s = nodes.computation_s(model, batch)
    wanted = nodes.link_mbit * there_s / computation_s
    return {
        "nodes_batch": batch,
        "nodes_computation_s": there_s,
        "computation_s": computation_s,
        "slowdown": computation_s / there_s,
        "proportional_mbit": wanted,
        "rate_mbit": float(f"{min(max(wanted, LEAST_MBIT), MOST_MBIT):.3g}"),
        "latency_ms": float(f"{nodes.latency_ms * computation_s / there_s:.3g}"),
    }


def slowdowns(paths: Iterable[Path]) -> dict[str, float]:
    """The name of a calibration of layers -> slowdown of this machine, from rate files."""
    return {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8"))["slowdown"] for path in paths}


def with_rate(path: Path, spec: RunSpec) -> tuple[RunSpec, float]:
    """``spec`` with the link rates of a rate file, and the seconds of a forward pass.

    It also has the computing time of the calibration and, if it is in proportion, the latency. ValueError in one line
    if the file is invalid or for another model.
    """
    try:
        rate = checksums.read(path)
        if rate["model"] != spec.training.model:
            raise ValueError(f"the rate is for {rate['model']}, this run trains {spec.training.model}")
        rates = (rate["rate_mbit"],) * spec.processes
        cluster = replace(spec.cluster, rates_mbit=rates, calibrated_s=rate["computation_s"])
        if cluster.latency_in_proportion:
            cluster = replace(cluster, latency_ms=rate["latency_ms"])
        return replace(spec, cluster=cluster), rate["forward_s"]
    except (KeyError, TypeError):
        raise ValueError(f"{path}: not a valid rate file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
