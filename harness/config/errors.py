"""The mistakes of a configuration, and the phrases that their one-line messages share."""

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """A mistake in a configuration; the message is one line for a person."""


def meant(word: str, known: Iterable[str]) -> str:
    """The known word that was perhaps meant, as a question."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(known: Iterable[str]) -> str:
    return f"known: {', '.join(known) or 'none'}"
