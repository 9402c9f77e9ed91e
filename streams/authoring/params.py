"""The type that a workflow declares for its payload, found where its author wrote it."""

import contextlib
import functools
import inspect
import re
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType, SimpleNamespace
from typing import Annotated, Any, Final, TypeVar

import msgspec
from typing_extensions import override

from headwater.processors.json_schemas import SchemaInvalid
from headwater.processors.runs.params import params_fault
from headwater.schemas.history import Json
from headwater.streams.authoring.read_only import frozen
from headwater.streams.authoring.values import decode

#: Schemas of types that say nothing of what they hold.
_SAY_NOTHING: Final = ({"type": "object"}, {"type": "array"})
_PLACE: Final = re.compile(r"(?:(?:[A-Za-z_]\w*|<locals>)\.)+")


class Params:
    """What a payload is read as.

    Shape:  form is a type form, Any for none. A fault says why it could not be found.
    """

    def __init__(self, form: Any, *, fault: str | None = None) -> None:  # noqa: ANN401
        self._form = form
        self.fault = fault

    @override
    def __repr__(self) -> str:
        """The type as its author wrote it, without the modules."""
        plain = isinstance(self._form, type) and not typing.get_args(self._form)
        return self._form.__name__ if plain else _PLACE.sub("", f"{self._form!r}")

    def read(self, params: Json) -> Any:  # noqa: ANN401, what the author declared
        """A payload, read-only.

        Shape:  none are None, whatever the type.
        Errors: msgspec.ValidationError, which says where it does not fit; TypeError for a type that
                JSON cannot be read as, or that was not found.
        """
        if self.fault:
            raise TypeError(self.fault)
        value = decode(params)
        if self._form is not Any and value is not None:
            value = msgspec.convert(value, self._form)
        return frozen(value)

    def schema(self) -> Json | None:
        """The JSON Schema of the payload; None where any is taken, or the type cannot say it.

        Shape:  fields that the type does not name are refused, unless its schema says itself that
                there may be more (`additionalProperties`), as that of a mapping does. No params are
                taken by a dict or a list of whatever, which asks for nothing to be there.
        """
        if self._form is Any or self.fault:
            return None
        try:
            found = msgspec.json.schema(self._form)
            if found in _SAY_NOTHING:
                found["type"] = [found["type"], "null"]
            _close(found)
            text = msgspec.json.encode(found).decode()
            params_fault(text, "null")
        except (TypeError, SchemaInvalid):
            return None
        return text


def _close(schema: object) -> None:
    """Lets objects of a schema have no fields but those that are named."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            _close(each)
    elif isinstance(schema, list):
        for each in schema:
            _close(each)


def params_of(name: str, function: Callable[..., Any], event: type) -> Params:
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
            return Params(Any)
        fault = (
            f"expected the type of the params of the workflow {name}, {_PLACE.sub('', written)}, "
            f"to be known at run time, found: {why}; import it at run time, not for type checkers "
            "alone, and define it before the workflow"
        )
        return Params(Any, fault=fault)
    if typing.get_origin(hint) is Annotated:
        hint = hint.__origin__
    arguments = typing.get_args(hint) if typing.get_origin(hint) is event else ()
    if not arguments or isinstance(arguments[0], TypeVar):
        return Params(Any)
    return Params(arguments[0])


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
