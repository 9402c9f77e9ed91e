"""Paths such as `state.order.total`: values are set by them, in copies."""

from collections.abc import Mapping
from typing import Any


def set_path(
    values: Mapping[str, Any],
    path: str,
    value: Any,  # noqa: ANN401, any JSON value
) -> dict[str, Any]:
    """A copy with a value at a path.

    Shape:  only the objects along the path are copied; what stands in the way is replaced by one.
    """
    first, _, rest = path.partition(".")
    if not rest:
        return {**values, first: value}
    inner = values.get(first)
    return {**values, first: set_path(inner if isinstance(inner, Mapping) else {}, rest, value)}


def section_of(path: str) -> tuple[str, str]:
    """The section that a path of the shared context begins with, and the path within it."""
    section, _, rest = path.partition(".")
    return section, rest
