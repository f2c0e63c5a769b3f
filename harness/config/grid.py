"""The runs that a checked configuration asks for, and their names. No torch.

``values`` is the whole of a configuration, defaults filled in. Studies are the same functions on changed values.
"""

import itertools
from dataclasses import replace

from harness import plugins
from harness.spec import RunSpec


def everything(values: dict) -> tuple[dict, dict, dict]:
    """The runs and their calibrations, name -> spec, accuracy runs first; the studies, study -> name -> spec."""
    runs = expand(values)
    changed = {"rates": _rates(values), "servers": _servers(values), "selections": _selections(values)}
    every = [*itertools.chain.from_iterable(changed.values()), values]
    calibrations = {name: spec for one in every for name, spec in _calibrations(one).items()}
    return runs, calibrations, _studies(values, runs, changed)


def gpus(values: dict) -> int:
    """How many GPUs the largest run takes: one per process."""
    if values["device"] != "cuda":
        return 0
    return processes(values)


def processes(values: dict) -> int:
    """Of the largest run: the workers, and a server if one is asked for."""
    return values["workers"] + any(topology != "allgather" for topology in all_topologies(values))


def expand(values: dict) -> dict[str, RunSpec]:
    """The accuracy and timing runs of the paper's tables, name -> spec."""
    methods = _methods(values)
    runs = {}
    for name, model in values["models"].items():
        recipe = _recipe(values, name, model)
        for method in methods:
            timing = recipe | _method(values, method, "timing")
            for ratio in _ratios(values, method, "accuracy"):
                for seed in values["seeds"]:
                    spec = _accuracy(values, name, method, ratio, seed)
                    runs[f"accuracy/{_name(spec)}-seed{seed}"] = spec
            for topology in (t for t in topologies_of(values, name) if answers(t, method)):
                for ratio in _ratios(values, method, "timing"):
                    blocks = {k: values["timing"][k] for k in ("blocks", "repeats")}
                    spec = RunSpec(kind="timing", ratio=ratio, **timing, **blocks, **_links(values, topology))
                    runs[f"timing/{timing_name(spec)}"] = spec
    return dict(sorted(runs.items(), key=lambda item: item[0].split("/")[0]))


def _accuracy(values: dict, name: str, method: str, ratio: float | None, seed: int) -> RunSpec:
    model = values["models"][name]
    shared = _recipe(values, name, model) | _method(values, method, "accuracy") | _curve(values, model)
    return RunSpec(kind="accuracy", ratio=ratio, seed=seed, **shared)


def _calibrations(values: dict) -> dict[str, RunSpec]:
    """Layer times per model, exchange times per method and ratio: a new method adds only its own."""
    found = {}
    for name, model in values["models"].items():
        recipe = _recipe(values, name, model)
        spec = RunSpec(kind="layers", method="none", ratio=None, repeats=30, **recipe)
        found[f"layers/{layers_name(spec)}"] = spec
    shared = {k: values[k] for k in ("engine", "workers", "threads", "device", "wire")}
    for topology in all_topologies(values):
        models = [name for name in values["models"] if topology in topologies_of(values, name)]
        shared["largest_entries"] = max(map(plugins.parameters, models))
        for method in (m for m in _methods(values) if answers(topology, m)):
            for ratio in _ratios(values, method, "timing"):
                spec = RunSpec(
                    kind="exchanges", model="", ratio=ratio, repeats=4,
                    **shared, **_links(values, topology), **_method(values, method, "timing"),
                )  # fmt: skip
                found[f"exchanges/{exchange_name(spec)}"] = spec
    return found


def _studies(values: dict, runs: dict[str, RunSpec], changed: dict[str, list[dict]]) -> dict[str, dict[str, RunSpec]]:
    """Runs beyond the paper, see ``studies`` in the schema; ``changed``: a study's configurations."""
    timing = {name: spec for name, spec in runs.items() if spec.kind == "timing"}
    studies = {
        study: {name: spec for one in ones for name, spec in expand(one).items() if spec.kind == "timing"}
        for study, ones in changed.items()
    }
    models = {spec.model for spec in studies["selections"].values()}
    studies["selections"] |= {  # beside them, the runs with the selection of Table 2
        name: spec for name, spec in timing.items() if spec.model in models and spec.topology == "allgather"
    }
    studies["planners"] = {
        name.replace("timing/", "planners/"): replace(spec, kind="planners")
        for name, spec in timing.items() if plugins.scope(spec.method) == "plan"
    }  # fmt: skip
    return studies | {"refresh": _intervals(values)}


def _intervals(values: dict) -> dict[str, RunSpec]:
    """Accuracy runs of the first model at the smallest ratio, at each of the study's refresh intervals."""
    found, model, ratio = {}, next(iter(values["models"])), min(values["timing"]["ratios"])
    for method in (m for m in _methods(values) if "refresh_every" in plugins.fields(m)):
        for s in values["studies"]["refresh_every"]:
            for seed in values["seeds"]:
                spec = _accuracy(values, model, method, ratio, seed)
                spec = replace(spec, options=spec.options | {"refresh_every": s})
                found[f"accuracy/{_name(spec)}-s{s}-seed{seed}"] = spec
    return found


