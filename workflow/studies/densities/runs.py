"""The accuracy and timing runs of variants whose density drifts, at the ratios that both have; none of its own."""

from harness.config import grid
from harness.config.variants import chosen
from harness.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    drift = {name for name, variant in chosen(values).items() if "refresh_every" in variant.fields}
    trained, timed = (
        {
            name: spec
            for name, spec in of(values).items()
            if spec.variant in drift and not spec.topology.servers and spec.training.seed == values["seeds"][0]
        }
        for of in (grid.accuracy, grid.timing)
    )
    ratios = {spec.ratio for spec in trained.values()} & {spec.ratio for spec in timed.values()}
    return {name: spec for name, spec in (trained | timed).items() if spec.ratio in ratios}
