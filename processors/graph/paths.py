"""Paths such as `state.order.total`: values are set by them, in copies."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.processors.evaluations import EvaluationProblem
from headwater.schemas.history import NESTING_MAX

#: Maximum parts of a path. It is half the levels that a value may have, so the value that is set
#: may have the other half; authors use fewer than ten.
SEGMENTS_MAX: Final = 64
#: Maximum characters of a path: events and error messages repeat it.
PATH_MAX: Final = 2_048
#: Sections of the shared context.
_SECTIONS: Final = ("state", "output")
_NAMES: Final = re.compile(r"[^.]++(?:\.[^.]++)*+")


def path_problem(path: str, *, shared: bool) -> str | None:
    """Return what is wrong with a path that a definition sets, if anything.

    Args:
        path: The target of a mapping or of a merge.
        shared: Whether it begins with a section of the shared context.
    """
    shown = repr(path if len(path) <= 120 else f"{path[:120]}…")
    if len(path) > PATH_MAX:
        return f"expected a target of at most {PATH_MAX} characters, found {len(path)} in {shown}"
    if path.count(".") >= SEGMENTS_MAX:
        parts = path.count(".") + 1
        return f"expected a target of at most {SEGMENTS_MAX} parts, found {parts} in {shown}"
    section, _, within = path.partition(".")
    if shared and (section not in _SECTIONS or not _NAMES.fullmatch(within)):
        return f"expected a target state.… or output.…, found {shown}"
    if not _NAMES.fullmatch(path):
        return f"expected a target of names with a dot between them, found {shown}"
    return None if is_text(path) else f"expected text that UTF-8 can hold, found {shown}"


def is_text(text: str) -> bool:
    """Return whether records can hold a text: it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def set_path(
    values: Mapping[str, Any],
    path: str,
    value: Any,  # noqa: ANN401, any JSON value
) -> dict[str, Any]:
    """Return a copy with a value at a path.

    Only the objects along the path are copied; anything else in its way is replaced by an object.
    """
    *outer, last = path.split(".")
    root = inner = dict(values)
    for name in outer:
        nested = inner.get(name)
        inner[name] = dict(nested) if isinstance(nested, Mapping) else {}
        inner = inner[name]
    inner[last] = value
    return root


def set_path_within_depth(
    values: Mapping[str, Any],
    path: str,
    value: Any,  # noqa: ANN401
) -> dict[str, Any] | EvaluationProblem:
    """Return a copy as `set_path` does, or a fault if the result has too many levels."""
    return depth_problem(path, value) or set_path(values, path, value)


def depth_problem(path: str, value: Any) -> EvaluationProblem | None:  # noqa: ANN401
    """Return a fault if a value set at this path is nested too deeply."""
    levels = NESTING_MAX - path.count(".") - 1
    if not is_deeper(value, levels):
        return None
    return EvaluationProblem(
        f"expected at most {NESTING_MAX} levels of lists and objects with {path!r} set, found more"
    )


def is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401
    """Return whether lists and objects are nested in more than this many levels."""
    layer = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            inner for outer in layer for inner in _parts(outer) if isinstance(inner, list | dict)
        ]
    return bool(layer)


def _parts(value: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def section_of(path: str) -> tuple[str, str]:
    """Return the section of a path of the shared context, and the path within it."""
    section, _, rest = path.partition(".")
    return section, rest
