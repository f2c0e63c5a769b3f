"""A configuration: checked as a whole before anything runs, then expanded to runs. No torch.

Every error is one line: where, what, and what would be right.
"""

import ast
import difflib
import operator
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import yaml

from harness import plugins, testbed
from harness.imagenet100 import class_ids
from harness.spec import RunSpec

SCHEMA = plugins.ROOT / "workflow" / "schemas" / "config.schema.yaml"


class ConfigError(Exception):
    """A mistake in a configuration; the message is one line for a person."""


@dataclass(frozen=True)
class Config:
    """A checked configuration; ``runs``, ``calibrations``: name -> spec; ``studies``: study -> name -> spec."""

    values: dict
    runs: dict[str, RunSpec]
    calibrations: dict[str, RunSpec]
    studies: dict[str, dict[str, RunSpec]]
    warning: str = ""  # one line, if the runs are not quite what was asked for


def load(values: dict, where: str) -> Config:
    """Check ``values`` (read from ``where``) and expand them, or raise ConfigError."""
    schema = yaml.safe_load(SCHEMA.read_text())
    errors = jsonschema.Draft202012Validator(schema).iter_errors(values)
    error = min(errors, key=lambda e: (-len(e.absolute_path), str(e.absolute_path)), default=None)
    if error is not None:
        raise ConfigError(f"{where}: {_explain(error)}")
    values = _with_defaults(values, schema)
    _require(values, where, _check_plugins, _check_options, _check_topologies, _check_data, _check_plan)
    _require(values, where, _check_wire, _check_hosts)
    values, warning = _with_network(values)
    warning = warning and f"{where}: {warning}"
    changed = (*_rates(values), *_servers(values), *_selections(values))
    calibrations = {name: spec for one in (*changed, values) for name, spec in _calibrations(one).items()}
    return Config(values, _expand(values), calibrations, _studies(values), warning)


def check_machine(values: dict, where: str) -> None:
    """Raise ConfigError unless this machine has what the configuration asks of it."""
    _require(values, where, _check_folders, _check_gpus, _check_testbed)


def _require(values: dict, where: str, *checks) -> None:
    for check in checks:
        problem = check(values)
        if problem:
            raise ConfigError(f"{where}: {problem}")


def _explain(error: jsonschema.ValidationError) -> str:
    """One line for a schema error: the key, the value, and the description of what would be right."""
    key = ".".join(str(part) for part in error.absolute_path) or "the configuration"
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = next(k for k in error.instance if k not in known)
        return f"{key}: unknown key {unknown!r}{_meant(unknown, known)}; known: {', '.join(known)}"
    if error.validator == "required":
        missing = next(k for k in error.validator_value if k not in error.instance)
        right = error.schema["properties"][missing]["description"]
        return f"{key}: {missing!r} is missing; give {right}"
    return f"{key}: {error.instance!r} is not valid; give {error.schema.get('description', error.message)}"


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _with_defaults(values: dict, schema: dict) -> dict:
    """``values`` with the schema's defaults filled in, at every level."""
    filled = dict(values)
    for key, part in schema.get("properties", {}).items():
        if "default" in part:
            filled.setdefault(key, part["default"])
        if key in filled and part.get("type") == "object":
            filled[key] = _with_defaults(filled[key], part)
    each = schema.get("additionalProperties")
    if isinstance(each, dict):
        filled = {k: _with_defaults(v, each) if isinstance(v, dict) else v for k, v in filled.items()}
    return filled


def _check_plugins(values: dict) -> str | None:
    known = plugins.names("methods")
    for name in [] if values["methods"] == "all" else values["methods"]:
        if name not in known:
            return f"methods: no file methods/{name}.py{_meant(name, known)}; known: {', '.join(known)}"
    known = plugins.names("models")
    for name in values["models"]:
        if name not in known:
            return f"models: no file models/{name}.py{_meant(name, known)}; known: {', '.join(known)}"
    return None


BOUND = re.compile(r"Annotated\[(\w+), '(>=|>) (\S+)'\]")
BEYOND = {">=": operator.ge, ">": operator.gt}
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str}


