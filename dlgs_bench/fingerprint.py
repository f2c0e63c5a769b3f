"""What code means: the files behind a run or a script, and their fingerprints. No torch.

A fingerprint changes with the statements of a file, not with its comments, docstrings or layout, so that only
an edit which can change a number repeats a run.
"""

import ast
import hashlib
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dlgs_bench.spec import RunSpec

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dlgs_bench"
SPEC = PACKAGE / "spec.py"
READING = threading.Lock()


def behind_run(spec: RunSpec) -> list[Path]:
    """The project's files whose statements decide the numbers of a run."""
    training, scheme, cluster = spec.training, spec.scheme, spec.cluster
    roots = [PACKAGE / "training" / "run.py", PACKAGE / "training" / f"{KINDS[spec.kind]}.py"]
    roots.append(PACKAGE / "comm" / f"{cluster.engine}_engine.py")
    for one in (scheme, *map(scheme.alone, scheme.timed_with)):
        roots.append(ROOT / "methods" / f"{one.method}.py")
        if one.collective != "engine":
            roots.append(PACKAGE / "comm" / "collectives" / f"{stem(one.collective)}.py")
        if "selection" in one.options:
            roots.append(PACKAGE / "exchange" / "selection" / f"{one.options['selection']}_backend.py")
            roots += [PACKAGE / "exchange" / "selection" / "triton_backend.py"] * (cluster.device == "cuda")
    if spec.kind == "sums":  # times them all
        roots += (PACKAGE / "comm" / "collectives").glob("[a-z]*.py")
    if spec.trains:
        roots += [ROOT / "models" / f"{training.model}.py", PACKAGE / "data" / f"{training.data}.py"]
    if spec.kind in ("timing", "planners"):  # uncompressed takes turns with every timed method
        roots.append(ROOT / "methods" / "none.py")
    if cluster.network == "testbed":
        roots.append(PACKAGE / "launch" / "hosts.py")
    return sorted(frozenset().union(*map(imports, roots)) - NO_NUMBERS)


def stem(plugin: str) -> str:
    """The name of a plug-in's file: dashes in the configuration's name stand for underscores."""
    return plugin.replace("-", "_")


# What runs import to find and to watch them, which decides no number.
NO_NUMBERS = {PACKAGE / "fingerprint.py", PACKAGE / "plugins.py", PACKAGE / "launch" / "liveness.py"}
NO_NUMBERS |= {PACKAGE / "training" / "checkpoint.py", PACKAGE / "atomic_file.py", PACKAGE / "errors.py"}

# The module in dlgs_bench/training that does the work of each kind of run.
KINDS = {
    "accuracy": "train",
    "timing": "timed",
    "planners": "timed",
    "layers": "calibrate",
    "exchanges": "calibrate",
    "sums": "sums",
    "hybrid": "hybrid",
}


def behind_script(path: str) -> list[Path]:
    """The project's files that a script is made of, itself included; ``path`` from the project's root."""
    return sorted(imports(ROOT / path))


def fingerprints(paths: Iterable[Path]) -> list[str]:
    """Per file its path and the digest of its statements, for Snakemake's ``params``: a diff names the file."""
    return [f"{os.path.relpath(path, ROOT)} {digest(path)}" for path in paths]


@cache
def digest(path: Path) -> str:
    """Of the statements of a Python file, of all bytes of another file.

    The fields in ``spec.py`` do not count: each spec says their values, and a new field has its default in all specs.
    Their defaults must not change, since specs do not say them (a test holds them).
    """
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    tree = _tree(path)
    for node in ast.walk(tree):
        if path == SPEC and isinstance(node, ast.ClassDef):
            node.body = [item for item in node.body if not isinstance(item, ast.AnnAssign)] or [ast.Pass()]
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


@cache
def imports(path: Path) -> frozenset[Path]:
    """The project's own files that ``path`` imports, directly or not, itself included; a script's neighbours too."""
    found, open_ = set(), [path]
    while open_:
        file = open_.pop()
        if file in found:
            continue
        found.add(file)
        open_ += _imported(file)
    return frozenset(found)


@cache
def _imported(file: Path) -> list[Path]:
    """The project's own files that a file imports itself, and those of the packages they lie in, which Python runs
    first."""
    names = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.Import):
            names += [a.name for a in node.names]
    modules = {tuple(name.split(".")[: i + 1]) for name in names for i in range(name.count(".") + 1)}
    bases = [root.joinpath(*module) for module in modules for root in (ROOT, file.parent)]
    return [p for base in bases for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()]


def docstring(path: str) -> str:
    """The docstring of a file of this project, without running it."""
    return ast.get_docstring(_tree(ROOT / path)) or ""


def _tree(path: Path) -> ast.Module:
    """The statements of a file, read by one thread at a time: Python 3.11 counts the depth of all threads' trees in one
    number, and ends in a SystemError when it finds the others' in it."""
    with READING:
        return ast.parse(path.read_text(encoding="utf-8"))