def _rates(values: dict) -> list[dict]:
    """The configuration at each of the rates that the bandwidth study sweeps; empty without a testbed."""
    study = values["studies"]["rates"]
    models = _only(values, study["models"], ["allgather"])
    if values["network"] != "testbed" or not models:
        return []
    changed = values | {"models": models, "timing": _shorter(values) | {"ratios": [study["ratio"]]}}
    return [changed | {"testbed": {"rate_mbit": rate, "host_rates_mbit": {}}} for rate in study["rates_mbit"]]


def _servers(values: dict) -> list[dict]:
    """The configuration with the study's workers and parameter server."""
    study = values["studies"]["servers"]
    models = _only(values, list(values["models"]), study["topologies"])
    changed = values | {"workers": study["workers"], "models": models, "timing": _shorter(values)}
    return [changed] if study["topologies"] else []


def _selections(values: dict) -> list[dict]:
    """The configuration with fast selection in its sparsifiers."""
    models = _only(values, values["studies"]["selections"]["models"], ["allgather"])
    sparsifiers = [m for m in _methods(values) if "selection" in plugins.fields(m)]
    timing = values["timing"] | {"selection": "fast"}
    return [values | {"models": models, "methods": sparsifiers, "timing": timing}] if models else []


def _only(values: dict, models: list[str], topologies: list[str]) -> dict:
    """These of the configuration's models, over these topologies."""
    return {name: model | {"topologies": topologies} for name, model in values["models"].items() if name in models}


def _shorter(values: dict) -> dict:
    return values["timing"] | {key: values["studies"][key] for key in ("blocks", "repeats")}


def needs_plan(spec: RunSpec) -> bool:
    """Whether a run reads a plan: its method merges layers by one, or takes each layer's ratio from one."""
    merges = plugins.scope(spec.method) == "plan" and spec.planner != "layer"
    return merges or bool(spec.options.get("adaptive"))


def layers_name(spec: RunSpec) -> str:
    """The name of the calibration of a run's layers."""
    return f"{spec.model}-{spec.workers}workers"


def exchange_name(spec: RunSpec) -> str:
    """The name of the calibration of a run's exchanges: method, selection unless it is the paper's, ratio,
    topology, workers and links."""
    fast = "-fast" if spec.options.get("selection") == "fast" else ""
    rates = sorted(set(spec.rates_mbit))
    links = "-".join(f"{rate:g}" for rate in rates) + "mbit" if rates else spec.network
    ratio = f"-{spec.ratio}" if spec.ratio else ""
    return f"{spec.method}{fast}{ratio}-{spec.topology}-{spec.workers}workers-{links}"


def timing_name(spec: RunSpec) -> str:
    """The name of a timing run, and of its plan."""
    return f"{spec.model}-{exchange_name(spec)}"


def answers(topology: str, method: str) -> bool:
    """Whether the topology has an answer to what the method asks."""
    return topology == "allgather" or plugins.one_sum(method) is not None


def topologies_of(values: dict, model: str) -> list[str]:
    return values["models"][model].get("topologies", values["topologies"])


def all_topologies(values: dict) -> list[str]:
    return sorted({topology for model in values["models"] for topology in topologies_of(values, model)})


def _links(values: dict, topology: str) -> dict:
    """The part of a RunSpec that says over which network it is timed; a server's host is the last."""
    if values["network"] == "host":
        return {"topology": topology}
    hosts = range(values["workers"] + (topology != "allgather"))
    own = {str(host): rate for host, rate in values["testbed"]["host_rates_mbit"].items()}
    rates = (own.get(str(host), values["testbed"]["rate_mbit"]) for host in hosts)
    return {"topology": topology, "network": "testbed", "rates_mbit": tuple(map(float, rates))}


def _methods(values: dict) -> list[str]:
    return plugins.names("methods") if values["methods"] == "all" else values["methods"]


def _method(values: dict, method: str, kind: str) -> dict:
    """A method and its parameters: the kind's selection, unless ``method_options`` names one."""
    selection = {"selection": values[kind]["selection"]} if "selection" in plugins.fields(method) else {}
    return {"method": method, "options": selection | values["method_options"].get(method, {})}


def _ratios(values: dict, method: str, kind: str) -> list:
    return values[kind]["ratios"] if "ratio" in plugins.fields(method) else [None]


def _name(spec: RunSpec) -> str:
    return f"{spec.model}-{spec.method}" + (f"-{spec.ratio}" if spec.ratio else "")


def _recipe(values: dict, name: str, model: dict) -> dict:
    """The part of a RunSpec that all runs of one model share."""
    imagenet = values["data"]["imagenet"]
    stand_in = model["data"] == "imagenet100" and not imagenet
    data = model["stand_in"] if stand_in else model["data"]
    kept = ("batch", "epochs", "lr", "momentum", "weight_decay", "warmup_epochs")
    shared = ("engine", "workers", "threads", "device", "wire", "bucket_bytes", "planner")
    return {k: values[k] for k in shared} | {k: model[k] for k in kept} | {
        "model": name,
        "data": data,
        "data_root": imagenet if data == "imagenet100" else values["data"]["root"],
        "stand_in": stand_in,
        "train_epochs": model.get("train_epochs", model["epochs"]),
        "lr_steps": tuple(model["lr_steps"]),
    }  # fmt: skip


def _curve(values: dict, model: dict) -> dict:
    points = values["accuracy"]["evaluations"]
    if points == "per epoch":
        points = round(model.get("train_epochs", model["epochs"]))
    images = {k: values["accuracy"][k] for k in ("test_images", "final_test_images")}
    return {"evaluations": points} | images
