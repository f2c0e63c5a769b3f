"""The Method class in a file of ``methods/``, and its description."""

import dataclasses
import inspect
import re
import typing
from typing import Any

from dlgs_bench import plugins
from dlgs_bench.buckets import Scope
from dlgs_bench.errors import BOUNDS, TITLE, is_title, short_repr
from dlgs_bench.exchange.feedback import ErrorFeedback
from dlgs_bench.exchange.method import Method, SumKind
from dlgs_bench.topology import Growth

BOUND = re.compile(rf"({'|'.join(BOUNDS)}) *([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")
BOUND_EXAMPLES = ('">= 1"', '"< 0.5"')
VALID = {"scope": typing.get_args(Scope), "sum_kind": typing.get_args(SumKind), "link_growth": typing.get_args(Growth)}


def method_class(name: str) -> type[Method]:
    """The Method subclass that ``methods/<name>.py`` defines; ValueError if it does not define exactly one."""
    module = plugins.load("methods", name)
    own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
    classes = [c for c in own if issubclass(c, Method)]
    if len(classes) != 1:
        count = f"{len(classes)} subclasses of Method"
        raise ValueError(f"methods/{name}.py: {count} are not exactly one; define one per file")
    return classes[0]


def method_info(name: str) -> dict:
    """The description of the method in ``methods/<name>.py``; see ``class_info``."""
    return class_info(method_class(name), name)


def class_info(cls: type[Method], name: str) -> dict:
    """The description of a method as plain values: its parameters and the class attributes that other parts need.

    ``name``: the title if the class has none. ValueError in one line if no run could use the class.
    """
    title = vars(cls).get("title", name)  # not the title of a base class
    if not is_title(title):
        raise ValueError(f"{cls.__name__}.title: {short_repr(title)} is not valid; give {TITLE}")
    for key, valid in VALID.items():
        if getattr(cls, key) not in valid:
            words = ", ".join(map(str, valid))
            raise ValueError(
                f"{cls.__name__}.{key}: {short_repr(getattr(cls, key))} is not valid; give one of: {words}"
            )
    if cls.exchange is Method.exchange:
        raise ValueError(f"{cls.__name__}.exchange: missing; define it as in docs/method-contract.md")
    if issubclass(cls, ErrorFeedback) and not any("conserves_mass" in vars(c) for c in cls.__mro__ if c is not Method):
        raise ValueError(
            f"{cls.__name__}.conserves_mass: missing in a class with error feedback; give bits, rounding or at most, "
            "or None if it does not conserve gradient + residual"
        )
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = parameters(cls)
    _check_declarations(cls, [f.name for f in fields])
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    if set(required) <= {"ratio"}:
        cls(**dict.fromkeys(required, 0.1))  # an error in its constructor is found here instead of in a run
    return {
        "title": title,
        "scope": cls.scope,
        "sum_kind": cls.sum_kind,
        "link_growth": cls.link_growth,
        "plan": "ratios" if cls.ratios_from_plan else "groups" if cls.scope == "plan" else None,
        "cost_depends_on_shapes": cls.cost_depends_on_shapes,
        "baseline": cls.baseline,
        "uncompressed": cls.exact_when == {} and cls.baseline,
        "needs_sgd": cls.owns_momentum or cls.decay_joins_gradient,
        "fields": {f.name: _parameter(f"{cls.__name__}.{f.name}", hints[f.name]) | _default(f) for f in fields},
    }


def parameters(cls: type[Method]) -> list[dataclasses.Field]:
    """The parameters of a method: the fields that its constructor takes."""
    return [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []


def _check_declarations(cls: type[Method], names: list[str]) -> None:
    """ValueError in one line if a parameter has the name of a declaration or of a field of the state."""
    for base in cls.__mro__:
        for name in names:
            if typing.get_origin(vars(base).get("__annotations__", {}).get(name)) is typing.ClassVar:
                raise ValueError(
                    f"{cls.__name__}.{name}: its annotation makes it a parameter; write `{name} = ...` without it"
                )
    for name in cls.state_fields():
        if name in names:
            raise ValueError(
                f"{cls.__name__}.{name}: a parameter is not a valid field of the state; write field(..., init=False)"
            )


def _parameter(name: str, hint: Any) -> dict:
    """A type hint as plain values, as {"type": "int", "bounds": [[">=", 1.0]]} or {"choices": [...]}; {} for others.

    ``name``: of the parameter.
    """
    if typing.get_origin(hint) is typing.Annotated:
        inner, *given = typing.get_args(hint)
        return _parameter(name, inner) | {"bounds": [_bound(name, bound) for bound in given]}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": list(typing.get_args(hint))}
    return {"type": hint.__name__} if hint in (int, float, bool, str) else {}


def _bound(name: str, bound: Any) -> list:
    """A bound such as ">= 1" as [">=", 1.0]; ValueError in one line if it is none."""
    form = BOUND.fullmatch(bound) if isinstance(bound, str) else None
    if form is None:
        raise ValueError(f"{name}: {bound!r} is not a bound; give bounds such as {' or '.join(BOUND_EXAMPLES)}")
    return [form[1], float(form[2])]


def _default(f: dataclasses.Field) -> dict:
    """The default of a parameter, if it has one that a file can hold."""
    value = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
    return {"default": value} if isinstance(value, bool | int | float | str | tuple | list | None) else {}
