"""The method in a file of ``methods/``."""

import inspect

from harness import plugins
from harness.exchange.method import Method


def method_class(name: str) -> type[Method]:
    """The one Method subclass that ``methods/<name>.py`` defines; ValueError if it defines none or several."""
    module = plugins.load("methods", name)
    own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
    found = [c for c in own if issubclass(c, Method)]
    if len(found) != 1:
        raise ValueError(f"methods/{name}.py must define one Method, found {len(found)}")
    return found[0]
