"""Fences: who may import whom, what must agree with what."""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT


def imported(path: Path) -> set[str]:
    """The dotted names a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


NO_TORCH = [
    "spec",
    "timeline",
    "planner",
    "config",
    "grid",
    "plugins",
    "progress",
    "imagenet100",
    "style",
    "timing_summary",
    "costs",
    "launch",
    "tidy",
    "links",
    "calibrated",
    "testbed",
    "hosts",
]


@pytest.mark.parametrize("name", NO_TORCH)
def test_these_rooms_know_neither_torch_nor_snakemake(name):
    assert not packages(ROOT / "harness" / f"{name}.py") & {"torch", "snakemake"}


@pytest.mark.parametrize("path", sorted((ROOT / "workflow" / "scripts").rglob("*.py")), ids=lambda p: p.stem)
def test_scripts_never_import_torch(path):
    assert "torch" not in packages(path)


@pytest.mark.parametrize("path", sorted((ROOT / "methods").glob("*.py")), ids=lambda p: p.stem)
def test_methods_import_only_torch_and_the_contract(path):
    outside = {n for n in imported(path) if n.startswith(("harness", "methods", "models", "workflow"))}
    assert all(n.startswith(("harness.exchange.method", "harness.exchange.selection")) for n in outside)


def test_only_the_engine_and_its_rendezvous_import_horovod():
    # The rendezvous is a process of its own, on a testbed's first host: the launchers stay free of Horovod.
    # bench/ measures Horovod's own optimizer beside ours.
    files = [p for p in ROOT.rglob("*.py") if not {".venv", ".tools", "bench"} & set(p.parts)]
    found = {str(p.relative_to(ROOT)) for p in files if "horovod" in packages(p)}
    assert found == {"harness/comm/horovod.py", "harness/comm/horovod_rendezvous.py"}


@pytest.mark.parametrize("name", ["train", "timed"])
def test_the_training_loop_names_no_plug_in(name):
    text = (ROOT / "harness" / f"{name}.py").read_text()
    # "none", uncompressed, is what every timing is paired with; no other plug-in is known by name.
    names = {p.stem for kind in ("methods", "models") for p in (ROOT / kind).glob("*.py")} - {"none"}
    names |= {"horovod", "torch_dist"}
    assert not [n for n in names if re.search(rf"\b{n}\b", text)]


def test_snakefiles_never_import_torch():
    for path in [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]:
        assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.M)


def test_the_snakefile_stays_short():
    assert len((ROOT / "Snakefile").read_text().splitlines()) <= 50


CONDA_NAMES = {"pytorch": "torch", "snakemake-minimal": "snakemake"}


def test_conda_and_pip_pin_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = dict(p.split("==") for p in project["project"]["dependencies"] + project["dependency-groups"]["dev"])
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pairs = [entry.split("=")[:2] for entry in conda if "=" in entry]
    versions = {CONDA_NAMES.get(name, name): version for name, version in pairs}
    shared = versions.keys() & pinned.keys()
    assert {n: versions[n] for n in shared} == {n: pinned[n] for n in shared}
    assert {"torch", "torchvision", "horovod", "numpy", "pandas", "seaborn", "snakemake"} <= shared
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.txt").read_text(), re.M))
    assert {n: locked[n] for n in pinned} == pinned


def test_no_registry_address_and_no_large_file_is_committed():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not listed:
        pytest.skip("not a git checkout")
    assert not [f for f in listed if f.endswith("uv.lock") or "pylock" in f]
    assert "http" not in (ROOT / "requirements.txt").read_text()
    assert all((ROOT / f).stat().st_size < 2_000_000 for f in listed if (ROOT / f).exists())


def test_the_readme_shows_the_reference_tables():
    readme = (ROOT / "README.md").read_text()
    for n in (1, 2):
        table = (ROOT / "results" / "reference" / f"table{n}.md").read_text()
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert all(row in readme for row in rows)
    assert len(readme.splitlines()) <= 150
    provenance = json.loads((ROOT / "results" / "reference" / "provenance.json").read_text())
    assert provenance["machine"][0] in readme
