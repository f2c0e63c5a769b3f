"""Variants: named methods with parameters. No torch."""

import re
from dataclasses import dataclass
from typing import Any

from dlgs_bench import plugins
from dlgs_bench.errors import TITLE, is_title, listed, meant, short_repr, wrong_options

ABOUT = ("method", "title", "planner")  # every other key of a variant is a parameter of its method


@dataclass(frozen=True)
class Variant:
    """``options``: the parameters in the configuration. The others have the method's defaults."""

    name: str
    method: str
    title: str  # in tables and figures
    options: dict[str, Any]
    planner: str = ""  # merges the layers of this variant, instead of the configuration's planner

    @property
    def description(self) -> dict:
        """The description of the method."""
        return plugins.describe("methods", self.method)

    @property
    def fields(self) -> dict[str, dict]:
        """Parameter of the method -> its default and description."""
        return self.description["fields"]

    @property
    def changed(self) -> bool:
        """Whether it differs from the method of its name with default parameters. A ratio is not a difference."""
        changed = changed_options(self.options, self.fields).keys() - {"ratio"}
        return bool(changed or self.planner or self.name != self.method)


def chosen(values: dict) -> dict[str, Variant]:
    """The variants that a configuration runs, by name, in its order. For "all", uncompressed comes first."""
    names, given = values["methods"], values["variants"]
    if names == "all":
        methods = plugins.names("methods")
        names = sorted(methods, key=lambda name: not plugins.describe("methods", name)["uncompressed"])
        names += [name for name in given if name not in methods]
    return {name: variant(name, given.get(name, {})) for name in names}


def variant(name: str, settings: dict) -> Variant:
    """The variant with these ``settings``, which are a value of the configuration's ``variants``."""
    method = settings.get("method", name)
    options = {key: value for key, value in settings.items() if key not in ABOUT}
    description = plugins.describe("methods", method)
    changed = changed_options(options, description["fields"])
    changed |= {"planner": settings["planner"]} if "planner" in settings else {}
    inside = ", ".join(f"{key}={value}" for key, value in changed.items())
    title = description["title"] + (f" ({inside})" if inside else "")
    return Variant(name, method, settings.get("title", title), options, settings.get("planner", ""))


def changed_options(options: dict[str, Any], fields: dict[str, dict]) -> dict[str, Any]:
    """The parameters of a method that differ from their defaults; ``fields``: parameter -> default and description."""
    return {key: value for key, value in options.items() if value != fields.get(key, {}).get("default")}


def unknown(name: str, given: dict) -> str | None:
    """The error message for an unknown variant ``name``, or None. ``given``: the configuration's variants."""
    known = sorted({*plugins.names("methods"), *given})
    if name in known:
        return None
    return f"{name!r} is not a variant or a file in methods/{meant(name, known)}; {listed(known)}"


def problem(values: dict) -> str | None:
    """What is wrong with ``methods`` or ``variants``, in one line."""
    methods, given = plugins.names("methods"), values["variants"]
    for name in [] if values["methods"] == "all" else values["methods"]:
        if wrong := unknown(name, given):
            return f"methods: {wrong}"
    for name, settings in given.items():
        method = settings.get("method", name)
        if method not in methods:
            return f"variants.{name}: no file methods/{method}.py{meant(method, methods)}; {listed(methods)}"
        if name in methods and method != name:
            return f"variants.{name}: methods/{name}.py has this name; give this variant of {method} another"
    try:
        every = chosen(values) | {name: variant(name, settings) for name, settings in given.items()}
    except ValueError as error:  # a plug-in that cannot be used
        return f"methods: {error}; fix the file or leave it out"
    wrong = next(filter(None, map(_wrong_options, every.values())), None)
    return wrong or _unfit_planners(every) or _unfit_titles(every) or _same_titles(every) or _same_runs(every)


def wrong_together(given: dict) -> str | None:
    """What is wrong with ``timing.together``, in one line, or None.

    ``given``: the configuration without defaults, since the default can name methods that were deleted.
    """
    known = sorted({*plugins.names("methods"), *given.get("variants", {})})
    for name in given.get("timing", {}).get("together", []):
        if name not in known:
            return f"timing.together: {name!r} is not a variant{meant(name, known)}; {listed(known)}"
    return None


def unused(values: dict) -> str:
    """A warning that names variants which have parameters but are not run, or an empty string."""
    named = () if values["methods"] == "all" else values["methods"]
    not_run = [name for name in values["variants"] if named and name not in named]
    return f"variants: {', '.join(not_run)} not among methods, so not run" if not_run else ""


def _wrong_options(one: Variant) -> str | None:
    ratios = {"ratio": 1.0} if "ratio" in one.fields else {}  # a placeholder for the configuration's ratios
    return wrong_options(f"variants.{one.name}", one.fields, ratios | one.options)


def _unfit_planners(every: dict[str, Variant]) -> str | None:
    for name, one in every.items():
        if one.planner and one.description["plan"] != "groups":
            why = f"{one.method} does not merge layers by a plan"
            return f"variants.{name}.planner: {one.planner} has no effect, since {why}; leave it out"
    return None


def _unfit_titles(every: dict[str, Variant]) -> str | None:
    for name, one in every.items():
        if not is_title(one.title):
            return f"variants.{name}.title: {short_repr(one.title)} is not valid; give {TITLE}"
    return None


def _same_titles(every: dict[str, Variant]) -> str | None:
    """No two variants have the same title, by which tables and figures distinguish them."""
    owners: dict[str, str] = {}
    for name, one in every.items():
        other = owners.setdefault(one.title, name)
        if other != name:
            return f"variants.{name}.title: {one.title!r} is also the title of {other}; give each its own"
    return None


def _same_runs(every: dict[str, Variant]) -> str | None:
    """No variant has the name of another variant's run, which is its name, and "-compiled", a ratio or a bucketing."""
    for name in every:
        for other in every:
            if re.fullmatch(rf"{re.escape(other)}-(compiled|planned|[0-9.e-]+(kib)?)", name):
                return f"variants.{name}: the name clashes with runs of {other}; give the variant another name"
    return None
