"""A configuration: checked as a whole before anything runs, then expanded to runs (``harness.config.grid``). No torch.

Every error is one line: where, what, and what would be right.
"""

import ast
import difflib
import operator
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import yaml

from harness import plugins
from harness.config import grid
from harness.launch import testbed
from harness.data.fetch.imagenet100 import CLASSES
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
    return Config(values, *grid.everything(values), warning)


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
    for topology in grid.all_topologies(values):
        for method in values["methods"]:
            if not grid.answers(topology, method):
                return f"topologies: {topology} cannot answer {method}, which asks for more than one sum; leave out one"
    return None


def _check_plan(values: dict) -> str | None:
    planned = [spec for spec in grid.expand(values).values() if spec.kind == "accuracy" and grid.needs_plan(spec)]
    for name in values["models"]:
        if planned and "allgather" not in grid.topologies_of(values, name):
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
        missing = [c for c in CLASSES if not (Path(imagenet) / part / c).is_dir()]
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
    found, wanted = listed.count("GPU "), grid.gpus(values)
    if found >= wanted:
        return None
    server = " and a server" if wanted > values["workers"] else ""
    return (
        f"device: cuda with {values['workers']} workers{server} needs {wanted} GPUs, this machine shows {found}; "
        "use fewer workers or device: cpu, or run where the GPUs are"
    )


def _check_hosts(values: dict) -> str | None:
    hosts = range(grid.processes(values))
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
