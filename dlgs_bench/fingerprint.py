"""Fingerprints of the source files that a run or a script depends on. No torch.

A fingerprint changes with the statements of a file, but not with its comments, docstrings or layout. So a run is
repeated only after an edit that can change its numbers.
"""

import ast
import hashlib
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlgs_bench.spec import MODULES, RunSpec

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dlgs_bench"
SPEC = PACKAGE / "spec.py"
CODE = ("dlgs_bench", "methods", "models", "workflow", "bench", "Snakefile")
READING = threading.Lock()


def behind_run(spec: RunSpec) -> list[Path]:
    """The project's files that can change the numbers of a run."""
    training, scheme, cluster = spec.training, spec.scheme, spec.cluster
    roots = [PACKAGE / "training" / "run.py", PACKAGE / "training" / f"{MODULES[spec.kind]}.py"]
    roots.append(PACKAGE / "comm" / f"{cluster.engine}_engine.py")
    for one in (scheme, *map(scheme.alone, scheme.timed_with)):
        roots.append(ROOT / "methods" / f"{one.method}.py")
        if one.collective != "engine":
            roots.append(PACKAGE / "comm" / "collectives" / f"{stem(one.collective)}.py")
        if "selection" in one.options:
            roots.append(PACKAGE / "exchange" / "selection" / f"{one.options['selection']}_backend.py")
            if cluster.device == "cuda":
                roots.append(PACKAGE / "exchange" / "selection" / "triton_backend.py")
    if spec.kind == "sums":  # it times all collectives
        roots += (PACKAGE / "comm" / "collectives").glob("[a-z]*.py")
    if training.model:  # its layers' shapes change also the exchanges of some methods
        roots.append(ROOT / "models" / f"{training.model}.py")
    if spec.trains:
        roots.append(PACKAGE / "data" / f"{training.data}.py")
    if spec.kind in ("timing", "planners"):  # uncompressed is timed together with every method
        roots.append(ROOT / "methods" / "none.py")
    if cluster.network == "testbed":
        roots.append(PACKAGE / "launch" / "hosts.py")
    return sorted(frozenset().union(*map(imports, roots)) - NO_NUMBERS)


def stem(plugin: str) -> str:
    """The name of a plug-in's file, without its ending: it has underscores for the dashes in the plug-in's name."""
    return plugin.replace("-", "_")


# Files that runs import, but that cannot change a number.
NO_NUMBERS = {PACKAGE / "fingerprint.py", PACKAGE / "plugins.py", PACKAGE / "launch" / "liveness.py"}
NO_NUMBERS |= {PACKAGE / "training" / "checkpoint.py", PACKAGE / "atomic_file.py", PACKAGE / "errors.py"}


def behind_script(path: str) -> list[Path]:
    """The project's files that a script imports, with the script itself; ``path``: relative to the project's root."""
    return sorted(imports(ROOT / path))


def fingerprints(paths: Iterable[Path]) -> list[str]:
    """One text per file, its path and its digest, for Snakemake's ``params``; a diff of them names the file."""
    return [f"{os.path.relpath(path, ROOT)} {digest(path)}" for path in paths]


@cache
def digest(path: Path) -> str:
    """A digest of the statements of a Python file, or of all bytes of another file.

    The fields in ``spec.py`` do not count: each spec has their values, and a new field has its default in all specs.
    Defaults must not change, because specs do not contain them; a test checks this.
    """
    return _source(path).digest if path.suffix == ".py" else _short(path.read_bytes())


@cache
def imports(path: Path, within: Path = ROOT) -> frozenset[Path]:
    """The project's files in ``within`` that ``path`` imports, directly or indirectly, with ``path`` itself."""
    files, queue = set(), [path]
    while queue:
        file = queue.pop()
        if file in files:
            continue
        files.add(file)
        queue += (one for one in _imported(file) if one.is_relative_to(within))
    return frozenset(files)


@cache
def _imported(file: Path) -> list[Path]:
    """The project's files that a file imports directly, also from its own folder, and their packages' __init__.py."""
    modules = {tuple(name.split(".")[: i + 1]) for name in _source(file).names for i in range(name.count(".") + 1)}
    bases = [root.joinpath(*module) for module in modules for root in (ROOT, file.parent)]
    return [p for base in bases for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()]


def docstring(path: str) -> str:
    """The docstring of a file of this project; the file is not executed."""
    return _source(ROOT / path).docstring


def commit() -> str:
    """The commit of this project; "unknown" without git or its history.

    "+changes" is added if files of ``CODE`` differ from the commit. No run depends on other files.
    """

    def git(*arguments: str) -> str:
        try:
            return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    name = abbreviated(git("rev-parse", "--verify", "HEAD"), len(git("rev-parse", "--short", "HEAD"))) or "unknown"
    return name + ("+changes" if git("status", "--porcelain", "--", *CODE) else "")


def abbreviated(digits: str, least: int) -> str:
    """The first ``least`` hexadecimal digits, or as many more as a name needs that no table reads as a number.

    5435532 and 12e4567 are numbers, so a name contains a letter other than e.
    """
    lengths = range(least, len(digits))
    return next((digits[:n] for n in lengths if not set(digits[:n]).isdisjoint("abcdf")), digits)


@dataclass(frozen=True)
class _Source:
    """A Python file: the digest of its statements, its docstring, and the names that it imports."""

    digest: str
    docstring: str
    names: tuple[str, ...]


@cache
def _source(path: Path) -> _Source:
    """What a Python file holds.

    One thread at a time makes a tree: Python 3.11 has one recursion counter for the trees of all threads, and raises
    SystemError if another thread has changed it.
    """
    with READING:
        tree = ast.parse(path.read_bytes())  # in the encoding that Python reads it in
    docstring, names = ast.get_docstring(tree) or "", []
    for node in (tree, *_statements(tree)):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{a.name}" if node.module else a.name for a in node.names]
        elif isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        if path == SPEC and isinstance(node, ast.ClassDef):
            node.body = [item for item in node.body if not isinstance(item, ast.AnnAssign)] or [ast.Pass()]
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return _Source(_short(ast.dump(tree).encode()), docstring, tuple(names))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within a node, at any depth, and the handlers and cases that hold some of them."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, block, ()):
            yield one
            yield from _statements(one)


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
