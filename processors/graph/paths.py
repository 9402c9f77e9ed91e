"""Paths such as `state.order.total`: values are set by them, in copies."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.processors.evaluations import EvaluationProblem
from headwater.schemas.history import NESTING_MAX

#: Most parts of a path. A target of half as many levels as a value may have leaves as many to the
#: value that is set; people write fewer than ten.
SEGMENTS_MAX: Final = 64
#: Most characters of a path: events and error messages repeat it.
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
        found = path.count(".") + 1
        return f"expected a target of at most {SEGMENTS_MAX} parts, found {found} in {shown}"
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
        below = inner.get(name)
        inner[name] = dict(below) if isinstance(below, Mapping) else {}
        inner = inner[name]
    inner[last] = value
    return root


def placed(values: Mapping[str, Any], path: str, value: Any) -> dict[str, Any] | EvaluationProblem:  # noqa: ANN401
    """Return a copy as `set_path` does, or a fault where the result has too many levels."""
    return depth_problem(path, value) or set_path(values, path, value)


def depth_problem(path: str, value: Any) -> EvaluationProblem | None:  # noqa: ANN401
    """Return why a value may not be set at a path within an object, if so: it is too deep there."""
    levels = NESTING_MAX - path.count(".") - 1
    if not is_deeper(value, levels):
        return None
    return EvaluationProblem(
        f"expected at most {NESTING_MAX} levels of lists and objects with {path!r} set, found more"
    )


def is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401
    """Return whether lists and objects of a value are nested in more than so many levels."""
    layer = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            inner for each in layer for inner in _parts(each) if isinstance(inner, list | dict)
        ]
    return bool(layer)


def _parts(value: list[Any] | dict[str, Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def section_of(path: str) -> tuple[str, str]:
    """Return the section that a path of the shared context begins with, and the path within it."""
    section, _, rest = path.partition(".")
    return section, rest
