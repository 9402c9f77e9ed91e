"""Types of step results, from the annotations of the steps' functions."""

import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.schemas.history import Json
from headwater.streams.authoring.params import result_of
from headwater.streams.authoring.value_types import ValueType
from headwater.streams.authoring.values import decode


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
