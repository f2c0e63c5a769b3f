"""Build the reference pages of the site from the code, and write config/schema.json.

MkDocs loads this file as a hook (``hooks:`` in mkdocs.yml). The site has the layout of the repository, so a relative
link works on the site as it works in a checkout. ``python setup/reference_pages.py`` writes the schema.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

from dlgs_bench import exchange, plugins  # noqa: E402
from dlgs_bench.config import load  # noqa: E402
from dlgs_bench.exchange.plugin import method_class, method_info  # noqa: E402
from dlgs_bench.hooks import ddp, hook  # noqa: E402

SCHEMA = ROOT / "config" / "schema.json"
OUTSIDE_DOCS = [
    "README.md", "CONTRIBUTING.md", "HARDWARE.md", "CHANGELOG.md", "config/*.md", "results/README.md",
    "results/reference*/README.md", "results/reference-profiles/rehearsed.md",
    "results/reference-profiles/all-methods.md",
]  # fmt: skip
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def schema_text() -> str:
    """Return the JSON schema of a configuration, with the names of plug-ins and engines and the studies' keys."""
    return json.dumps(load.full_schema(), indent=1) + "\n"


def pages() -> dict[str, str]:
    """Return the generated pages by their path in the site."""
    if str(ROOT) not in sys.path:  # MkDocs restores the path after it has loaded a hook
        sys.path.insert(0, str(ROOT))
    return {
        "docs/reference/configuration.md": configuration_page(),
        "docs/reference/methods.md": methods_page(),
        "docs/reference/exchange.md": exchange_page(),
        "docs/reference/hooks.md": hooks_page(),
    }


