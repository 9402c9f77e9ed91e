"""Support for authors' pydantic models, through pydantic's public methods.

Headwater does not depend on pydantic. An author who passes a model has it installed, so classes are
recognized by the methods of pydantic 2.
"""

import json
from functools import cache
from typing import Any, TypeGuard

from typing_extensions import override

#: Models accept only finite decimals, unlike the format.
_NEITHER_NAN_NOR_INF = "^[^nNiI]*$"
_METHODS = ("model_validate_json", "model_json_schema", "model_dump", "model_fields")


def is_model(cls: object) -> TypeGuard[type]:
    """Return whether an object is a pydantic model class."""
    return isinstance(cls, type) and all(hasattr(cls, method) for method in _METHODS)


def attributes_of(cls: Any) -> tuple[str, ...]:  # noqa: ANN401, a model
    """Return the names of the attributes that hold the values of a model's instances."""
    # The last one holds undeclared fields that a model accepts (extra="allow").
    return (*cls.model_fields, "__pydantic_extra__")


def model_schema(cls: Any, pointer: str) -> dict[str, Any]:  # noqa: ANN401, a model
    """Return the JSON Schema of a model.

    Args:
        cls: The model class.
        pointer: JSON pointer of the position at which the schema will be, such as `#/$defs/Order`.

    Raises:
        TypeError: The model has a field that JSON Schema cannot describe.
    """
    try:
        schema: dict[str, Any] = cls.model_json_schema(
            ref_template=f"{pointer}/$defs/{{model}}", schema_generator=_generator()
        )
    except Exception as error:
        # PydanticInvalidForJsonSchema, PydanticUserError and what hooks of authors raise.
        raise TypeError(f"{cls.__name__} has no JSON Schema: {error}") from error
    return schema


@cache
def _generator() -> type:
    """Return pydantic's schema generator, changed to emit the format of decimals as text."""
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415, it may not be installed

    class Generator(GenerateJsonSchema):
        # Depending on the release, pydantic emits no limits or a pattern with a lookahead.
        @override
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            schema_of_decimal: dict[str, Any] = super().decimal_schema(schema)
            for option in schema_of_decimal.get("anyOf", [schema_of_decimal]):
                if option.get("type") == "string":
                    option |= {"format": "decimal", "pattern": _NEITHER_NAN_NOR_INF}
            return schema_of_decimal

    return Generator


def read_model(cls: Any, value: Any) -> Any:  # noqa: ANN401, a model and any JSON value
    """Read an instance of a model from a JSON value.

    It is read as JSON, not as Python objects: a strict model accepts a date as text only from JSON.

    Raises:
        ValueError: The value does not fit. The message names every path.
    """
    try:
        return cls.model_validate_json(json.dumps(value))
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        raise ValueError("; ".join(map(_line, errors()))) from error


def model_to_plain(value: Any) -> Any:  # noqa: ANN401, any object
    """Return a model instance as plain values that the model reads as an equal instance.

    Raises:
        TypeError: The value is not an instance of a model.
    """
    if not is_model(type(value)):
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
    # A round trip omits computed fields, which the model cannot read.
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


def _line(error: dict[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    return f"{path}: {error['msg']}" if path else str(error["msg"])
