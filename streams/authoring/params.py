"""The types that a workflow's function declares for its payload and its result."""

import contextlib
import functools
import inspect
import re
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType, SimpleNamespace
from typing import Annotated, Any, Final, TypeVar

from headwater.streams.authoring.value_types import ValueType

#: Annotations of results that say nothing of a value.
_NO_TYPES: Final = (Any, object, None, typing.NoReturn, typing.Never, type(None))
_MODULES: Final = re.compile(r"(?:(?:[A-Za-z_]\w*|<locals>)\.)+")


def params_of(name: str, function: Callable[..., Any], event: type) -> ValueType:
    """What a workflow's function declares: P where its first parameter is annotated `event[P]`."""
    annotation = _annotation(function)
    kind = event.__name__
    inner = _inner(function)
    # As they are known in the end: authors may import them for a type checker alone.
    known = {kind: event, "headwater": SimpleNamespace(**{kind: event})}
    try:
        hint = typing.get_type_hints(
            SimpleNamespace(__annotations__={"event": annotation}),
            known | getattr(inner, "__globals__", {}),
            _names_around(inner),
            include_extras=True,
        )["event"]
    except (NameError, AttributeError, TypeError, SyntaxError) as why:
        written = annotation if isinstance(annotation, str) else f"{annotation!r}"
        if f"{kind}[" not in written:
            return ValueType()
        fault = (
            f"expected the type of the params of the workflow {name}, {_MODULES.sub('', written)}, "
            f"to be known at run time, found: {why}; import it at run time, not for type checkers "
            "alone, and define it before the workflow"
        )
        return ValueType(fault=fault)
    if typing.get_origin(hint) is Annotated:
        hint = hint.__origin__
    arguments = typing.get_args(hint) if typing.get_origin(hint) is event else ()
    if not arguments or isinstance(arguments[0], TypeVar):
        return ValueType()
    return ValueType(arguments[0])


def result_of(function: Callable[..., Any]) -> ValueType:
    """Return the type of a function's result, as it is annotated.

    It is any type where there is no annotation, or where it is not known at run time: only values
    that JSON does not have need the type.
    """
    inner = _inner(function)
    annotation = getattr(inner, "__annotations__", {}).get("return")
    if annotation is None or annotation in _NO_TYPES:
        return ValueType()
    if isinstance(annotation, str):
        try:
            annotation = typing.get_type_hints(
                SimpleNamespace(__annotations__={"return": annotation}),
                getattr(inner, "__globals__", {}),
                _names_around(inner),
                include_extras=True,
            )["return"]
        except (NameError, AttributeError, TypeError, SyntaxError):
            return ValueType()
    if annotation in _NO_TYPES or isinstance(annotation, TypeVar):
        return ValueType()
    return ValueType(type(None) if annotation is None else annotation)


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that a function sees where it is written, besides its module's.

    Shape:  of functions and classes around it, those that are being run: one that declares its
            workflow is. Of the others, what the function uses.
    """
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None or "." not in code.co_qualname:
        return {}
    around: list[Mapping[str, Any]] = []
    frame = inspect.currentframe()
    while frame is not None:
        at = frame.f_code
        if at.co_filename == code.co_filename and code.co_qualname.startswith(f"{at.co_qualname}."):
            around.append(frame.f_locals)
        frame = frame.f_back
    used = {}
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        # It may get its value later.
        with contextlib.suppress(ValueError):
            used[name] = cell.cell_contents
    return dict(ChainMap(used, *map(dict, around)))


def _annotation(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return None if first is None or first.annotation is first.empty else first.annotation


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The author's function, beneath decorators and arguments that it was given."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return function
