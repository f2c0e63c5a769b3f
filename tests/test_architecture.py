"""Fences: who may import whom, what must agree with what."""

import ast
import importlib.metadata
import json
import re
import runpy
import subprocess
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from support import ROOT

import dlgs_bench

pytestmark = pytest.mark.unit


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    """The dotted names a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


# Part of dlgs_bench -> the parts that it may import. Data flows one way, so there are no cycles.
MAY_IMPORT = {
    part: set(others.split())
    for part, others in {
        "topology": "",
        "device": "",
        "atomic_file": "",
        "file_lock": "",
        "buckets": "",
        "stats": "",
        "engines": "",
        "errors": "",
        "checksums": "",
        "cli": "",
        "spec": "topology",
        "fingerprint": "spec",
        "plugins": "atomic_file fingerprint",
        "data": "errors file_lock",
        "comm": "engines plugins",
        "exchange": "buckets comm errors plugins topology",
        "timemodel": "buckets checksums engines errors plugins spec stats topology",
        "testbed": "",
        "launch": "atomic_file checksums engines errors file_lock spec testbed timemodel",
        "training": "atomic_file buckets comm data device engines errors exchange fingerprint launch plugins spec "
        "stats testbed timemodel topology",
        "hooks": "buckets comm errors exchange plugins topology",
        "probe": "atomic_file buckets comm device engines errors exchange hooks plugins stats timemodel topology",
        "looks": "",
        "figure_file": "atomic_file",
        "advise": "errors figure_file looks timemodel",
        "rehearse": "advise engines errors launch spec stats testbed timemodel",
        "describe": "data errors exchange plugins training",
        "list_methods": "errors exchange plugins",
        "result_set": "atomic_file checksums errors",
        "config": "buckets data engines errors fingerprint launch plugins spec testbed timemodel topology",
        "report": "atomic_file buckets checksums errors figure_file looks plugins spec stats timemodel topology",
        "paper": "plugins report stats topology",
    }.items()
}
# Only these import torch.
TORCH = {"comm", "data", "describe", "device", "exchange", "hooks", "list_methods", "probe", "training"}


def package_files() -> list[Path]:
    return sorted(
        p for p in (ROOT / "dlgs_bench").rglob("*.py") if p.parent.name != "dlgs_bench" or p.stem != "__init__"
    )


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "dlgs_bench").parts[0].removesuffix(".py")


def test_a_part_imports_only_the_parts_it_may():
    for path in package_files():
        part = part_of(path)
        dotted = {name for name in imported(path) if name.startswith("dlgs_bench.")}
        assert {name.split(".")[1] for name in dotted} - {part, "__version__"} <= MAY_IMPORT[part], path
        outside = packages(path) & {"torch", "snakemake", "methods", "models", "workflow"}
        assert outside <= ({"torch"} if part in TORCH else set()), path


def test_imports_have_no_cycles():
    rest = dict(MAY_IMPORT)
    while rest:
        free = {part for part, others in rest.items() if not others & rest.keys()}
        assert free, f"these import each other: {sorted(rest)}"
        rest = {part: others for part, others in rest.items() if part not in free}


SCRIPTS = [p for part in ("scripts", "studies") for p in (ROOT / "workflow" / part).rglob("*.py")]


# Two implementations of one interface, or a data set and its download.
SHARED_NAMES = {"__init__", "__main__", "torch_backend", "compiled_backend", "cifar10", "imagenet100"}


def test_modules_with_different_content_have_different_names():
    modules = Counter(path.stem for path in package_files())
    assert {name for name, count in modules.items() if count > 1} <= SHARED_NAMES


def test_scripts_never_import_torch():
    assert SCRIPTS and not [path for path in SCRIPTS if "torch" in packages(path)]


@pytest.mark.parametrize("path", sorted(SCRIPTS), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_scripts_can_be_imported_without_running(path):
    module = runpy.run_path(str(path))
    assert path.stem in ("runs", "reference") or "main" in module


@pytest.mark.parametrize("path", sorted((ROOT / "methods").glob("*.py")), ids=lambda p: p.stem)
def test_methods_import_only_torch_the_contract_and_each_other(path):
    outside = {n for n in imported(path) if n.startswith(("dlgs_bench", "models", "workflow"))}
    assert all(n.startswith("dlgs_bench.exchange") for n in outside)


PURE = [*(ROOT / "dlgs_bench/comm/collectives").glob("[a-z]*.py"), ROOT / "dlgs_bench/comm/hybrid_messages.py"]


@pytest.mark.parametrize("path", sorted(PURE), ids=lambda p: p.stem)
def test_collectives_import_only_torch_and_their_contract(path):
    contract = ("dlgs_bench.comm.collectives", "dlgs_bench.comm.blocks")
    assert all(n.startswith(contract) for n in imported(path) if n.startswith("dlgs_bench"))
    assert packages(path) <= {"torch", "dlgs_bench", "collections", "dataclasses", "types"}


SCRIPTS_OF_USERS = {
    "tests/hook_script.py",
    "tests/hook_parts.py",
    "tests/hook_wrappers.py",
    "examples/horovod_minimal.py",
}


def test_only_the_engine_and_its_rendezvous_import_horovod():
    # The rendezvous is a process of its own, on a testbed's first host: the launchers stay free of Horovod.
    # bench/ measures Horovod's own optimizer next to ours, and the scripts of users import it too.
    folders = [folder for folder in ROOT.glob("[!.]*") if folder.is_dir() and folder.name != "bench"]
    named = [p for folder in folders for p in folder.rglob("*.py") if "horovod" in p.read_text(encoding="utf-8")]
    found = {str(p.relative_to(ROOT)) for p in named if "horovod" in packages(p)}
    assert found == {"dlgs_bench/comm/horovod_engine.py", "dlgs_bench/comm/horovod_rendezvous.py", *SCRIPTS_OF_USERS}


def test_a_compiled_pass_is_made_of_its_own_file():
    """Numba recompiles a cached pass only if its own file changes, so it must not use names of other files."""
    passes = 0
    for path in package_files():
        nodes = list(ast.walk(tree_of(path)))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith("dlgs_bench")]
        others = {alias.asname or alias.name for node in imports for alias in node.names}
        for one in (node for node in nodes if isinstance(node, ast.FunctionDef)):
            if any("njit" in ast.unparse(decorator) for decorator in one.decorator_list):
                passes += 1
                used = {node.id for node in ast.walk(one) if isinstance(node, ast.Name)}
                assert not others & used - {argument.arg for argument in one.args.args}, f"{path}: {one.name}"
    assert passes


def words(path: Path) -> set[str]:
    """The texts in a file's code that are one word."""
    return {n.value for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_engines_and_topologies_are_named_in_one_place():
    for path in package_files():
        found = words(path)
        if part_of(path) != "topology":
            assert not found & {"allgather", "ps-weights", "ps-sparse"}, path
        if part_of(path) not in ("engines", "spec"):  # the spec has a default
            assert not found & {"torch_dist"}, path


def test_the_package_names_no_plug_in():
    # "none", uncompressed, is what every timing is paired with. Other plug-ins are known by name only to the part that
    # is about the paper, and to the looks of figures, in which common methods have the same colour everywhere.
    names = {p.stem for kind in ("methods", "models") for p in (ROOT / kind).glob("*.py")} - {"none"}
    for path in package_files():
        assert part_of(path) == "paper" or path.name == "looks.py" or not words(path) & names, path


def test_snakefiles_never_import_torch():
    for path in [ROOT / "Snakefile", *(ROOT / "workflow").rglob("*.smk")]:
        assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.M)


