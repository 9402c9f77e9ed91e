"""Texts from producers and clients: dates, ids and JSON, parsed and checked within limits.

All of them are checked on receipt, so that later code need not check again.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import msgspec

from headwater.schemas.history import NESTING_MAX, Json

# datetime.fromisoformat alone also takes dates without a time, week dates and bare digits.
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def read_date(text: str) -> datetime | None:
    """Parse a producer's date, with its own offset; None if it is not a date.

    A date without an offset is UTC; anything else that RFC 3339 does not allow is not a date.
    Neither is a leap second, which neither Python's calendar nor Postgres can represent.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        return None
    offset = match[1]
    try:
        if offset is None:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        return datetime.fromisoformat(text.upper() if offset == "z" else text)
    except ValueError:  # For example a thirteenth month or a leap second.
        return None


def read_moment(text: str) -> datetime | None:
    """Parse a client's date; None if it is not a date or has no offset, and so no time zone."""
    match = _RFC_3339.fullmatch(text)
    return None if match is None or match[1] is None else read_date(text)


#: The last millisecond of the year 9999, with which the calendars of Python and RFC 3339 end.
LATEST_MS: Final = 253_402_300_799_999


def rfc3339(ms: int) -> str:
    """Format Unix milliseconds, at most `LATEST_MS`, as a timestamp in UTC."""
    return (_EPOCH + ms * _MILLISECOND).isoformat(timespec="milliseconds")[:-6] + "Z"


def time_problem(field: str, ms: int) -> str | None:
    """Return why Unix milliseconds cannot be formatted, or are before 1970; None if valid."""
    return None if 0 <= ms <= LATEST_MS else f"{field}: expected 0 to {LATEST_MS}, found {ms}"


def unix_ms(moment: datetime) -> int:
    """Return the Unix milliseconds of a timezone-aware datetime, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


# -- ids and names

#: Ids and types of all known producers stay below 64 characters; Kafka keys and Postgres index
#: entries allow far more than 256.
MAX_ID_CHARS: Final = 256

#: Control characters (C0, DEL, C1) and halves of surrogate pairs, which no UTF-8 can hold.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def storable(text: str) -> str:
    """Return a text that people wrote, with U+FFFD for characters that a column cannot hold."""
    return text if text.isprintable() else _UNFIT.sub("\ufffd", text)


def text_problem(field: str, text: str | None, limit: int = MAX_ID_CHARS) -> str | None:
    """Return what is wrong with a text, with the field's name; None if it is valid or missing.

    Postgres text cannot hold NUL, and a control character in an id is a mistake or an attack on a
    terminal that prints it.
    """
    # isprintable is fast and accepts normal ids. It also rejects some letters, such as the no-break
    # space, so rejected texts are checked again.
    if text is None or (len(text) <= limit and text.isprintable()):
        return None
    if len(text) > limit:
        return f"{field}: expected at most {limit} characters, found {len(text)}"
    unfit = _UNFIT.search(text)
    if unfit is None:
        return None
    return (
        f"{field}: expected no control characters, "
        f"found U+{ord(unfit[0]):04X} at character {unfit.start() + 1}"
    )


# -- JSON

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

    msgspec needs 10 µs for a number such as 1e308, so a text of 10 MiB of them would take 17
    seconds. Python parses a number in 0.1 µs, so numbers are delegated to Python (ADR 0057).

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


#: Digits of integers that may need more than 64 bits.
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")
_INTEGERS: Final = range(-(2**63), 2**64)


def wide_integer_problem(text: Json, root: str) -> str | None:
    """Return the path of an integer that needs more than 64 bits, or None.

    Args:
        text: A JSON text.
        root: Name of its value, with which the path begins.
    """
    if _LONG_NUMBER.search(text) is None:
        return None
    try:
        pending: list[tuple[str, Any]] = [(root, read_json(text))]
    except JsonInvalid as error:
        # JSON allows numbers of any length; this parser has a limit.
        return f"{root}: expected JSON that can be read, found: {error}"
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{path}.{key}", value[key]) for key in reversed(value)]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in reversed([*enumerate(value)])]
        elif isinstance(value, int) and value not in _INTEGERS:
            return f"{path}: expected an integer of at most 64 bits, found {value!s:.80}"
    return None


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

    Parsers stop at different depths, which change even between releases of Python. Whether a text
    is accepted must not depend on that, so nesting is checked here.

    Raises:
        TooDeep: It has more.
    """
    if text.count("[") + text.count("{") > NESTING_MAX and _levels(text) > NESTING_MAX:
        raise _too_deep()
    return text


def _levels(text: Json) -> int:
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
