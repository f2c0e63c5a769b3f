"""Error messages of one line, and the check of a method's parameters. No torch."""

import argparse
import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

BOUNDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
MOST_SHOWN = 200  # characters of a value in a message
TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "str": str}


class Ended(Exception):
    """A run cannot continue; the message is one line."""


class ConfigError(Exception):
    """An error in a configuration. Its message is always one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class OneLineParser(argparse.ArgumentParser):
    """Wrong options end in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; {self.prog} --help lists the options\n")


def meant(word: str, known: Iterable[str]) -> str:
    """A question with the known word that is most similar to ``word``; "" if none is similar."""
    by_letters = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_letters, n=1)
    return f" (did you mean {by_letters[close[0]]!r}?)" if close else ""


def short_repr(value: Any, most: int = MOST_SHOWN) -> str:
    """The repr of a value, shortened to ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def read_as_text(value: Any) -> str:
    """A hint for a number that YAML reads as text, such as 1e-1, which needs a decimal point; "" for other values."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return ""
    right = repr(int(number) if number.is_integer() and abs(number) < 1e15 else number)
    right = right if "." in right else right.replace("e", ".0e")
    return f" (YAML reads {value} as text; write {right}{', without quotes' if right == value else ''})"


# What ``is_title`` requires, in words.
TITLE = "a line of text without $ and without _ at its start, which have a meaning in figures"


def is_title(title: Any) -> bool:
    """Whether a title can be a cell of a table and a label in a figure."""
    fits = isinstance(title, str) and bool(title.strip()) and title.isprintable()
    return fits and "$" not in title and not title.startswith("_")


def listed(known: Iterable[str]) -> str:
    return f"known: {', '.join(known) or 'none'}"


def wrong_options(where: str, known: Mapping[str, dict], options: Mapping[str, Any]) -> str | None:
    """The first error in ``options``, the parameters of a method, or None.

    ``where``: the start of the message. ``known``: the method's fields, as in ``dlgs_bench.plugins.fields``.
    """
    if options and not known:
        return f"{where}.{next(iter(options))}: {where} has no parameters; remove it"
    for key, value in options.items():
        if key not in known:
            return f"{where}: unknown key {key!r}{meant(key, known)}; {listed(known)}"
        right = _right(known[key], value)
        if right:
            hint = read_as_text(value) if known[key].get("type") in ("int", "float") else ""
            return f"{where}.{key}: {short_repr(value)} is not valid; give {right}{hint}"
    for key, field in known.items():
        if field and "default" not in field and key not in options:
            return f"{where}: {key!r} is missing; give {_expected(field)}"
    return None


def _right(field: dict, value: Any) -> str | None:
    """A description of valid values, if ``value`` is invalid for a parameter; otherwise None."""
    if "choices" in field:
        fits = any(value == one and type(value) is type(one) for one in field["choices"])  # 2.0 is not the choice 2
        return None if fits else _expected(field)
    wanted = TYPES.get(field.get("type"))
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        return _expected(field)
    bounds = field.get("bounds", [])
    if all(BOUNDS[sign](value, limit) for sign, limit in bounds):
        return None
    return f"a value {' and '.join(f'{sign} {limit:g}' for sign, limit in bounds)}"


def _expected(field: dict) -> str:
    if "choices" in field:
        return f"one of: {', '.join(map(str, field['choices']))}"
    return f"a value of type {field['type']}"
