"""Checking that a JSON text means the same to every reader, without building its values.

A text is refused for names twice in one object, for numbers that no float can hold, for halves of
surrogate pairs and for too many levels: the code that gets it is far from who sent it.

The check is linear in the text, whatever it holds. That of a large text runs in short steps, so
another thread gets the interpreter in between: a parser that builds a large value in one call holds
it for seconds.
"""

import json
import math
import re
from itertools import accumulate
from typing import Any, Final

import msgspec

from headwater.processors.json_texts import TooDeep, within_levels
from headwater.schemas.history import NESTING_MAX

#: Bytes of a text that Python's parser reads in some milliseconds, whatever it holds. It takes half
#: the time of the steps.
SMALL_BYTES: Final = 64 * 1024
#: Digits of a whole number; Python reads no longer ones.
_DIGITS_MAX: Final = 4_300
_SHOWN_CHARS: Final = 60

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
#: Some strings and what is between them, up to the end of a number: a step of some 50 KiB.
_STEP: Final = re.compile(rf'(?:[^"]{{1,4096}}+|{_STRING}){{1,256}}+[-+.0-9eE]*+', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]++")
_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
#: A number with an exponent of three digits, or with many digits, may be beyond every float.
_MAY_BE_LARGE: Final = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{300}")
_NUMBER: Final = re.compile(r"(?<![-+.0-9eE])-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+")
#: The next brace of an object, or a string; with its colon, it is a name. Objects of no name or of
#: one, with a plain value, have none twice, and are passed over.
_NAMES: Final = re.compile(
    rf'(?:[^"{{}}]++|\{{[ \t\n\r]*+(?:{_STRING}[ \t\n\r]*+:[^]["{{}}]++)?+\}})'
    rf"{{0,4096}}+(?:({_STRING})[ \t\n\r]*+(:)?+|([{{}}]))?+",
    re.DOTALL,
)
_TEXT, _COLON, _BRACE = 1, 2, 3


class NameTwice(ValueError):
    """A name that an object has twice."""


def check_text(body: bytes) -> None:
    """Check a JSON text.

    Raises:
        TooDeep: It has more than `NESTING_MAX` levels of lists and objects.
        NameTwice: An object has a name twice; the message is the name.
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
    msgspec.json.decode(text, type=msgspec.Raw)  # It skips, and builds nothing.


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NameTwice(ascii(name[:_SHOWN_CHARS]))
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


#: Parsers whose values are thrown away: they look for names twice, and at numbers.
_PARSER: Final = json.JSONDecoder(object_pairs_hook=_once)
_PARSER_OF_LARGE: Final = json.JSONDecoder(object_pairs_hook=_once, parse_float=_check_number)


def _check_names(text: str) -> None:
    #: The names of each object around the place at hand; lists do not matter.
    around: list[set[str]] = []
    names: set[str] = set()
    for found in _NAMES.finditer(text):
        kind = found.lastindex
        if kind == _COLON:
            name = found[_TEXT]
            if "\\" in name:
                name = msgspec.json.encode(msgspec.json.decode(name)).decode()
            if name in names:
                raise NameTwice(ascii(msgspec.json.decode(name)[:_SHOWN_CHARS]))
            names.add(name)
        elif kind == _BRACE:
            if found[_BRACE] == "{":
                around.append(names)
                names = set()
            else:
                names = around.pop()


def _too_deep() -> TooDeep:
    return TooDeep(f"expected at most {NESTING_MAX} levels of lists and objects, found more")