def configuration_page() -> str:
    """Return a table of every configuration key."""
    schema = load.full_schema()
    lines = [
        "# Configuration keys",
        "",
        "This page is generated from the JSON schema of configurations (`config/schema.json`). A key without a default"
        " is required or has no value. `<name>` stands for a name that you choose."
        " [config/README.md](../../config/README.md) explains how a configuration is used.",
        "",
        "| Key | Meaning | Default |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *_rows(schema, schema, "")]) + "\n"


def _rows(part: dict, schema: dict, prefix: str) -> Iterator[str]:
    required = part.get("required", [])
    children = list(part.get("properties", {}).items())
    if isinstance(each := part.get("additionalProperties"), dict):
        children.append(("<name>", each))
    for name, child in children:
        child = _resolve(child, schema)
        key = f"{prefix}{name}"
        text = child.get("markdownDescription") or child.get("description", "")
        default = "required" if name in required else _default(child)
        yield f"| `{key}` | {_cell(text)} | {_cell(default)} |"
        yield from _rows(child, schema, f"{key}.")


def _resolve(part: dict, schema: dict) -> dict:
    """Follow a reference; keys next to it come first."""
    if "$ref" not in part:
        return part
    target = schema
    for step in part["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    return _resolve(target, schema) | {key: value for key, value in part.items() if key != "$ref"}


def _default(part: dict) -> str:
    return f"`{json.dumps(part['default'])}`" if part.get("default", {}) != {} else ""


def methods_page() -> str:
    """Return a section for each method: its title, what it does, its parameters and its laws."""
    lines = [
        "# Methods",
        "",
        "This page is generated from the classes in `methods/`. The law-like properties that a method declares are"
        " tested ([contract](../method-contract.md)).",
    ]
    for name in plugins.names("methods"):
        lines += ["", *_method(name)]
    return "\n".join(lines) + "\n"


def _method(name: str) -> list[str]:
    cls, facts = method_class(name), method_info(name)
    file = f"methods/{name}.py"
    lines = [
        f"## {facts['title']}",
        "",
        f"`{name}`, [{file}](../../{file}). {_prose(inspect.getdoc(sys.modules[cls.__module__]))}",
    ]
    lines += (
        ["", _prose(cls.__dict__.get("__doc__"))]
        if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(")
        else []
    )
    lines += ["", f"- Buckets: `{facts['scope']}`", *(f"- {law}" for law in _laws(cls))]
    if facts["fields"]:
        lines += ["", "| Parameter | Allowed | Default |", "|---|---|---|"]
        lines += [
            f"| `{field}` | {_cell(_allowed(rule))} | {_cell(_shown(rule))} |"
            for field, rule in facts["fields"].items()
        ]
    return lines


def _laws(cls: type) -> Iterator[str]:
    if cls.exact_when is not None:
        yield f"Exact when `{cls.exact_when}`" if cls.exact_when else "Exact: the aggregate is the dense mean"
    if cls.conserves_mass:
        yield f"Conserves mass: {cls.conserves_mass}"
    if cls.unbiased_when is not None:
        yield f"Unbiased when `{cls.unbiased_when}`" if cls.unbiased_when else "Unbiased"
    if cls.relative_error is not None:
        yield f"Relative error at most {cls.relative_error:g}"


def _allowed(rule: dict) -> str:
    if "choices" in rule:
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in rule.get("bounds", []))
    return f"{rule.get('type', '')} {bounds}".rstrip()


def _shown(rule: dict) -> str:
    return f"`{rule['default']}`" if "default" in rule else "required"


def exchange_page() -> str:
    """Return the names that a method file imports, with their docstrings."""
    introduction = "This page is generated from the docstrings of `dlgs_bench.exchange`: what a method file imports."
    return _api("dlgs_bench.exchange", introduction, [(exchange, exchange.__all__)])


def hooks_page() -> str:
    """Return the classes that a training script imports, with their docstrings."""
    introduction = (
        "This page is generated from the docstrings of `dlgs_bench.hooks`."
        " [Use a method in your own training script](../hooks.md) shows an example."
    )
    parts = [(ddp, ["DDPHook"]), (hook, ["Hook"])]
    if find_spec("horovod"):
        parts.insert(1, (importlib.import_module("dlgs_bench.hooks.horovod_hook"), ["HorovodHook"]))
    else:
        introduction += " Horovod is not installed here, so `HorovodHook` is missing."
    return _api("dlgs_bench.hooks", introduction, parts)


def _api(title: str, introduction: str, parts: list[tuple[ModuleType, list[str]]]) -> str:
    lines = [f"# {title}", "", introduction]
    for module, names in parts:
        for name in names:
            thing = getattr(module, name)
            lines += ["", f"## {name}", ""]
            if inspect.isclass(thing):
                call = f"{thing.__module__}.{name}{_without_modules(inspect.signature(thing))}"
                lines += [f"`{call}`", "", *_described(thing)]
            else:
                lines += [f"`{name} = {_without_modules(thing)}`"]
    return "\n".join(lines) + "\n"


def _described(cls: type) -> Iterator[str]:
    """Yield a class's docstring, then its own public methods."""
    yield _prose(cls.__dict__.get("__doc__"))
    for name, member in vars(cls).items():
        call = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(call):
            continue
        shown = name if isinstance(member, property) else f"{name}{_without_modules(inspect.signature(call))}"
        yield from ("", f"### `{shown}`", "", _prose(call.__doc__))


def _without_modules(described: object) -> str:
    """Return a signature or a type on one line, with class names without their modules."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", str(described)).replace("'", "")


def _prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: double back quotes become single ones, and an indented block is code."""
    return inspect.cleandoc(docstring or "").replace("``", "`")


def _cell(text: str) -> str:
    return (
        " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;") if "`" not in text else " ".join(text.split())
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give the site the layout of the repository, with the generated pages and every file that a page links to."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in _documents()}
    made = pages()
    theme = [file for file in files if not (file.abs_src_path or "").startswith(str(ROOT / "docs"))]
    linked = {target for page, text in (texts | made).items() for target in _linked(page, text)} - texts.keys()
    outside = [_file(config, path) for path in sorted([*texts, *linked])]
    return Files([*theme, *outside, *(File.generated(config, path, content=text) for path, text in made.items())])


def _documents() -> list[Path]:
    return sorted([*(ROOT / "docs").rglob("*.md"), *(path for glob in OUTSIDE_DOCS for path in ROOT.glob(glob))])


def _linked(page: str, text: str) -> set[str]:
    """Return the files of the repository that a page links to."""
    targets = (ROOT / page).parent
    paths = {(targets / link).resolve() for link in LINK.findall(text) if "://" not in link}
    return {path.relative_to(ROOT).as_posix() for path in paths if path.is_file() and path.is_relative_to(ROOT)}


def _file(config: MkDocsConfig, path: str) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