def _check_options(values: dict) -> str | None:
    for method, options in values["method_options"].items():
        if method not in plugins.names("methods"):
            return f"method_options: no file methods/{method}.py; known: {', '.join(plugins.names('methods'))}"
        known = {k: v for k, v in plugins.fields(method).items() if k != "ratio"}
        for key, value in options.items():
            where = f"method_options.{method}"
            if key not in known:
                return f"{where}: unknown key {key!r}{_meant(key, list(known))}; known: {', '.join(known) or 'none'}"
            if known[key].startswith("Literal["):
                allowed = ast.literal_eval(known[key].removeprefix("Literal"))
                if value not in allowed:
                    return f"{where}.{key}: {value!r} is not valid; give one of: {', '.join(map(str, allowed))}"
            bound = BOUND.fullmatch(known[key])
            kind = bound[1] if bound else known[key]
            wanted = TYPES.get(kind)
            if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
                return f"{where}.{key}: {value!r} is not valid; give a value of type {kind}"
            if bound and not BEYOND[bound[2]](value, float(bound[3])):
                return f"{where}.{key}: {value!r} is not valid; give a value {bound[2]} {bound[3]}"
    return None


def _check_topologies(values: dict) -> str | None:
    if values["methods"] == "all":  # then a server's timing runs are those of the methods it can answer
        return None
    for topology in _all_topologies(values):
        for method in values["methods"]:
            if not _answers(topology, method):
                return f"topologies: {topology} cannot answer {method}, which asks for more than one sum; leave out one"
    return None


def _answers(topology: str, method: str) -> bool:
    """Whether the topology has an answer to what the method asks."""
    return topology == "allgather" or plugins.one_sum(method) is not None


def _check_plan(values: dict) -> str | None:
    planned = [spec for spec in _expand(values).values() if spec.kind == "accuracy" and needs_plan(spec)]
    for name in values["models"]:
        if planned and "allgather" not in _topologies(values, name):
            return f"topologies: {name}'s accuracy runs use the plans for allgather; add it, or give planner: layer"
    extra = {spec.ratio for spec in planned} - set(values["timing"]["ratios"])
    if not extra:
        return None
    return f"accuracy.ratios: {min(extra)} has no plan; give only ratios of timing.ratios, or planner: layer"


def _check_data(values: dict) -> str | None:
    for name, model in values["models"].items():
        if model["data"] == "imagenet100" and not values["data"]["imagenet"] and "stand_in" not in model:
            return f"data.imagenet: empty, but {name} wants imagenet100; give its folder, or {name}.stand_in: cifar10"
    return None


def _check_wire(values: dict) -> str | None:
    if values["wire"] == "smallest" and values["device"] == "cuda":
        return "wire: smallest is for device: cpu; give indices"
    return None


def _check_folders(values: dict) -> str | None:
    imagenet = values["data"]["imagenet"]
    if not imagenet or all(model["data"] != "imagenet100" for model in values["models"].values()):
        return None
    for part in ("train", "val"):
        missing = [c for c in class_ids() if not (Path(imagenet) / part / c).is_dir()]
        if missing:
            return (
                f"data.imagenet: no folder {imagenet}/{part}/{missing[0]} ({len(missing)} of 100 classes missing); "
                "give a folder with train/<class id>/ and val/<class id>/"
            )
    return None


def _check_gpus(values: dict) -> str | None:
    if values["device"] != "cuda":
        return None
    listed = ""
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    found, wanted = listed.count("GPU "), gpus(values)
    if found >= wanted:
        return None
    server = " and a server" if wanted > values["workers"] else ""
    return (
        f"device: cuda with {values['workers']} workers{server} needs {wanted} GPUs, this machine shows {found}; "
        "use fewer workers or device: cpu, or run where the GPUs are"
    )


def gpus(values: dict) -> int:
    """How many GPUs the largest run takes: one per process."""
    if values["device"] != "cuda":
        return 0
    return values["workers"] + any(topology != "allgather" for topology in _all_topologies(values))


def _check_hosts(values: dict) -> str | None:
    hosts = range(values["workers"] + any(topology != "allgather" for topology in _all_topologies(values)))
    for host in values["testbed"]["host_rates_mbit"]:
        if str(host) not in map(str, hosts):
            return f"testbed.host_rates_mbit: no host {host}; give hosts of 0 to {hosts[-1]}, one per process"
    if values["network"] == "testbed" and _unfit(values):
        return f"network: {_unfit(values)}; give host"
    return None


