"""Preserve NUL characters in texts that pass through the CEL library, which truncates at NUL.

NUL is replaced by a character that Unicode reserves for internal use and that no text contains.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

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
