"""Mistakes as one line for a person, and what is wrong with a method's parameters. No torch."""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

BEYOND = {">=": operator.ge, ">": operator.gt}
MOST_SHOWN = 200  # characters of a value
TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str}


class Ended(Exception):
    """A run cannot go on, for a reason that one line tells."""


def meant(word: str, known: Iterable[str]) -> str:
    """The known word that was perhaps meant, as a question."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(value: Any) -> str:
    """A value as Python writes it, or its beginning."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_as_text(value: Any) -> str:
    """A hint where YAML has read as text what a person meant as a number, such as 1e-1, for which it wants a point."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return ""
    right = repr(int(number) if number.is_integer() and abs(number) < 1e15 else number)
    right = right if "." in right else right.replace("e", ".0e")
    return f" (YAML reads {value} as text; write {right}{', without quotes' if right == value else ''})"


def listed(known: Iterable[str]) -> str:
    return f"known: {', '.join(known) or 'none'}"


def wrong_options(where: str, known: Mapping[str, dict], options: Mapping[str, Any]) -> str | None:
    """What is wrong with ``options``, parameters of a method whose fields are ``known`` as its description has them."""
    for key, value in options.items():
        if key not in known:
            return f"{where}: unknown key {key!r}{meant(key, known)}; {listed(known)}"
        right = _right(known[key], value)
        if right:
            hint = read_as_text(value) if known[key].get("type") in ("int", "float") else ""
            return f"{where}.{key}: {shown(value)} is not valid; give {right}{hint}"
    for key, field in known.items():
        if field and "default" not in field and key not in options:
            return f"{where}: {key!r} is missing; give {_expected(field)}"
    return None


def _right(field: dict, value) -> str | None:
    """What would be right for a parameter, if ``value`` is not."""
    if "choices" in field:
        fits = any(value == one and type(value) is type(one) for one in field["choices"])  # 2.0 is not 2
        return None if fits else _expected(field)
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