def _unfit(values: dict) -> str:
    """Why no testbed could serve this configuration, or nothing."""
    if values["device"] == "cuda":
        return "testbed is for device: cpu, since GPUs of one machine need no network"
    return "testbed needs 2 workers, which has links to shape" if values["workers"] < 2 else ""


def _check_testbed(values: dict) -> str | None:
    if values["network"] == "testbed" and testbed.available():
        return f"network: no testbed here: {testbed.available()}; give host"
    return None


def _with_network(values: dict) -> tuple[dict, str]:
    """``values`` with auto decided for this machine, and what a person should know of it."""
    if values["network"] != "auto":
        return values, ""
    missing = _unfit(values) or testbed.available()
    warning = f"network: auto is host, the network is not shaped: {missing}" if missing else ""
    return values | {"network": "host" if missing else "testbed"}, warning


def _links(values: dict, topology: str) -> dict:
    """The part of a RunSpec that says over which network it is timed; a server's host is the last."""
    if values["network"] == "host":
        return {"topology": topology}
    hosts = range(values["workers"] + (topology != "allgather"))
    own = {str(host): rate for host, rate in values["testbed"]["host_rates_mbit"].items()}
    rates = (own.get(str(host), values["testbed"]["rate_mbit"]) for host in hosts)
    return {"topology": topology, "network": "testbed", "rates_mbit": tuple(map(float, rates))}


def _expand(values: dict) -> dict[str, RunSpec]:
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
            for topology in (t for t in _topologies(values, name) if _answers(t, method)):
                for ratio in _ratios(values, method, "timing"):
                    blocks = {k: values["timing"][k] for k in ("blocks", "repeats")}
                    spec = RunSpec(kind="timing", ratio=ratio, **timing, **blocks, **_links(values, topology))
                    runs[f"timing/{timing_name(spec)}"] = spec
    return dict(sorted(runs.items(), key=lambda item: item[0].split("/")[0]))


def _accuracy(values: dict, name: str, method: str, ratio: float | None, seed: int) -> RunSpec:
    model = values["models"][name]
    shared = _recipe(values, name, model) | _method(values, method, "accuracy") | _curve(values, model)
    return RunSpec(kind="accuracy", ratio=ratio, seed=seed, **shared)


def _methods(values: dict) -> list[str]:
    return plugins.names("methods") if values["methods"] == "all" else values["methods"]


def _topologies(values: dict, model: str) -> list[str]:
    return values["models"][model].get("topologies", values["topologies"])


def _all_topologies(values: dict) -> list[str]:
    return sorted({topology for model in values["models"] for topology in _topologies(values, model)})


def _calibrations(values: dict) -> dict[str, RunSpec]:
    """Layer times per model, exchange times per method and ratio: a new method adds only its own."""
    found = {}
    for name, model in values["models"].items():
        recipe = _recipe(values, name, model)
        spec = RunSpec(kind="layers", method="none", ratio=None, repeats=30, **recipe)
        found[f"layers/{layers_name(spec)}"] = spec
    shared = {k: values[k] for k in ("engine", "workers", "threads", "device", "wire")}
    for topology in _all_topologies(values):
        models = [name for name in values["models"] if topology in _topologies(values, name)]
        shared["largest_entries"] = max(map(plugins.parameters, models))
        for method in (m for m in _methods(values) if _answers(topology, m)):
            for ratio in _ratios(values, method, "timing"):
                spec = RunSpec(
                    kind="exchanges", model="", ratio=ratio, repeats=4,
                    **shared, **_links(values, topology), **_method(values, method, "timing"),
                )  # fmt: skip
                found[f"exchanges/{exchange_name(spec)}"] = spec
    return found


def _studies(values: dict) -> dict[str, dict[str, RunSpec]]:
    """Runs beyond the paper: see ``studies`` in the schema."""
    timing = {name: spec for name, spec in _expand(values).items() if spec.kind == "timing"}
    planners = {
        name.replace("timing/", "planners/"): replace(spec, kind="planners")
        for name, spec in timing.items() if plugins.scope(spec.method) == "plan"
    }  # fmt: skip
    return {
        "planners": planners,
        "refresh": _intervals(values),
        "rates": _timing_of(_rates(values)),
        "servers": _timing_of(_servers(values)),
        "selections": _timing_of(_selections(values)),
    }


def _timing_of(changed: list[dict]) -> dict[str, RunSpec]:
    return {name: spec for one in changed for name, spec in _expand(one).items() if spec.kind == "timing"}


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
