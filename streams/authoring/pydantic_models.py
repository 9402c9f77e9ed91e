"""Pydantic models of authors, by their public methods.

Headwater does not depend on pydantic. An author who passes a model has it installed, so a class is
recognized by the methods of pydantic 2.
"""

import json
from functools import cache
from typing import Any, TypeGuard

from typing_extensions import override

#: Models take finite decimals alone, unlike the format.
_NEITHER_NAN_NOR_INF = "^[^nNiI]*$"
_METHODS = ("model_validate_json", "model_json_schema", "model_dump", "model_fields")


def is_model(cls: object) -> TypeGuard[type]:
    """Return whether something is a pydantic model class."""
    return isinstance(cls, type) and all(hasattr(cls, each) for each in _METHODS)


def attributes_of(cls: Any) -> tuple[str, ...]:  # noqa: ANN401, a model
    """Return the names of the attributes that hold the values of a model's instances."""
    # The last one holds fields that a model takes and does not name (extra="allow").
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
    """Return pydantic's generator of schemas, with the format of decimals that are texts."""
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415, it may not be installed

    class Generator(GenerateJsonSchema):
        # Its texts have no limits in some releases, and in others a pattern with a lookahead.
        @override
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().decimal_schema(schema)
            for each in found.get("anyOf", [found]):
                if each.get("type") == "string":
                    each |= {"format": "decimal", "pattern": _NEITHER_NAN_NOR_INF}
            return found

    return Generator


def read_model(cls: Any, value: Any) -> Any:  # noqa: ANN401, a model and any JSON value
    """Return an instance of a model, read from a JSON value.

    As JSON and not as Python objects: a strict model takes a date as text from JSON alone.

    Raises:
        ValueError: The value does not fit; the message names each path.
    """
    try:
        return cls.model_validate_json(json.dumps(value))
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        raise ValueError("; ".join(map(_line, errors()))) from error


def dumped(value: Any) -> Any:  # noqa: ANN401, any object
    """Return a model instance as plain values that the model reads as an equal instance.

    Raises:
        TypeError: It is not an instance of a model.
    """
    if not is_model(type(value)):
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
    # A round trip leaves out computed fields, which the model does not read.
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


def _line(error: dict[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    return f"{path}: {error['msg']}" if path else str(error["msg"])
