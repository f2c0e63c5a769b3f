"""Slowdown: the link rate at which this machine computes and communicates in the proportion of other nodes.

What compression gains is decided by the proportion of computing to sending. On a machine that computes an iteration so
many times as slowly as those nodes, links that are as many times as slow keep their proportion. No torch.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlgs_bench import checksums, plugins
from dlgs_bench.spec import RunSpec

LEAST_MBIT, MOST_MBIT = 1, 4000  # what the testbed can shape: above, a core is busy with packets alone


@dataclass(frozen=True)
class Nodes:
    """The nodes whose proportion is kept, as the configuration describes them (``testbed.nodes``).

    ``multiply_adds_s``: those of the forward passes that a node trains in a second, as published throughputs of
    training count them; backward is in the second and not in the count. ``computation_ms``: model -> milliseconds of
    forward and backward of one iteration, measured on a node. A model without such a value is assumed to reach
    ``multiply_adds_s``. A small model uses a GPU less well than that, so its links here are slower than they should
    be, and compression looks better than it is.
    """

    link_mbit: float
    multiply_adds_s: float
    computation_ms: Mapping[str, float] = field(default_factory=dict)
    latency_ms: float = 0.0  # of a message from node to node

    def computation_s(self, model: str, batch: int) -> float:
        """Seconds of forward and backward of one iteration."""
        if model in self.computation_ms:
            return self.computation_ms[model] / 1e3
        return batch * plugins.describe("models", model)["multiply_adds"] / self.multiply_adds_s


def slowdown(model: str, batch: int, computation_s: float, nodes: Nodes) -> dict[str, float]:
    """How many times as slowly this machine computes an iteration, and the rate and the latency of links that keep the
    proportion.

    ``computation_s``: forward and backward here; ``batch``: samples per worker on those nodes.
    ``proportional_mbit`` keeps it; ``rate_mbit``, to three digits, is the nearest that the testbed can shape.
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
    """model -> how many times as slowly this machine computes it, from the files of their rates."""
    rates = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    return {rate["model"]: rate["slowdown"] for rate in rates}


def with_rate(path: Path, spec: RunSpec) -> tuple[RunSpec, float]:
    """``spec`` with the rate in the file, the latency if it is in proportion, and the computing that they follow from;
    and the seconds of a forward pass.

    ValueError in one line if it is no such file, or one for another model.
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
        raise ValueError(f"{path}: it is no rate") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
