"""Plug-ins: methods, models and collectives, found by file name. The only dynamic import of plug-ins.

``describe`` says what the workflow must know of one without importing torch into this process: a process of its
own loads the plug-ins that are asked for and looks at them (``dlgs_bench.describe``). What it found is kept under
``.cache/``, by the digest of the sources, so that it happens once after each change.
"""

import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from dlgs_bench.fingerprint import PACKAGE, ROOT, stem


def _folder(kind: str) -> Path:
    """Beside the harness in the repository, inside it where the project is installed, as one package."""
    installed = PACKAGE / kind
    return installed if installed.exists() else ROOT / kind


FOLDERS = {
    "methods": _folder("methods"),
    "models": _folder("models"),
    "collectives": PACKAGE / "comm" / "collectives",
}
CACHE = ROOT / ".cache" / "plugins"


@cache
def names(kind: str) -> list[str]:
    """The plug-ins of a kind: "methods", "models", or "collectives", with dashes for their files' underscores."""
    found = (p.stem for p in FOLDERS[kind].glob("[a-z]*.py"))
    return sorted(name.replace("_", "-") if kind == "collectives" else name for name in found)


def usable(kind: str) -> list[str]:
    """The plug-ins of a kind that can be described."""
    look_at((kind, name) for name in names(kind))
    return [name for name in names(kind) if "error" not in _known[kind, name]]


def load(kind: str, name: str) -> ModuleType:
    """The module of a plug-in."""
    return importlib.import_module(".".join([*FOLDERS[kind].relative_to(ROOT).parts, stem(name)]))


def file_of(kind: str, name: str) -> str:
    """The file of a plug-in, as a person would name it."""
    return f"{kind}/{stem(name)}.py"


def describe(kind: str, name: str) -> dict:
    """What ``dlgs_bench.describe`` says of a plug-in; ValueError in one line if it cannot be used."""
    if name not in names(kind):
        raise ValueError(f"no file {file_of(kind, name)}; known: {', '.join(names(kind))}")
    look_at([(kind, name)])
    described = _known[kind, name]
    if "error" in described:
        raise ValueError(f"{file_of(kind, name)} cannot be used: {described['error']}")
    return described


_known: dict[tuple[str, str], dict] = {}  # (kind, name) -> description, or {"error": one line}


def look_at(plug_ins: Iterable[tuple[str, str]]) -> None:
    """Have these plug-ins, (kind, name), described, those that are not yet in one process. The others are not run."""
    unknown = [one for one in dict.fromkeys(plug_ins) if one not in _known and one[1] in names(one[0])]
    for kind, name in unknown:
        with suppress(OSError, ValueError):  # there is none, or none that can be read
            _known[kind, name] = json.loads(_kept(kind, name).read_text(encoding="utf-8"))
    unknown = [one for one in unknown if one not in _known]
    if not unknown:
        return
    command = [sys.executable, "-m", "dlgs_bench.describe", *(f"{kind}/{name}" for kind, name in unknown)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    if said.returncode:
        raise ValueError(f"the plug-ins cannot be described: dlgs_bench.describe ended with status {said.returncode}")
    found = json.loads(said.stdout)
    for kind, name in unknown:
        _known[kind, name] = found[kind][name]
        _keep(_kept(kind, name), json.dumps(found[kind][name]))


def forget_errors() -> None:
    """Have plug-ins that could not be used described again: what they lacked may be there now, such as a library."""
    for path in (CACHE / _sources()).glob("*.json"):
        with suppress(OSError):
            if path.read_text(encoding="utf-8").startswith('{"error"'):
                path.unlink()


def _kept(kind: str, name: str) -> Path:
    return CACHE / _sources() / f"{kind}-{name}.json"


@cache
def _sources() -> str:
    """A digest of all that a description may depend on."""
    sources = [path for folder in FOLDERS.values() for path in folder.glob("*.py")]
    sources += [*(PACKAGE / "exchange").glob("*.py"), *(PACKAGE / "data").glob("*.py")]
    sources += [PACKAGE / "describe.py", PACKAGE / "training" / "build.py", PACKAGE / "training" / "head.py"]
    about = "".join(f"{path.relative_to(ROOT)} {_bytes(path)}" for path in sorted(sources))
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _keep(path: Path, text: str) -> None:
    """Write it whole or not at all, and for all to read: two workflows may start at once, the folder may be
    read-only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)


def fields(method: str) -> dict[str, dict]:
    """The parameters of a method: name -> {"type", "choices", "bound", "default"}, as far as it says them."""
    return describe("methods", method)["fields"]
