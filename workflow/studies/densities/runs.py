"""The accuracy and timing runs of variants whose density drifts, at their common ratios. The study adds no runs."""

from dlgs_bench.config import grid
from dlgs_bench.config.variants import chosen
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    drift = {name for name, variant in chosen(values).items() if "refresh_every" in variant.fields}
    trained = {
        name: spec
        for name, spec in grid.accuracy(values).items()
        if spec.variant in drift and spec.training.seed == values["seeds"][0]
    }
    timed = {
        name: {member.ratio for member in spec.members.values() if member.variant in drift}
        for name, spec in grid.timing(values).items()
        if not spec.topology.servers
    }
    ratios = {spec.ratio for spec in trained.values()} & set().union(*timed.values())
    accuracy = {name: spec for name, spec in trained.items() if spec.ratio in ratios}
    every = grid.timing(values)
    return accuracy | {name: every[name] for name, own in timed.items() if own & ratios}
