"""Checks a configuration before anything runs, and expands it to runs (``dlgs_bench.config.grid``). No torch.

Every error is one line with the file, the key, the value and what is valid.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jsonschema
import yaml

from dlgs_bench import plugins
from dlgs_bench.config import checks, grid, studies, variants
from dlgs_bench.config.renamed import renamed
from dlgs_bench.engines import ENGINES
from dlgs_bench.errors import ConfigError, listed, meant, read_as_text, short_repr
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.spec import RunSpec
from dlgs_bench.testbed import testbed
from dlgs_bench.topology import TOPOLOGIES


def _is_integer(_: object, value: object) -> bool:
    """Whether a value is an integer. jsonschema itself accepts 2.0 as well."""
    return isinstance(value, int) and not isinstance(value, bool)


Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)
SCHEMA = ROOT / "workflow" / "schemas" / "config.schema.yaml"


@dataclass(frozen=True)
class Config:
    """A valid configuration. ``runs``, ``calibrations``: name -> spec. ``studies``: study -> name -> spec."""

    values: dict
    runs: dict[str, RunSpec]
    calibrations: dict[str, RunSpec]
    studies: dict[str, dict[str, RunSpec]]
    warning: str = ""  # one line, if the runs differ from what a user may expect

    @property
    def every(self) -> dict[str, RunSpec]:
        """All runs by name. A run that the paper's tables and a study need is listed once."""
        of_studies = {name: spec for runs in self.studies.values() for name, spec in runs.items()}
        return of_studies | self.calibrations | self.runs


def load(values: dict, where: str) -> Config:
    """Check ``values`` (read from ``where``) and expand them, or raise ConfigError."""
    schema = full_schema()
    if invalid := invalid_value(values):
        raise ConfigError(f"{where}: {invalid}")
    values, old_names = renamed(values)
    errors = Validator(schema).iter_errors(values)
    error = min(errors, key=lambda e: (-len(e.absolute_path), str(e.absolute_path)), default=None)
    if error is not None:
        raise ConfigError(f"{where}: {_explain(error, schema)}")
    _require(values, where, variants.wrong_together)
    values = _with_defaults(values, schema)
    _describe_plug_ins(values)
    _require(values, where, variants.problem, *checks.OF_CONFIGURATIONS)
    values, warning = _with_network(_with_precisions(values))
    warning = "; ".join(filter(None, (old_names, warning, variants.unused(values), checks.untimed_variants(values))))
    try:
        calibrations = grid.calibrations(values, *studies.changed(values))
        runs, of_studies = grid.expand(values), studies.runs(values)
        for study, own in ({"": runs} | of_studies).items():
            if why := checks.needs_sgd(own):
                raise ConfigError(f"studies.{study}: {why}" if study else why)
        return Config(values, runs, calibrations, of_studies, warning and f"{where}: {warning}")
    except ConfigError as error:  # raised above or by a study, without the file
        raise ConfigError(f"{where}: {error}") from None


def _describe_plug_ins(values: dict) -> None:
    """Describe all plug-ins of the configuration in one process, which is faster than a process for each."""
    study = values["studies"]["methods"]
    names = {"models": [*values["models"]], "collectives": [values["collective"]]}
    if values["network"] != "host":  # some studies of links train other models
        parts = [values["studies"][name] for name in studies.schemas()]
        names["models"] += [name for part in parts for key in checks.MODEL_KEYS for name in part.get(key, ())]
    if "all" in (values["methods"], study["methods"]):
        names["methods"] = plugins.names("methods")
    else:
        listed_variants = [*values["methods"], *study["methods"], *values["variants"], *study["variants"]]
        given = study["variants"] | values["variants"]
        names["methods"] = ["none", study["baseline"], *(given.get(n, {}).get("method", n) for n in listed_variants)]
    plugins.describe_all((kind, name) for kind, some in names.items() for name in some)


def check_outputs_writable(values: dict, where: str) -> None:
    """Raise ConfigError unless the folders in the configuration are writable. Snakemake reads them with the rules."""
    _require(values, where, checks.check_writable)


