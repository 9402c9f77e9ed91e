"""Types of authors' values: their schemas, conversion, and checks when an app is loaded."""

import re
import typing
from functools import cached_property
from typing import Any, Final

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
        whose content is not constrained.

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
    """Return a schema whose objects refuse undeclared fields."""
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
