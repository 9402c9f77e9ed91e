"""Types that a workflow's function declares for its params and its result."""

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

#: Annotations of results that do not describe a value.
_NO_TYPES: Final = (Any, object, None, typing.NoReturn, typing.Never, type(None))
_MODULES: Final = re.compile(r"(?:(?:[A-Za-z_]\w*|<locals>)\.)+")


def params_of(name: str, function: Callable[..., Any], event: type) -> ValueType:
    """Return P, where the first parameter of a workflow's function is annotated `event[P]`."""
    annotation = _annotation(function)
    kind = event.__name__
    inner = _inner(function)
    # By their public names: authors may import them for type checkers only.
    known = {kind: event, "headwater": SimpleNamespace(**{kind: event})}
    try:
        hint = typing.get_type_hints(
            SimpleNamespace(__annotations__={"event": annotation}),
            known | getattr(inner, "__globals__", {}),
            _names_around(inner),
            include_extras=True,
        )["event"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        written = annotation if isinstance(annotation, str) else f"{annotation!r}"
        if f"{kind}[" not in written:
            return ValueType()
        problem = (
            f"expected the type of the params of the workflow {name}, {_MODULES.sub('', written)}, "
            f"to be known at run time, found: {error}; import it at run time, not only for "
            "type checkers, and define it before the workflow"
        )
        return ValueType(problem=problem)
    if typing.get_origin(hint) is Annotated:
        hint = hint.__origin__
    arguments = typing.get_args(hint) if typing.get_origin(hint) is event else ()
    if not arguments or isinstance(arguments[0], TypeVar):
        return ValueType()
    return ValueType(arguments[0])


def result_of(function: Callable[..., Any]) -> ValueType:
    """Return the annotated result type of a function.

    Without an annotation, or if it cannot be resolved at run time, any value is accepted. Only
    values that JSON cannot represent need the type.
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
    """Return the names that are visible where a function is defined, besides its module's.

    Locals of enclosing functions and classes that are currently executing, such as the one that
    declares the workflow; of other enclosing functions, the variables that the function uses.
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
        # The variable may not be assigned yet.
        with contextlib.suppress(ValueError):
            used[name] = cell.cell_contents
    return dict(ChainMap(used, *map(dict, around)))


def _annotation(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return None if first is None or first.annotation is first.empty else first.annotation


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the author's function without decorators and bound arguments."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return function
