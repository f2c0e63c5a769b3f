"""The timing grid once more with a parameter server, and some models over links of several rates."""

from harness.config import grid
from harness.spec import RunSpec


def changed(values: dict) -> list[dict]:
    """The configuration with the study's workers and topologies, over which no collective travels; then at each of
    the study's rates."""
    study = values["studies"]["servers"]
    if not study["topologies"]:
        return []
    models = grid.only(values, list(values["models"]), study["topologies"])
    whole = values | {"server_workers": study["workers"], "models": models, "collective": "engine"}
    whole |= {"timing": grid.shorter(values)}
    models = grid.only(values, study["models"], study["topologies"])
    if values["network"] != "testbed" or not models:
        return [whole]
    swept = whole | {"models": models, "timing": whole["timing"] | {"ratios": [study["ratio"]]}}
    return [whole, *(grid.over_links(swept, rate) for rate in study["rates_mbit"])]


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
