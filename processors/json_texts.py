"""Parse JSON of unknown origin within limits of depth, memory and time.

Parsers stop at different depths, which change even between releases of Python. Whether a text is
accepted must not depend on that, so nesting is checked here.

msgspec needs 10 µs for a number such as 1e308, so a text of 10 MiB of them takes 17 seconds. Python
parses a number in 0.1 µs, so msgspec delegates numbers to Python. See ADR 0057.
"""

import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

import msgspec

from headwater.schemas.history import NESTING_MAX, Json

#: Lists and objects in one text. A list takes 60 to 100 bytes of memory and up to 0.5 µs to read,
#: but two bytes of text: 10 MiB of them would take 560 MB and two seconds.
CONTAINERS_MAX: Final = 500_000

#: Numbers near the limits of floats in a text that is parsed into typed fields, where msgspec takes
#: 20 µs for every one whatever its `float_hook`. Measured values are never among them.
EXTREME_NUMBERS_MAX: Final = 10_000
#: A text of this many bytes cannot contain many more of them than that.
_FEW_BYTES: Final = 64 * 1024
_EXTREME_NUMBER: Final = re.compile(rb"[][:,\s]-?[0-9.]+[eE][-+]?0*[23][0-9]{2}(?![0-9A-Za-z])")
#: What may end such a number, also in strings. Both begin with one letter, which `re` finds in a
#: tenth of the time that it takes for the whole number.
_EXPONENTS: Final = [re.compile(letter + rb"[-+]?0*[23][0-9]{2}") for letter in (b"e", b"E")]

#: An unterminated string counts, up to the end of the text: otherwise the rest would be searched
#: again from every one of its quotes.
_STRINGS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]++")
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class JsonInvalid(ValueError):
    """A text is not JSON, or exceeds a limit."""


class TooDeep(JsonInvalid):
    """A text has too many levels of lists and objects."""


def read_json(text: str | bytes, decode: Callable[[str | bytes], Any] | None = None) -> Any:  # noqa: ANN401, any JSON value
    """Parse a JSON text (RFC 8259, UTF-8) in time and memory that are linear in its length.

    Integers are exact up to 4,300 digits. Of a repeated name in an object, the last value counts.

    Args:
        text: The whole text; 10 MiB take at most about 1.5 s, usually 0.1 s.
        decode: Another parser, which has to be linear as well, and raise ValueError.

    Raises:
        JsonInvalid: It is not JSON, has NaN, Infinity, a number that no float can hold, a lone
            surrogate, or more than `CONTAINERS_MAX` lists and objects.
        TooDeep: It has more than `NESTING_MAX` levels of lists and objects.
    """
    brackets = _brackets(text)
    if brackets > CONTAINERS_MAX:
        _check_containers(text)
    try:
        value = (decode or _decode)(text)
    except RecursionError:
        raise _too_deep() from None
    except MemoryError:
        raise JsonInvalid(f"not enough memory for {len(text)} bytes of JSON") from None
    # Errors of msgspec, of its codec, and of `_float`.
    except (msgspec.MsgspecError, ValueError) as error:
        raise JsonInvalid(f"expected JSON in UTF-8, found: {error}") from None
    if brackets > NESTING_MAX and _is_deeper(value, NESTING_MAX):
        raise _too_deep()
    return value


def check_numbers(text: bytes) -> None:
    """Check that a text can be parsed into typed fields in time that is linear in its length.

    Args:
        text: JSON that is not parsed yet.

    Raises:
        JsonInvalid: It has more than `EXTREME_NUMBERS_MAX` numbers such as 1e308.
    """
    if len(text) <= _FEW_BYTES:
        return
    if sum(len(pattern.findall(text)) for pattern in _EXPONENTS) <= EXTREME_NUMBERS_MAX:
        return
    count = len(_EXTREME_NUMBER.findall(text))
    if count > EXTREME_NUMBERS_MAX:
        raise JsonInvalid(
            f"expected at most {EXTREME_NUMBERS_MAX} numbers with an exponent of 200 or more, "
            f"found {count}"
        )


def _float(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    raise ValueError(f"number out of range: {text[:40]}")


_decode: Final = msgspec.json.Decoder(float_hook=_float).decode


def _brackets(text: str | bytes) -> int:
    """Return an upper bound of the lists and objects; brackets in strings count as well."""
    if isinstance(text, str):
        return text.count("[") + text.count("{")
    return text.count(b"[") + text.count(b"{")


def _check_containers(text: str | bytes) -> None:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    containers = _brackets(_STRINGS.sub("", text))
    if containers > CONTAINERS_MAX:
        raise JsonInvalid(
            f"expected at most {CONTAINERS_MAX} lists and objects, found {containers}"
        )


def _is_deeper(value: object, levels: int) -> bool:
    level = [value] if isinstance(value, list | dict) else []
    while level and levels >= 0:
        levels -= 1
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, list | dict)
        ]
    return levels < 0


def _too_deep() -> TooDeep:
    return TooDeep(f"expected at most {NESTING_MAX} levels of lists and objects, found more")


def within_levels(text: Json) -> Json:
    """Return a text if it has at most `NESTING_MAX` levels of lists and objects.

    Raises:
        TooDeep: It has more.
    """
    if text.count("[") + text.count("{") > NESTING_MAX and _levels(text) > NESTING_MAX:
        raise _too_deep()
    return text


def _levels(text: Json) -> int:
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
