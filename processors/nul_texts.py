"""Texts with the character NUL on their way through the CEL library, which cuts them off there.

Another character stands in for it: one that Unicode keeps for such uses, and that no text has.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

_NUL: Final = "\0"
_STAND_IN: Final = "\ufdd0"
_ENCODE: Final = msgspec.json.Encoder().encode
#: How an expression can spell NUL itself.
_SPELLED: Final = re.compile(r"\0|\\(?:u0000|U00000000|[xX]00|000)")


class Carried(NamedTuple):
    """A value without NUL, whether it had some, and the value as it was, as JSON."""

    value: Any
    had_nul: bool
    text: bytes
    #: Items that no list or map in it has more of.
    items: int


def carried(value: Any) -> Carried:  # noqa: ANN401, any JSON value
    """A value in which another character stands for NUL.

    Shape:  without NUL it is the value itself. To look is a small part of its conversion for CEL.
    Errors: ValueError, TypeError, OverflowError, RecursionError, for what is no JSON, or has both.
    """
    try:
        text = _ENCODE(value)
    except OverflowError:
        # An integer beyond 64 bits, which CEL does not take; it says so only if it is used.
        text = json.dumps(value).encode()
    if b"\\u0000" not in text:
        return Carried(value, False, text, text.count(b",") + 1)
    if _STAND_IN.encode() in text:
        raise ValueError("text without both of the characters NUL and U+FDD0, found both")
    return Carried(_with(value, _NUL, _STAND_IN), True, text, text.count(b",") + 1)


def given_back(value: Any) -> Any:  # noqa: ANN401, what CEL gives
    """What came of carried values, with NUL where it was."""
    return _with(value, _STAND_IN, _NUL)


def spells_nul(source: str) -> bool:
    """Whether an expression may mean NUL: no other character stands for what it spells."""
    return _SPELLED.search(source) is not None


def _with(value: Any, old: str, new: str) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [_with(each, old, new) for each in value]
    if isinstance(value, Mapping):
        return {_with(key, old, new): _with(each, old, new) for key, each in value.items()}
    return value
