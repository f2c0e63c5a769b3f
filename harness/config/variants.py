"""Variants: a method and its parameters under a name. No torch."""

import operator
import re
from dataclasses import dataclass
from typing import Any

from harness import plugins
from harness.config.errors import listed, meant

ABOUT = ("method", "title")  # every other key of a variant is a parameter of its method
BEYOND = {">=": operator.ge, ">": operator.gt}
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str}


@dataclass(frozen=True)
class Variant:
    """``options``: the parameters that the configuration sets; the others keep the method's defaults."""

    name: str
    method: str
    title: str  # what tables and figures call it
    options: dict[str, Any]

    @property
    def about(self) -> dict:
        """What the method's class says of it."""
        return plugins.describe("methods", self.method)

    @property
    def fields(self) -> dict[str, dict]:
        return self.about["fields"]


def chosen(values: dict) -> dict[str, Variant]:
    """The variants that a configuration runs, by name and in its order; "all": what is exact comes first."""
    names, given = values["methods"], values["variants"]
    if names == "all":
        methods = plugins.names("methods")
        names = sorted(methods, key=lambda name: not plugins.describe("methods", name)["exact"])
        names += [name for name in given if name not in methods]
    return {name: variant(name, given.get(name, {})) for name in names}


def variant(name: str, settings: dict) -> Variant:
    """The variant that ``settings``, a value of the configuration's ``variants``, describe."""
    method = settings.get("method", name)
    options = {key: value for key, value in settings.items() if key not in ABOUT}
    about = plugins.describe("methods", method)
    changed = {k: v for k, v in options.items() if v != about["fields"].get(k, {}).get("default")}
    inside = ", ".join(f"{key}={value}" for key, value in changed.items())
    title = about["title"] + (f" ({inside})" if inside else "")
    return Variant(name, method, settings.get("title", title), options)


def problem(values: dict) -> str | None:
    """What is wrong with ``methods`` or ``variants``, in one line."""
    methods, given = plugins.names("methods"), values["variants"]
    known = sorted({*methods, *given})
    for name in [] if values["methods"] == "all" else values["methods"]:
        if name not in known:
            return f"methods: no file methods/{name}.py and no variant {name!r}{meant(name, known)}; {listed(known)}"
    for name, settings in given.items():
        method = settings.get("method", name)
        if method not in methods:
            return f"variants.{name}: no file methods/{method}.py{meant(method, methods)}; {listed(methods)}"
        if name in methods and method != name:
            return f"variants.{name}: methods/{name}.py has this name; give this variant of {method} another"
    try:
        every = chosen(values) | {name: variant(name, settings) for name, settings in given.items()}
    except ValueError as error:  # a plug-in that cannot be used
        return f"methods: {error}; mend the file or leave it out"
    wrong = next(filter(None, map(_wrong_options, every.values())), None)
    return wrong or _same_titles(every) or _same_runs(every)


def _wrong_options(one: Variant) -> str | None:
    where, known = f"variants.{one.name}", one.fields
    for key, value in one.options.items():
        if key not in known:
            return f"{where}: unknown key {key!r}{meant(key, known)}; {listed(known)}"
        right = _right(known[key], value)
        if right:
            return f"{where}.{key}: {value!r} is not valid; give {right}"
    for key, field in known.items():
        if field and "default" not in field and key not in one.options and key != "ratio":
            return f"{where}: {key!r} is missing; give {_expected(field)}"
    return None


def _right(field: dict, value) -> str | None:
    """What would be right for a parameter, if ``value`` is not."""
    if "choices" in field:
        return None if value in field["choices"] else _expected(field)
    wanted = TYPES.get(field.get("type"))
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        return _expected(field)
    if "bound" in field and not BEYOND[field["bound"][0]](value, field["bound"][1]):
        return f"a value {field['bound'][0]} {field['bound'][1]:g}"
    return None


def _expected(field: dict) -> str:
    if "choices" in field:
        return f"one of: {', '.join(map(str, field['choices']))}"
    return f"a value of type {field['type']}"


def _same_titles(every: dict[str, Variant]) -> str | None:
    """Tables and figures tell variants apart by their titles."""
    owners = {}
    for name, one in every.items():
        other = owners.setdefault(one.title, name)
        if other != name:
            return f"variants.{name}.title: {one.title!r} is the title of {other} too; give each its own"
    return None


def _same_runs(every: dict[str, Variant]) -> str | None:
    """A run's name is its variant's, then "-fast" or a ratio: no variant may be called like that itself."""
    for name in every:
        for other in every:
            if name.startswith(f"{other}-") and re.fullmatch(r"fast|[0-9.e-]+", name.removeprefix(f"{other}-")):
                return f"variants.{name}: runs of {other} may have this name; give the variant another"
    return None
