"""Authors' values as JSON text.

A workflow sees of a result what was recorded of it, also the first time: so it behaves the same on
replay. Hence nothing is quietly turned into something else. The standard library's encoder is used
because it alone refuses NaN and keeps large integers.
"""

import json
from typing import Any, Final, NoReturn

from typing_extensions import override

from processors.replay.errors import UnserialisableError
from processors.runs.limits import value_fault
from schemas.history import Json

_ENCODE: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any, what: str) -> Json:  # noqa: ANN401, any JSON value
    """Writes a value as JSON text.

    Shape:  (value, what it is for the message) -> JSON text.
    Errors: UnserialisableError, for what is not JSON or larger than 1 MiB.
    """
    if value is None:
        return "null"
    try:
        text = _ENCODE(value)
        # A lone surrogate is a str that no encoding of Unicode can hold.
        text.encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as why:
        raise UnserialisableError(
            f"expected {what} to be JSON (None, bool, int, float, str, list, dict with str keys), "
            f"found {type(value).__name__}: {why}; convert it, for example to text, first"
        ) from why
    fault = value_fault(what, text)
    if fault:
        raise UnserialisableError(fault)
    return text


def sound(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates, as in names of files, become their numbers."""
    if type(text) is str and text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def check_sound(what: str, text: object) -> None:
    """Sees that something is text, and that UTF-8 can hold it.

    Errors: TypeError, UnserialisableError.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected {what} to be text, found {type(text).__name__}")
    if sound(text) != text:
        raise UnserialisableError(
            f"expected {what} to be text that UTF-8 can hold, found a lone surrogate: {text[:80]!r}"
        )


def decode(text: Json) -> Any:  # noqa: ANN401, any JSON value
    """Reads JSON text."""
    return json.loads(text)


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "the payload of a workflow is read-only, because the next replay would not see the change; "
        "copy it first"
    )


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _read_only
    __ior__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Copies may be changed, also those by `copy`.
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = _read_only
    remove = reverse = sort = _read_only
    __iadd__ = __imul__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:  # noqa: ANN401, any JSON value
    """The same JSON value, refusing changes."""
    if isinstance(value, dict):
        return ReadOnlyDict({key: frozen(each) for key, each in value.items()})
    if isinstance(value, list):
        return ReadOnlyList([frozen(each) for each in value])
    return value
