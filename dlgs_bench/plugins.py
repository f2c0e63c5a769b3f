"""Plug-ins: methods, models and collectives, found by file name. The only dynamic import of plug-ins.

``describe`` says what the workflow must know of each without importing torch into this process: a process of its
own loads the plug-ins and looks at them (``dlgs_bench.describe``). What it found is kept under ``.cache/``, by the
digest of the sources, so that it happens once after each change.
"""

import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
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
    return [name for name in names(kind) if "error" not in _descriptions()[kind].get(name, {"error": "no file"})]


def load(kind: str, name: str) -> ModuleType:
    """The module of a plug-in."""
    return importlib.import_module(".".join([*FOLDERS[kind].relative_to(ROOT).parts, stem(name)]))


def describe(kind: str, name: str) -> dict:
    """What ``dlgs_bench.describe`` says of a plug-in; ValueError in one line if it cannot be used."""
    described = _descriptions()[kind].get(name)
    if described is None:
        raise ValueError(f"no file {kind}/{name}.py; known: {', '.join(names(kind))}")
    if "error" in described:
        raise ValueError(f"{kind}/{name}.py cannot be used: {described['error']}")
    return described


@cache
def _descriptions() -> dict[str, dict]:
    """kind -> plug-in -> description."""
    sources = [path for folder in FOLDERS.values() for path in folder.glob("*.py")]
    sources += [*(PACKAGE / "exchange").glob("*.py"), *(PACKAGE / "data").glob("*.py")]
    sources += [PACKAGE / "describe.py", PACKAGE / "training" / "head.py"]
    about = "".join(f"{path.relative_to(ROOT)} {_bytes(path)}" for path in sorted(sources))
    kept = CACHE / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):  # there is none, or none that can be read
        return json.loads(kept.read_text())
    said = subprocess.run([sys.executable, "-m", "dlgs_bench.describe"], cwd=ROOT, capture_output=True, text=True)
    if said.returncode:
        raise ValueError(f"the plug-ins cannot be looked at: {said.stderr.strip().splitlines()[-1]}")
    _keep(kept, said.stdout)
    return json.loads(said.stdout)


def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _keep(path: Path, text: str) -> None:
    """Write it whole or not at all, and for all to read: two workflows may start at once, the folder may be
    read-only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)


def fields(method: str) -> dict[str, dict]:
    """The parameters of a method: name -> {"type", "choices", "bound", "default"}, as far as it says them."""
    return describe("methods", method)["fields"]
