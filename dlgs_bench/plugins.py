"""Plug-ins: methods, models and collectives, each one file. This module alone imports them by name.

``describe`` returns what the workflow needs of a plug-in. It does not import torch into this process: another process
loads the plug-ins and describes them (``dlgs_bench.describe``). Descriptions are cached under ``.cache/``, by a digest
of the sources, so a plug-in is described once after each change.
"""

import hashlib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.fingerprint import PACKAGE, ROOT, imports, stem


def _folder(kind: str) -> Path:
    """The folder of a kind of plug-in: next to the package in the repository, inside the package if it is installed."""
    installed = PACKAGE / kind
    return installed if installed.exists() else ROOT / kind


FOLDERS = {
    "methods": _folder("methods"),
    "models": _folder("models"),
    "collectives": PACKAGE / "comm" / "collectives",
}
CACHE = ROOT / ".cache" / "plugins"
IMPORTABLE = re.compile("[A-Za-z][A-Za-z0-9_]*")  # the name of a plug-in's file, without its ending


@cache
def names(kind: str) -> list[str]:
    """The names of all plug-ins of a kind: "methods", "models" or "collectives".

    The name of a collective has dashes where its file's name has underscores.
    """
    stems = (path.stem for path in FOLDERS[kind].glob("[!._]*.py"))
    return sorted(name.replace("_", "-") if kind == "collectives" else name for name in stems)


def usable(kind: str) -> list[str]:
    """The names of the plug-ins of a kind that can be described."""
    describe_all((kind, name) for name in names(kind))
    return [name for name in names(kind) if "error" not in _descriptions[kind, name]]


def load(kind: str, name: str) -> ModuleType:
    """The module of a plug-in."""
    file = _file(kind, name)
    return importlib.import_module(".".join([*FOLDERS[kind].relative_to(ROOT).parts, file.stem]))


def _file(kind: str, name: str) -> Path:
    """The file of a plug-in; ValueError in one line if Python cannot import it, or no run can have its name."""
    file = FOLDERS[kind] / f"{stem(name)}.py"
    if not IMPORTABLE.fullmatch(file.stem) or (not file.exists() and file.with_name(f"{name}.py").exists()):
        raise ValueError(f"{name}.py is not a name of letters, digits and _; rename the file")
    return file


def file_of(kind: str, name: str) -> str:
    """The path of a plug-in's file as error messages show it, such as ``methods/topk.py``."""
    exact = (FOLDERS[kind] / f"{name}.py").exists()
    return f"{kind}/{name if exact else stem(name)}.py"


def describe(kind: str, name: str) -> dict:
    """The description that ``dlgs_bench.describe`` makes of a plug-in; ValueError in one line if it cannot be used."""
    if (kind, name) not in _descriptions:
        if name not in names(kind):
            raise ValueError(f"no file {file_of(kind, name)}; known: {', '.join(names(kind))}")
        describe_all([(kind, name)])
    described = _descriptions[kind, name]
    if "error" in described:
        raise ValueError(f"{file_of(kind, name)} cannot be used: {described['error']}")
    return described


_descriptions: dict[tuple[str, str], dict] = {}  # (kind, name) -> description, or {"error": one line}


def describe_all(plug_ins: Iterable[tuple[str, str]]) -> None:
    """Describe these plug-ins, (kind, name). One process describes all that are not yet in the cache."""
    unknown = [one for one in dict.fromkeys(plug_ins) if one not in _descriptions and one[1] in names(one[0])]
    for kind, name in unknown:
        with suppress(OSError, ValueError):  # the file is missing, or it is corrupt
            _descriptions[kind, name] = json.loads(_cached(kind, name).read_text(encoding="utf-8"))
    unknown = [one for one in unknown if one not in _descriptions]
    if not unknown:
        return
    command = [sys.executable, "-m", "dlgs_bench.describe", *(f"{kind}/{name}" for kind, name in unknown)]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    if process.returncode:
        raise ValueError(f"plug-ins cannot be described: dlgs_bench.describe ended with status {process.returncode}")
    described = json.loads(process.stdout)
    for kind, name in unknown:
        _descriptions[kind, name] = described[kind][name]
        _write(kind, name)


def forget_errors() -> None:
    """Remove errors from the cache: what a plug-in lacked may be installed now, such as a library."""
    for path in CACHE.glob("*.json"):
        with suppress(OSError):
            if path.read_text(encoding="utf-8").startswith('{"error"'):
                path.unlink()


def _cached(kind: str, name: str) -> Path:
    return CACHE / f"{kind}-{name}-{_sources(kind, name)}.json"


@cache
def _sources(kind: str, name: str) -> str:
    """A digest of the source files that the description of a plug-in may depend on.

    They are the plug-in's file, the plug-ins that it imports, and the project's files behind all plug-ins of its kind.
    """
    file = _file(kind, name)
    try:
        own = imports(file, within=file.parent)
    except (SyntaxError, ValueError):  # the file is not Python; its description will be this error
        own = frozenset([file])
    lines = "".join(f"{path.relative_to(ROOT)} {_digest(path)}" for path in sorted({*own, *_behind(kind)}))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


@cache
def _behind(kind: str) -> list[Path]:
    """The project's files that the descriptions of all plug-ins of a kind may depend on."""
    if kind == "models":
        training = PACKAGE / "training"
        return [PACKAGE / "describe.py", training / "build.py", training / "head.py", *(PACKAGE / "data").glob("*.py")]
    return [PACKAGE / "describe.py", *(PACKAGE / "exchange").rglob("*.py")]


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(kind: str, name: str) -> None:
    """Write a description to the cache, unless the cache is read-only. Two workflows may write at the same time."""
    with suppress(OSError, ValueError):  # ValueError: the file has an invalid name
        path = _cached(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(_descriptions[kind, name]).encode())


def fields(method: str) -> dict[str, dict]:
    """The parameters of a method: name -> {"type", "choices", "bounds", "default"}, each key only if it is known."""
    return describe("methods", method)["fields"]
