"""Check that a JSON text is unambiguous, without building its values.

A text is rejected for duplicate names in an object, numbers that no float can hold, lone surrogates
and too many levels: the code that processes the value runs far from the sender.

The check takes linear time for any text. A large text is checked in short steps, so that other
threads get the interpreter in between: a parser that builds a large value in one call would block
them for seconds.
"""

import json
import math
import re
from itertools import accumulate
from typing import Any, Final

import msgspec

from headwater.processors.input_texts import TooDeep, within_levels
from headwater.schemas.history import NESTING_MAX

#: Bytes of a text that Python's parser reads within milliseconds, in half the time that the steps
#: take.
SMALL_BYTES: Final = 64 * 1024
#: Digits of an integer; Python does not parse longer ones.
_DIGITS_MAX: Final = 4_300
_SHOWN_CHARS: Final = 60

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
#: A step of about 50 KiB: some strings and the text between them, up to the end of a number.
_STEP: Final = re.compile(rf'(?:[^"]{{1,4096}}+|{_STRING}){{1,256}}+[-+.0-9eE]*+', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]++")
_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
#: A number with an exponent of three digits, or with many digits, may exceed every float.
_MAY_BE_LARGE: Final = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{300}")
_NUMBER: Final = re.compile(r"(?<![-+.0-9eE])-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+")
#: The next brace of an object, or a string; a string with a colon is a name. Objects with at most
#: one name and a plain value have no duplicates and are skipped.
_NAMES: Final = re.compile(
    rf'(?:[^"{{}}]++|\{{[ \t\n\r]*+(?:{_STRING}[ \t\n\r]*+:[^]["{{}}]++)?+\}})'
    rf"{{0,4096}}+(?:({_STRING})[ \t\n\r]*+(:)?+|([{{}}]))?+",
    re.DOTALL,
)
_TEXT, _COLON, _BRACE = 1, 2, 3


class DuplicateName(ValueError):
    """An object has a name twice."""


def check_text(body: bytes) -> None:
    """Check a JSON text.

    Raises:
        TooDeep: It has more than `NESTING_MAX` levels of lists and objects.
        DuplicateName: An object has a name twice; the message is the name.
        ValueError: It is not JSON in UTF-8, or has a number that cannot be read.
    """
    text = body.decode()
    if len(body) <= SMALL_BYTES:
        check_at_once(text)
    else:
        check_in_steps(text)


def check_at_once(text: str) -> None:
    """Check a text by building its value; raises as `check_text`."""
    within_levels(text)
    _check_syntax(text)
    (_PARSER_OF_LARGE if _MAY_BE_LARGE.search(text) else _PARSER).decode(text)


def check_in_steps(text: str) -> None:
    """Check a text without building anything; raises as `check_text`."""
    try:
        _check_syntax(text)
    except RecursionError:
        raise _too_deep() from None
    _check_levels_and_numbers(text)
    if "{" in text:
        _check_names(text)


def _check_syntax(text: str) -> None:
    msgspec.json.decode(text, type=msgspec.Raw)  # Skips the values and builds nothing.


def _check_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateName(ascii(name[:_SHOWN_CHARS]))
            seen.add(name)


def _check_levels_and_numbers(text: str) -> None:
    level = 0
    for step in _STEP.finditer(text):
        bare = _STRINGS.sub("", step[0])
        changes = map(_LEVELS.__getitem__, _NO_BRACKETS.sub("", bare))
        levels = list(accumulate(changes, initial=level))
        if max(levels) > NESTING_MAX:
            raise _too_deep()
        level = levels[-1]
        if _MAY_BE_LARGE.search(bare):
            for number in _NUMBER.findall(bare):
                _check_number(number)


def _check_number(number: str) -> None:
    digits = number.removeprefix("-")
    if digits.isdigit():
        if len(digits) > _DIGITS_MAX:
            shown = number[:_SHOWN_CHARS]
            raise ValueError(f"a whole number of more than {_DIGITS_MAX} digits: {shown}")
    elif not math.isfinite(float(number)):
        raise ValueError(f"a number that no float can hold: {number[:_SHOWN_CHARS]}")


#: Parsers for checks only; their values are discarded. They check for duplicate names and for
#: numbers.
_PARSER: Final = json.JSONDecoder(object_pairs_hook=_check_duplicates)
_PARSER_OF_LARGE: Final = json.JSONDecoder(
    object_pairs_hook=_check_duplicates, parse_float=_check_number
)


def _check_names(text: str) -> None:
    #: The names in every enclosing object; lists do not matter.
    enclosing: list[set[str]] = []
    names: set[str] = set()
    for match in _NAMES.finditer(text):
        kind = match.lastindex
        if kind == _COLON:
            name = match[_TEXT]
            if "\\" in name:
                name = msgspec.json.encode(msgspec.json.decode(name)).decode()
            if name in names:
                raise DuplicateName(ascii(msgspec.json.decode(name)[:_SHOWN_CHARS]))
            names.add(name)
        elif kind == _BRACE:
            if match[_BRACE] == "{":
                enclosing.append(names)
                names = set()
            else:
                names = enclosing.pop()


def _too_deep() -> TooDeep:
    return TooDeep(f"expected at most {NESTING_MAX} levels of lists and objects, found more")
