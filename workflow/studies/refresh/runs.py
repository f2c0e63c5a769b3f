"""Accuracy runs of the first model that is trained, at the smallest ratio, at each of the study's refresh intervals."""

from dataclasses import replace

from dlgs_bench.config import grid
from dlgs_bench.config.variants import chosen
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    model, specs = grid.trained_models(values)[0], {}
    smallest = min(values["timing"]["ratios"] or values["accuracy"]["ratios"])
    for variant in chosen(values).values():
        if "refresh_every" not in variant.fields:
            continue
        ratio = variant.options.get("ratio", smallest)
        for s in values["studies"]["refresh"]["intervals"]:
            for seed in values["seeds"]:
                spec = grid.accuracy_run(values, model, variant, ratio, seed)
                options = spec.scheme.options | {"refresh_every": s}
                name, _, seeded = grid.accuracy_name(spec).rpartition("-")
                specs[f"accuracy/{name}-s{s}-{seeded}"] = replace(spec, scheme=replace(spec.scheme, options=options))
    return specs
