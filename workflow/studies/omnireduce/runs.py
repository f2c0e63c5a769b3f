"""Training over OmniReduce and over other sums, which take turns in one run; no runs without a testbed.

One more run per model exchanges each layer separately, which shows the blocks of zeros of each layer.
"""

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.errors import ConfigError
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training

STREAMED = "omnireduce"  # the variant, and the collective
RING = "ring"
METHOD = "block_topk"


def runs(values: dict) -> dict[str, RunSpec]:
    study, block = values["studies"]["omnireduce"], values["streams"]["block"]
    if values["network"] != "testbed" or not study["workers"]:
        return {}
    specs = {}
    for workers in study["workers"]:
        for model in study["natural"]:
            specs[_name(model, workers)] = _run(values, model, workers, "none", {})
        for model in study["sparsified"] if METHOD in plugins.usable("methods") else []:
            for ratio in study["ratios"]:
                options = {"ratio": ratio, "block": block, "over": "sum"}
                specs[_name(model, workers, f"-{ratio:g}")] = _run(values, model, workers, METHOD, options)
    fewest = min(study["workers"])
    for model in dict.fromkeys([*study["natural"], *study["sparsified"]]):
        # Buckets of 4 bytes: all layers are larger, so none are merged.
        alone = Scheme("none", STREAMED, collective=STREAMED, streams=_streams(values, fewest), bucket_bytes=4)
        specs[_name(model, fewest, "-layers")] = _timed(values, model, fewest, alone)
    return specs


def _streams(values: dict, workers: int) -> dict[str, int]:
    """The configuration's streams, with at most as many aggregators as workers."""
    streams = values["streams"]
    if "aggregators" not in streams:
        return streams
    return streams | {"aggregators": min(streams["aggregators"], workers)}


def _name(model: str, workers: int, what: str = "") -> str:
    return f"timing/omnireduce-{model}{what}-{workers}workers"


def _run(values: dict, model: str, workers: int, method: str, options: dict) -> RunSpec:
    """The run of a method over OmniReduce, the engine's all-reduce and all other ways, in turns."""
    same = {"method": method, "options": options}
    timed_with = {
        STREAMED: same | {"collective": STREAMED, "streams": _streams(values, workers)},
        RING: same | {"collective": RING},
    }
    if method != "none":
        timed_with |= {"engine": same, "all-gather": same | {"options": options | {"over": "gather"}}}
    return _timed(values, model, workers, Scheme(timed_with=timed_with))


def _timed(values: dict, model: str, workers: int, scheme: Scheme) -> RunSpec:
    study = values["studies"]["omnireduce"]
    try:
        data = plugins.describe("models", model)["data"]
    except ValueError as error:
        raise ConfigError(f"studies.omnireduce: {error}") from None
    synthetic = data == grid.IMAGENET and not values["data"]["imagenet"]
    rates = (float(study["rate_mbit"]),) * workers
    return RunSpec(
        "timing",
        Training(model, grid.TIMED_STAND_IN if synthetic else data, synthetic, batch=study["batch"]),
        scheme,
        Cluster("torch_dist", workers, values["threads"], network="testbed", rates_mbit=rates),
        Measurement(blocks=study["blocks"], repeats=study["repeats"]),
    )
