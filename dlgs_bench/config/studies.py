"""Studies: the folders in workflow/studies. No torch.

A folder ``<name>`` holds the rules of a study in ``<name>.smk``. It can also hold ``schema.yaml``, the schema of
``studies.<name>`` in a configuration, and ``runs.py``, which defines the study's runs in addition to the paper's runs:

- ``runs(values) -> {name: RunSpec}``;
- ``changed(values) -> [values]``: the changed configurations whose calibrations the study needs, if any.
"""

import importlib.util
from functools import cache
from types import ModuleType

import yaml

from dlgs_bench.fingerprint import ROOT
from dlgs_bench.spec import RunSpec

FOLDER = ROOT / "workflow" / "studies"


@cache
def names() -> list[str]:
    """The names of all studies."""
    return sorted(path.parent.name for path in FOLDER.glob("*/*.smk") if path.stem == path.parent.name)


@cache
def schemas() -> dict[str, dict]:
    """study -> the schema of its part of a configuration, for the studies with a schema."""
    files = {name: FOLDER / name / "schema.yaml" for name in names()}
    return {name: yaml.safe_load(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


def runs(values: dict) -> dict[str, dict[str, RunSpec]]:
    """study -> name of a run -> spec."""
    return {name: module.runs(values) if (module := _load(name)) else {} for name in names()}


def changed(values: dict) -> list[dict]:
    """The changed configurations of all studies."""
    modules = filter(None, map(_load, names()))
    return [one for module in modules if hasattr(module, "changed") for one in module.changed(values)]


@cache
def _load(name: str) -> ModuleType | None:
    path = FOLDER / name / "runs.py"
    if not path.exists():
        return None
    module_spec = importlib.util.spec_from_file_location(f"studies.{name}", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module
