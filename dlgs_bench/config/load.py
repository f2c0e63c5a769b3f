"""A configuration: checked as a whole before anything runs, then expanded to runs (``dlgs_bench.config.grid``). No
torch.

Every error is one line: where, what, and what would be right.
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
from dlgs_bench.config.errors import ConfigError
from dlgs_bench.config.renamed import renamed
from dlgs_bench.engines import ENGINES
from dlgs_bench.errors import listed, meant, read_as_text, shown
from dlgs_bench.fingerprint import ROOT
from dlgs_bench.launch import testbed
from dlgs_bench.spec import RunSpec
from dlgs_bench.topology import TOPOLOGIES


def _whole(_, value) -> bool:
    """Whether a value is an integer; jsonschema takes 2.0 for one."""
    return isinstance(value, int) and not isinstance(value, bool)


Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _whole),
)
SCHEMA = ROOT / "workflow" / "schemas" / "config.schema.yaml"


@dataclass(frozen=True)
class Config:
    """A checked configuration; ``runs``, ``calibrations``: name -> spec; ``studies``: study -> name -> spec."""

    values: dict
    runs: dict[str, RunSpec]
    calibrations: dict[str, RunSpec]
    studies: dict[str, dict[str, RunSpec]]
    warning: str = ""  # one line, if the runs are not quite what was asked for

    @property
    def every(self) -> dict[str, RunSpec]:
        """All runs by name; a run that a study wants too is the paper's."""
        found = {name: spec for runs in self.studies.values() for name, spec in runs.items()}
        return found | self.calibrations | self.runs


def load(values: dict, where: str) -> Config:
    """Check ``values`` (read from ``where``) and expand them, or raise ConfigError."""
    schema = _schema()
    if found := nonsense(values):
        raise ConfigError(f"{where}: {found}")
    values, old_names = renamed(values)
    errors = Validator(schema).iter_errors(values)
    error = min(errors, key=lambda e: (-len(e.absolute_path), str(e.absolute_path)), default=None)
    if error is not None:
        raise ConfigError(f"{where}: {_explain(error, schema)}")
    _require(values, where, variants.wrong_together)
    values = _with_defaults(values, schema)
    _look_at_plug_ins(values)
    _require(values, where, variants.problem, *checks.OF_CONFIGURATIONS)
    values, warning = _with_network(_with_precisions(values))
    warning = "; ".join(filter(None, (old_names, warning, variants.idle(values), checks.unanswered(values))))
    try:
        calibrations = grid.calibrations(values)
        for one in studies.changed(values):
            calibrations = grid.calibrations(one, calibrations)
        of_studies = studies.runs(values)
        for study, runs in of_studies.items():
            if why := checks.needs_sgd(runs):
                raise ConfigError(f"studies.{study}: {why}")
        return Config(values, grid.expand(values), calibrations, of_studies, warning and f"{where}: {warning}")
    except ConfigError as error:  # a study's own
        raise ConfigError(f"{where}: {error}") from None


def _look_at_plug_ins(values: dict) -> None:
    """Describe at once what the configuration names; each by itself would be a process of its own."""
    study = values["studies"]["methods"]
    names = {"models": [*values["models"]], "collectives": [values["collective"]]}
    if "all" in (values["methods"], study["methods"]):
        names["methods"] = plugins.names("methods")
    else:
        listed_variants = [*values["methods"], *study["methods"], *values["variants"], *study["variants"]]
        given = study["variants"] | values["variants"]
        names["methods"] = ["none", study["baseline"], *(given.get(n, {}).get("method", n) for n in listed_variants)]
    plugins.look_at((kind, name) for kind, some in names.items() for name in some)


def check_places(values: dict, where: str) -> None:
    """Raise ConfigError unless the folders that the configuration names may hold what is put there; Snakemake looks
    into them as soon as it knows the rules."""
    _require(values, where, checks.writable)


def check_machine(values: dict, where: str, jobs: bool = False) -> None:
    """Raise ConfigError unless the machines that will run it have what the configuration asks of them.

    ``jobs``: the runs will be jobs of a cluster, of which this machine only knows what they share.
    """
    _require(values, where, *checks.OF_MACHINES["jobs" if jobs else values["launch"]["by"]])


def _require(values: dict, where: str, *problems: Callable[[dict], str | None]) -> None:
    for problem in problems:
        try:
            found = problem(values)
        except OSError as error:  # of a place that nobody may look into, or that no disk could have
            found = f"{error.filename}: {error.strerror}; give another place"
        if found:
            raise ConfigError(f"{where}: {found}")


@cache
def _schema() -> dict:
    """The schema in ``SCHEMA`` with the names that the code knows and the parts of the studies."""
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
    """One line for a schema error: the key, the value, and the description of what would be right."""
    key = ".".join(str(part) for part in error.absolute_path) or "the configuration"
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = next(k for k in error.instance if k not in known)
        return f"{key}: unknown key {shown(unknown)}{meant(unknown, known)}; {listed(known)}"
    if error.validator == "required":
        missing = next(k for k in error.validator_value if k not in error.instance)
        right = error.schema["properties"][missing]
        right = schema["$defs"][right["$ref"].rpartition("/")[2]] if "$ref" in right else right
        return f"{key}: {missing!r} is missing; give {right['description']}"
    right = error.schema.get("description", error.message)
    hint = read_as_text(error.instance) if re.search("'(number|integer)'", str(error.schema)) else ""
    return f"{key}: {shown(error.instance)} is not valid; give {right}{hint}"


def nonsense(values, key: str = "") -> str | None:
    """Keys that are no text, and numbers that are none, in one line; no schema finds them."""
    if isinstance(values, dict):
        for name, value in values.items():
            if not isinstance(name, str) and key != "testbed.host_rates_mbit":
                return f"{key or 'the configuration'}: YAML reads a key as {name!r}, which is no text; put it in quotes"
            if found := nonsense(value, f"{key}.{name}" if key else str(name)):
                return found
    if isinstance(values, list):
        every = (nonsense(value, f"{key}.{place}") for place, value in enumerate(values))
        return next(filter(None, every), None)
    if isinstance(values, int | float) and not abs(values) <= sys.float_info.max:
        said = values if isinstance(values, float) else "so large a number"
        return f"{key}: {said} is not valid; give a finite number"
    return None


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


def _with_precisions(values: dict) -> dict:
    """``values`` with auto decided for this machine."""
    here = "bfloat16" if values["device"] == "cuda" or checks.gains_from_bfloat16() else "float32"
    asked = {name: model["precision"] for name, model in values["models"].items()}
    decided = {name: {"precision": here if one == "auto" else one} for name, one in asked.items()}
    return values | {"models": {name: model | decided[name] for name, model in values["models"].items()}}


def _with_network(values: dict) -> tuple[dict, str]:
    """``values`` with auto decided for this machine, and what a person should know of it."""
    if values["network"] != "auto":
        return values, ""
    missing = checks.unfit(values) or testbed.available(checks.least_latency_ms(values))
    warning = f"network: auto is host, the network is not shaped: {missing}" if missing else ""
    return values | {"network": "host" if missing else "testbed"}, warning
