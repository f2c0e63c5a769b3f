"""Plug-ins: methods and models, found by file name. The only dynamic import of the project.

``fields`` reads a method's parameters from its source, so that a config can be checked without
importing torch.
"""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def names(kind: str) -> list[str]:
    """The plug-ins in the folder ``kind`` ("methods" or "models")."""
    return sorted(p.stem for p in (ROOT / kind).glob("[a-z]*.py"))


def load(kind: str, name: str):
    """The module ``kind``/``name``.py; for a method, its one Method subclass."""
    module = importlib.import_module(f"{kind}.{name}")
    if kind == "models":
        return module
    from harness.method import Method

    found = [
        c for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, Method) and c.__module__ == module.__name__
    ]  # fmt: skip
    if len(found) != 1:
        raise ValueError(f"{kind}/{name}.py must define one Method, found {len(found)}")
    return found[0]


@cache
def fields(method: str) -> dict[str, str]:
    """The parameters of a method: name -> annotation, its bases' in ``harness.method`` included."""
    own = _classes(ROOT / "methods" / f"{method}.py")
    shared = _classes(ROOT / "harness" / "method.py")
    found: dict[str, str] = {}
    for node in own.values():
        for name in _lineage(node, own | shared):
            found |= _parameters((own | shared)[name])
    return found


@cache
def parameters(model: str) -> int:
    """How many parameters a model says it has, read from its source."""
    for item in ast.parse((ROOT / "models" / f"{model}.py").read_text()).body:
        if isinstance(item, ast.Assign) and any(getattr(t, "id", "") == "PARAMETERS" for t in item.targets):
            return ast.literal_eval(item.value)
    raise ValueError(f"models/{model}.py: PARAMETERS is missing; give the number of parameters")


@cache
def scope(method: str) -> str:
    """How a method cuts the gradient (``Method.scope``), read from its source."""
    return _constant(method, "scope")


@cache
def one_sum(method: str) -> str | None:
    """What a parameter server would be asked by a method (``Method.one_sum``), read from its source."""
    return _constant(method, "one_sum")


def _constant(method: str, name: str):
    """A literal that a method's class or, where it says nothing, its bases in ``harness.method`` assign."""
    own = _classes(ROOT / "methods" / f"{method}.py")
    classes = _classes(ROOT / "harness" / "method.py") | own
    found = None
    for node in own.values():
        for item in (item for base in _lineage(node, classes) for item in classes[base].body):
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            if any(getattr(t, "id", "") == name for t in targets):
                found = ast.literal_eval(item.value)
    return found


def _lineage(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in classes]
    return [n for base in bases for n in _lineage(classes[base], classes)] + [node.name]


def _classes(path: Path) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)}


def _parameters(node: ast.ClassDef) -> dict[str, str]:
    """Annotated fields that __init__ takes: no ClassVar, no field(init=False)."""
    return {
        item.target.id: ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(item.annotation)
        and "init=False" not in ast.unparse(item.value or ast.Constant(None))
    }


@cache
def imports(path: Path) -> frozenset[Path]:
    """The project's own files that ``path`` imports, directly or not, itself included; a script's neighbours too."""
    found, open_ = set(), [path]
    while open_:
        file = open_.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                dotted = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            elif isinstance(node, ast.Import):
                dotted = [a.name for a in node.names]
            else:
                continue
            for module in dotted:
                for base in (root.joinpath(*module.split(".")) for root in (ROOT, file.parent)):
                    open_ += [p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()]
    return frozenset(found)


def docstring(path: str) -> str:
    """The docstring of a file of this project, without running it."""
    return ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
