"""Accuracy runs of all sparsifiers, and timing runs of variants whose density drifts. The study adds no runs."""

from dlgs_bench.config import grid
from dlgs_bench.config.variants import chosen
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    variants, seed = chosen(values), values["seeds"][0]
    sparse, drift = (
        {name for name, variant in variants.items() if field in variant.fields} for field in ("ratio", "refresh_every")
    )
    trained = {
        name: spec
        for name, spec in grid.accuracy(values).items()
        if spec.variant in sparse and spec.training.seed == seed
    }
    own = {(spec.training.model, spec.variant, spec.ratio) for spec in trained.values() if spec.variant in drift}
    timed = {
        name: spec
        for name, spec in grid.timing(values).items()
        if not spec.topology.servers
        and own & {(spec.training.model, member.variant, member.ratio) for member in spec.members.values()}
    }
    return trained | timed
