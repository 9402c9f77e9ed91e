"""Types of authors' values: how a declared type is described, read, and checked at its load."""

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

#: Schemas of types that have no rule for what is in them.
_ANY_CONTENT: Final = ({"type": "object"}, {"type": "array"})
_MODULES: Final = re.compile(r"(?:(?:[A-Za-z_]\w*|<locals>)\.)+")


class ValueType:
    """A type that an author declared for a value."""

    def __init__(self, form: Any = Any, *, fault: str | None = None) -> None:  # noqa: ANN401
        """Keep a type; `check` looks at it.

        Args:
            form: A type, as in an annotation; Any where none is declared.
            fault: Why the type could not be resolved.
        """
        self._form = form
        self.fault = fault

    @override
    def __repr__(self) -> str:
        """Return the type as its author wrote it, without the modules."""
        plain = isinstance(self._form, type) and not typing.get_args(self._form)
        return self._form.__name__ if plain else _MODULES.sub("", f"{self._form!r}")

    @property
    def is_any(self) -> bool:
        """Whether any JSON value is one of this type."""
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
        """Return a value of this type. Null is None, whatever the type.

        Raises:
            msgspec.ValidationError: The value does not fit; the message has the path.
            TypeError: JSON cannot be read as this type, or it could not be resolved.
        """
        if self.fault:
            raise TypeError(self.fault)
        return self.convert(decode(text))

    def convert(self, value: Any) -> Any:  # noqa: ANN401
        """Return a JSON value as one of this type; as `read`."""
        if self.is_any or value is None:
            return value
        try:
            return self._converted(value)
        except msgspec.ValidationError:
            # JSON has one kind of number: 1.0 is the integer 1. Tried last, because a float that
            # the type leaves open stays what it is.
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
        """Return the JSON Schema of the values; None where any value will do.

        Fields that the type does not name are refused, unless its schema itself says that there
        may be more (`additionalProperties`), as that of a mapping does. Null fits a dict or a list
        whose content has no rule.

        Raises:
            TypeError: JSON cannot be read as this type.
        """
        if self.is_any or self.fault:
            return None
        schema = self._described.schema
        if schema in _ANY_CONTENT:
            schema = {"type": [schema["type"], "null"]}
        return msgspec.json.encode(_closed(schema)).decode()

    def check(self) -> None:
        """See that values can be described and read, before there are any.

        Raises:
            TypeError: They cannot; the message says why.
        """
        if self.fault:
            raise TypeError(self.fault)
        if self.is_any:
            return
        text = self.schema() or "{}"
        # Some rules of msgspec's are found only by its decoder.
        msgspec.json.Decoder(self._form, dec_hook=_read_custom)
        try:
            params_problem(text, "null")
        except SchemaInvalid as error:
            raise TypeError(f"its JSON Schema cannot be checked: {error}") from error


def _read_custom(cls: type, value: Any) -> Any:  # noqa: ANN401
    return value if cls is object else read_model(cls, value)


def _closed(schema: Any) -> Any:  # noqa: ANN401, a part of a schema
    """Return a schema whose objects have no fields but those that are named."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed: Schema = {name: _closed(each) for name, each in schema.items()}
    if "properties" in closed and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _whole(value: Any) -> Any:  # noqa: ANN401, any JSON value
    """Return a JSON value with integers for floats that are whole; itself where there are none."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        changed = {name: _whole(each) for name, each in value.items()}
        return value if all(changed[name] is each for name, each in value.items()) else changed
    if isinstance(value, list):
        items = [_whole(each) for each in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value
