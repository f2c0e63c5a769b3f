"""The timing runs of some models with both kinds of selection."""

from dlgs_bench.config import grid
from dlgs_bench.config.variants import chosen
from dlgs_bench.spec import RunSpec
from dlgs_bench.topology import ALL_GATHER


def changed(values: dict) -> list[dict]:
    """The configuration with compiled selection, and only the variants that select."""
    models = grid.only(values, values["studies"]["selections"]["models"], [ALL_GATHER.name])
    variants = [name for name, variant in chosen(values).items() if "selection" in variant.fields]
    timing = values["timing"] | {"selection": "compiled"}
    return [values | {"models": models, "methods": variants, "timing": timing}] if models and variants else []


def runs(values: dict) -> dict[str, RunSpec]:
    """The runs with compiled selection, and the runs of Table 2 of the same models."""
    compiled = {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
    models = {spec.training.model for spec in compiled.values()}
    return compiled | {
        name: spec for name, spec in grid.timing(values).items()
        if spec.training.model in models and not spec.topology.servers
    }  # fmt: skip
