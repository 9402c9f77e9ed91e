"""Convert values to and from the CEL library, with NUL characters; read fields without it.

NUL is replaced by a character that Unicode reserves for internal use and that no text contains.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.cel_ast import Const, Ident, Items, Node, Select
from headwater.processors.cel_parts import without_local
from headwater.processors.evaluations import EvaluationProblem
from headwater.schemas.history import NESTING_MAX

_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufdd0"
_ENCODE: Final = msgspec.json.Encoder().encode
#: Spellings of NUL in an expression.
_SPELLED: Final = re.compile(r"\0|\\(?:u0000|U00000000|[xX]00|000)")


class CelValue(NamedTuple):
    """A value for the CEL library.

    Attributes:
        value: The value with NUL replaced.
        had_nul: Whether it contained NUL.
        text: The original value as JSON.
        items: Upper bound of the items of any list or map in it.
    """

    value: Any
    had_nul: bool
    text: bytes
    items: int


def encode_for_cel(value: Any) -> CelValue:  # noqa: ANN401, any JSON value
    """Replace NUL in a value. Without NUL the value itself is returned.

    Raises:
        ValueError: The value is not JSON, or contains both NUL and its replacement.
        TypeError: The value is not JSON.
        OverflowError: The value is not JSON.
        RecursionError: The value is nested too deep.
    """
    try:
        text = _ENCODE(value)
    except OverflowError:
        # An integer beyond 64 bits, which CEL rejects, but only if the expression uses it.
        text = json.dumps(value).encode()
    if b"\\u0000" not in text:
        return CelValue(value, False, text, text.count(b",") + 1)
    if _REPLACEMENT.encode() in text:
        raise ValueError("text without both of the characters NUL and U+FDD0, found both")
    return CelValue(_with(value, _NUL, _REPLACEMENT), True, text, text.count(b",") + 1)


def restore_nul(value: Any) -> Any:  # noqa: ANN401, what CEL gives
    """Restore NUL in a result of the library."""
    return _with(value, _REPLACEMENT, _NUL)


def spells_nul(source: str) -> bool:
    """Return whether an expression may contain NUL, which the replacement does not cover."""
    return _SPELLED.search(source) is not None


def _with(value: Any, old: str, new: str) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [_with(item, old, new) for item in value]
    if isinstance(value, Mapping):
        return {_with(key, old, new): _with(item, old, new) for key, item in value.items()}
    return value


# -- results, and expressions that are read without the library

_EXCERPT_CHARS: Final = 120
#: Range of CEL integers; the library reports larger ones as errors.
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1
_ABSENT: Final = object()


class NeedsLibrary(ValueError):
    """A value that the library would change or reject."""


class _FieldMissing(NeedsLibrary):
    """An object has no such field."""


def canonical_copy(value: Any, levels: int = NESTING_MAX) -> Any:  # noqa: ANN401, any JSON value
    """Copy a value as the library would return it: with sorted keys, and within its bounds.

    Raises:
        NeedsLibrary: The library has to process the value, because it rejects or changes it.
    """
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is bool or value is None:
        return value
    if kind is int and _INT_MIN <= value <= _INT_MAX:
        return value
    if kind is float and math.isfinite(value):
        return value
    if levels and kind is list:
        return [canonical_copy(item, levels - 1) for item in value]
    if levels and kind is dict and all(type(key) is str for key in value):
        return {_text(key): canonical_copy(value[key], levels - 1) for key in sorted(value)}
    raise NeedsLibrary


def literal_of(tree: Node) -> Node | None:
    """Return the tree of an expression that is a literal of fields, without its bindings."""
    tree = without_local(tree)
    return tree if isinstance(tree, Items) and _is_literal(tree) else None


def _is_literal(node: Node) -> bool:
    match node:
        case Items():
            return not (node.optional or node.message) and all(map(_is_literal, node.items))
        case Select():
            return not node.test_only and _is_literal(node.operand)
        case Const():
            return node.value is not ... and "\0" not in (node.text or "")
        case _:
            return isinstance(node, Ident)


def evaluate_literal(node: Node, values: Mapping[str, Any], levels: int = NESTING_MAX) -> Any:  # noqa: ANN401
    """Evaluate an expression that is a literal of fields.

    A field that is missing is left out of an object, and null in a list.

    Raises:
        NeedsLibrary: The library has to evaluate it, because it rejects a value.
    """
    match node:
        case Const():
            return node.value
        case Items() if levels == 0:
            raise NeedsLibrary
        case Items(is_map=True):
            keys = [key.text if isinstance(key, Const) else None for key in node.items[::2]]
            if None in keys or len(set(keys)) < len(keys):
                raise NeedsLibrary
            pairs = zip(keys, node.items[1::2], strict=True)
            # The library returns a map in the order of its keys.
            ordered = sorted(pairs, key=lambda pair: str(pair[0]))
            parts = ((key, _part(item, values, levels)) for key, item in ordered)
            return {key: part for key, part in parts if part is not _ABSENT}
        case Items():
            items = (_part(item, values, levels) for item in node.items)
            return [None if item is _ABSENT else item for item in items]
        case _:
            return canonical_copy(_read(node, values), levels)


def _part(node: Node, values: Mapping[str, Any], levels: int) -> Any:  # noqa: ANN401
    try:
        return evaluate_literal(node, values, levels - 1)
    except _FieldMissing:
        return _ABSENT


def _read(node: Node, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    if isinstance(node, Ident) and node.name in values:
        return values[node.name]
    if isinstance(node, Select):
        operand = _read(node.operand, values)
        if type(operand) is dict:
            if node.field in operand:
                return operand[node.field]
            raise _FieldMissing
    raise NeedsLibrary


def _text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NeedsLibrary from None
    return text


def json_text(value: Any) -> str | EvaluationProblem:  # noqa: ANN401
    """Encode a result of the library as JSON text."""
    try:
        # Sorted: a map of the evaluator has no order, and equal values must have equal texts.
        return json.dumps(
            value,
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,
            default=_as_text,
        )
    except (TypeError, ValueError, RecursionError) as error:
        return EvaluationProblem(f"expected a JSON value, found {excerpt(value)}: {error}")


def json_value(value: object) -> object:
    """Convert a result of the library to a JSON value, or return an EvaluationProblem."""
    try:
        return _plain(value)
    except (TypeError, ValueError) as error:
        return EvaluationProblem(f"expected a value of JSON: {error}")


def _plain(value: object, levels: int = NESTING_MAX) -> object:
    if levels == 0 and isinstance(value, list | dict):
        # A loop that nests its value in another list would otherwise run into Python's limit.
        raise ValueError(f"more than {NESTING_MAX} levels of lists and maps")
    if isinstance(value, list):
        return [_plain(item, levels - 1) for item in value]
    if isinstance(value, dict):
        invalid = next((key for key in value if not isinstance(key, str)), None)
        if invalid is not None:
            raise TypeError(f"expected texts as keys, found {excerpt(invalid)}")
        # A map of the evaluator has no order, and must have the same text in every process.
        return {key: _plain(value[key], levels - 1) for key in sorted(value)}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON")
    return value if isinstance(value, str | int | float | None) else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return _seconds(value)
    raise TypeError(f"{type(value).__name__} is no JSON; convert it with string(...)")


def _seconds(value: timedelta) -> str:
    """Return a duration as CEL's `string` does and JSON of protobuf has it: `90s`, `1.500s`."""
    micros = value // timedelta(microseconds=1)
    whole, fraction = divmod(abs(micros), 1_000_000)
    digits = f"{fraction:06}".removesuffix("000") if fraction else ""
    return f"{'-' if micros < 0 else ''}{whole}{'.' if digits else ''}{digits}s"


def excerpt(value: object) -> str:
    """Return the beginning of a value, for messages."""
    text = repr(value)
    return text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}…"
