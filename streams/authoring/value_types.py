"""Types of authors' params, results and values: schemas, conversion and checks."""

import contextlib
import functools
import inspect
import re
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cached_property
from types import CodeType, SimpleNamespace
from typing import Annotated, Any, Final, TypeVar

import msgspec
from typing_extensions import override

from headwater.processors.json_schemas import SchemaInvalid
from headwater.processors.runs.params import params_problem
from headwater.schemas.history import Json
from headwater.streams.authoring.pydantic_models import read_model
from headwater.streams.authoring.type_schemas import Schema, TypeSchema
from headwater.streams.authoring.values import decode

#: Schemas of types that do not constrain their content.
_ANY_CONTENT: Final = ({"type": "object"}, {"type": "array"})
_MODULES: Final = re.compile(r"(?:(?:[A-Za-z_]\w*|<locals>)\.)+")


class ValueType:
    """A type that an author declared for a value."""

    def __init__(self, form: Any = Any, *, problem: str | None = None) -> None:  # noqa: ANN401
        """Store a type. `check` validates it.

        Args:
            form: A type, as in an annotation; Any if none is declared.
            problem: Why the type could not be resolved.
        """
        self._form = form
        self.problem = problem

    @override
    def __repr__(self) -> str:
        """Return the type as its author wrote it, without module names."""
        plain = isinstance(self._form, type) and not typing.get_args(self._form)
        return self._form.__name__ if plain else _MODULES.sub("", f"{self._form!r}")

    @property
    def is_any(self) -> bool:
        """Whether any JSON value is of this type."""
        return self._form is Any or self._form is object

    @property
    def is_plain(self) -> bool:
        """Whether a value of the type is what the JSON parser returns.

        Raises:
            TypeError: JSON cannot be read as this type.
        """
        return self.is_any or self._described.is_plain

    @cached_property
    def _described(self) -> TypeSchema:
        return TypeSchema(self._form)

    def read(self, text: Json) -> Any:  # noqa: ANN401, what the author declared
        """Read a value of this type. Null is None for every type.

        Raises:
            msgspec.ValidationError: The value does not fit. The message has the path.
            TypeError: JSON cannot be read as this type, or the type could not be resolved.
        """
        if self.problem:
            raise TypeError(self.problem)
        return self.convert(decode(text))

    def convert(self, value: Any) -> Any:  # noqa: ANN401
        """Convert a JSON value to this type; raises as `read`."""
        if self.is_any or value is None:
            return value
        try:
            return self._converted(value)
        except msgspec.ValidationError:
            # JSON has one type of number: 1.0 is the integer 1. Tried last, so that a float stays
            # a float where the type permits one.
            whole = _whole(value)
            if whole is value:
                raise
            try:
                return self._converted(whole)
            except msgspec.ValidationError:
                pass
            raise

    def _converted(self, value: Any) -> Any:  # noqa: ANN401
        return msgspec.convert(value, self._form, str_keys=True, dec_hook=_read_custom)

    def schema(self) -> Json | None:
        """Return the JSON Schema of the values; None if any value is accepted.

        Undeclared fields are refused, unless the type's schema permits more
        (`additionalProperties`), as that of a mapping does. Null is accepted for a dict or a list
        with unconstrained content.

        Raises:
            TypeError: JSON cannot be read as this type.
        """
        if self.is_any or self.problem:
            return None
        schema = self._described.schema
        if schema in _ANY_CONTENT:
            schema = {"type": [schema["type"], "null"]}
        return msgspec.json.encode(_closed(schema)).decode()

    def check(self) -> None:
        """Check that values can be described and read.

        Raises:
            TypeError: They cannot. The message has the reason.
        """
        if self.problem:
            raise TypeError(self.problem)
        if self.is_any:
            return
        text = self.schema() or "{}"
        # Some of msgspec's rules are checked only when a decoder is created.
        msgspec.json.Decoder(self._form, dec_hook=_read_custom)
        try:
            params_problem(text, "null")
        except SchemaInvalid as error:
            raise TypeError(f"its JSON Schema cannot be checked: {error}") from error


def _read_custom(cls: type, value: Any) -> Any:  # noqa: ANN401
    return value if cls is object else read_model(cls, value)


def _closed(schema: Any) -> Any:  # noqa: ANN401, a part of a schema
    """Return a schema that refuses undeclared fields in objects."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed: Schema = {name: _closed(part) for name, part in schema.items()}
    if "properties" in closed and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _whole(value: Any) -> Any:  # noqa: ANN401, any JSON value
    """Return a JSON value with whole floats as integers; the same object if there are none."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        changed = {name: _whole(item) for name, item in value.items()}
        return value if all(changed[name] is item for name, item in value.items()) else changed
    if isinstance(value, list):
        items = [_whole(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


# -- params and results of workflows

#: Annotations of results that do not describe a value.
_NO_TYPES: Final = (Any, object, None, typing.NoReturn, typing.Never, type(None))


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


# -- results of steps


def step_result_type(function: Callable[..., Any]) -> ValueType | None:
    """Return the type that the result of a step is converted to.

    Returns:
        None if no conversion is needed: the function has no annotation, its type is one of JSON's
        own types, or JSON cannot be read as the type.
    """
    annotations = getattr(function, "__annotations__", None)
    # Most callbacks are lambdas, which have no annotations.
    if not annotations or annotations.get("return") in _PLAIN:
        return None
    if "<locals>" in getattr(function, "__qualname__", "<locals>"):
        # The type may differ between calls of the enclosing function.
        return _type_of(function)
    return _type_of_module(function)


def result_of_step(name: str, text: Json | None, declared: ValueType | None) -> Any:  # noqa: ANN401
    """Return the recorded result of a step.

    Raises:
        TypeError: The code declares another type than when the result was recorded.
    """
    if declared is None:
        return decode(text or "null")
    try:
        return declared.read(text or "null")
    except (ValueError, msgspec.ValidationError) as error:
        raise TypeError(
            f'expected the recorded result of the step "{name}" to be {declared!r}, as its '
            f"function is annotated, found: {error}"
        ) from error


def output_of(workflow: object, output: Any) -> Any:  # noqa: ANN401
    """Return the output of an instance, converted to the type that its workflow declares.

    Args:
        workflow: A workflow made by @workflow(...). For anything else the output stays JSON.
        output: The output as a JSON value.

    Raises:
        TypeError: The workflow declared another type when the output was recorded.
    """
    result_type = getattr(workflow, "result_type", None)
    declared: ValueType | None = result_type() if callable(result_type) else None
    if declared is None or declared.is_plain:
        return output
    try:
        return declared.convert(output)
    except (ValueError, msgspec.ValidationError) as error:
        raise TypeError(
            f"expected the output of {workflow!r} to be {declared!r}, found: {error}"
        ) from error


#: Common annotations that need no conversion.
_PLAIN: Final[tuple[object, ...]] = (
    *(None, int, str, bool, float, dict, list, Any, object),
    *("None", "int", "str", "bool", "float", "dict", "list", "Any", "object"),
)


def _type_of(function: Callable[..., Any]) -> ValueType | None:
    declared = result_of(function)
    try:
        return None if declared.is_plain else declared
    except TypeError:
        return None


_type_of_module = functools.lru_cache(4_096)(_type_of)