def check_machine(values: dict, where: str, jobs: bool = False) -> None:
    """Raise ConfigError unless the machines have what the configuration requires.

    ``jobs``: the runs will be jobs of a cluster, so only what is equal on all its nodes can be checked.
    """
    _require(values, where, *checks.OF_MACHINES["jobs" if jobs else values["launch"]["by"]])


def _require(values: dict, where: str, *problems: Callable[[dict], str | None]) -> None:
    for problem in problems:
        try:
            message = problem(values)
        except OSError as error:  # a path that cannot be read, or is not possible on this file system
            message = f"{error.filename}: {error.strerror}; give another path"
        if message:
            raise ConfigError(f"{where}: {message}")


@cache
def full_schema() -> dict:
    """The schema in ``SCHEMA``, with the names of engines and topologies and with the schemas of the studies."""
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    servers = [name for name, topology in TOPOLOGIES.items() if topology.servers]
    known = {"engine": list(ENGINES), "topology": list(TOPOLOGIES), "server_topology": servers}
    for name, words in known.items():
        schema["$defs"][name] = {"description": f"one of: {', '.join(words)}", "enum": words}
    for study, part in studies.schemas().items():
        described = {"type": "object", "additionalProperties": False, "default": {}}
        schema["properties"]["studies"]["properties"][study] = described | part
    return schema


def _explain(error: jsonschema.ValidationError, schema: dict) -> str:
    """One line for a schema error: the key, the value, and a description of valid values."""
    key = ".".join(str(part) for part in error.absolute_path) or "the configuration"
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = next(k for k in error.instance if k not in known)
        return f"{key}: unknown key {short_repr(unknown)}{meant(unknown, known)}; {listed(known)}"
    if error.validator == "required":
        missing = next(k for k in error.validator_value if k not in error.instance)
        expected = error.schema["properties"][missing]
        expected = schema["$defs"][expected["$ref"].rpartition("/")[2]] if "$ref" in expected else expected
        return f"{key}: {missing!r} is missing; give {expected['description']}"
    expected = error.schema.get("description", error.message)
    hint = read_as_text(error.instance) if re.search("'(number|integer)'", str(error.schema)) else ""
    return f"{key}: {short_repr(error.instance)} is not valid; give {expected}{hint}"


def invalid_value(values: object, key: str = "") -> str | None:
    """The first key that is not text or number that is not finite, in one line, or None. A schema cannot check them."""
    if isinstance(values, dict):
        for name, value in values.items():
            if not isinstance(name, str) and key != "testbed.host_rates_mbit":
                return f"{key or 'the configuration'}: the key {name!r} is not text; put it in quotes"
            if message := invalid_value(value, f"{key}.{name}" if key else str(name)):
                return message
    if isinstance(values, list):
        messages = (invalid_value(value, f"{key}.{index}") for index, value in enumerate(values))
        return next(filter(None, messages), None)
    if isinstance(values, int | float) and not abs(values) <= sys.float_info.max:
        text = values if isinstance(values, float) else "a number with more than 308 digits"
        return f"{key}: {text} is not valid; give a finite number"
    return None


def _with_defaults(values: dict, schema: dict) -> dict:
    """``values`` with the defaults of the schema, at every level."""
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


def defaults(*keys: str) -> dict:
    """The default values of a part of the configuration, such as ("testbed", "nodes")."""
    schema = full_schema()
    for key in keys:
        schema = schema["properties"][key]
    return _with_defaults({}, schema)


def _with_precisions(values: dict) -> dict:
    """``values`` with ``precision: auto`` replaced by the fastest precision of this machine."""
    here = "bfloat16" if checks.gains_from_bfloat16(values["device"]) else "float32"
    models = {
        name: model | {"precision": here if model["precision"] == "auto" else model["precision"]}
        for name, model in values["models"].items()
    }
    return values | {"models": models}


def _with_network(values: dict) -> tuple[dict, str]:
    """``values`` with ``network: auto`` replaced for this machine, and a warning, or an empty string."""
    if values["network"] != "auto":
        return values, ""
    missing = checks.why_no_testbed(values) or testbed.why_unavailable(checks.least_latency_ms(values))
    warning = f"network: auto is host, the network is not shaped: {missing}" if missing else ""
    return values | {"network": "host" if missing else "testbed"}, warning