CONDA_NAMES = {"pytorch": "torch", "snakemake-minimal": "snakemake"}
# GPU nodes do without these.
TOOLS = {"ruff", "snakefmt", "mypy", "coverage", "accelerate", "lightning", "transformers", "mkdocs-material"}


def locked() -> dict[str, str]:
    """The version of every package in ``requirements.txt``."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.txt").read_text(), re.M))


def test_conda_and_pip_pin_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    pinned = dict(p.split("==") for p in groups["pinned"] + groups["dev"])
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pairs = [entry.split("=")[:2] for entry in conda if "=" in entry]
    versions = {CONDA_NAMES.get(name, name): version for name, version in pairs}
    assert {name: versions.get(name) for name in pinned.keys() - TOOLS} == {
        name: version for name, version in pinned.items() if name not in TOOLS
    }
    assert {name for name in versions if name not in pinned} == {"python", "cuda-version"}
    builds = dict(entry.split("=")[::2] for entry in conda if entry.count("=") == 2)
    assert builds == {"pytorch": "cuda*", "horovod": "cuda_mpi_openmpi_*"}
    listed = locked()
    assert {n: listed[n] for n in pinned} == pinned


def test_every_listed_package_installs_with_the_first_release_of_python_3_11():
    """A resolver that runs on Python 3.11.7 may choose a package that 3.11.2, which Debian 12 ships, cannot install."""
    installed = {canonicalize_name(d.metadata["Name"]): d for d in importlib.metadata.distributions()}
    needs = {n: installed[n].metadata["Requires-Python"] for n in locked() if n in installed}
    assert len(needs) > 100
    assert not {n: rule for n, rule in needs.items() if rule and "3.11.0" not in SpecifierSet(rule)}


def test_no_registry_address_and_no_large_file_is_committed():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not listed:
        pytest.skip("not a git checkout")
    assert not [f for f in listed if f.endswith("uv.lock") or "pylock" in f]
    assert "://" not in (ROOT / "requirements.txt").read_text()
    assert all((ROOT / f).stat().st_size < 2_000_000 for f in listed if (ROOT / f).exists())


def test_every_place_says_the_same_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == cited["version"] == dlgs_bench.__version__
    assert f"## {dlgs_bench.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_results_has_the_findings_and_tables_and_the_readme_names_the_machine():
    readme, kept = (ROOT / "README.md").read_text(), ROOT / "results" / "reference"
    page = (kept / "README.md").read_text()
    assert (kept / "findings.md").read_text() in page
    for table in ("answer", "table1", "table2", "baselines", "claims"):
        assert (kept / f"{table}.md").read_text() in page
    provenance = json.loads((ROOT / "results" / "reference" / "provenance.json").read_text())
    assert provenance["machine"][0] in readme
