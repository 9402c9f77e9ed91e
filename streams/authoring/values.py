"""Authors' values as JSON text.

A workflow sees of a result what was recorded of it, also the first time: so it behaves the same on
replay. Hence nothing is quietly turned into something else. The standard library's encoder is used
because it alone refuses NaN and keeps large integers.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headwater.processors.replay.errors import UnserialisableError
from headwater.processors.runs.limits import VALUE_BYTES_MAX, value_problem
from headwater.schemas.history import NESTING_MAX, Json
from headwater.streams.authoring.pydantic_models import dumped

_ENCODE: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
#: The end of a key that may have been a number, a bool or None before the encoder wrote it as
#: text, by which two keys of a dict can become one. To look at each key of every value would cost
#: as much as to encode it; to look for these in the text costs a tenth.
_ODD_KEY: Final = re.compile(
    r'":(?<=[0-9le]":)(?:(?<=[0-9]":)|(?<="null":)|(?<="true":)|(?<="false":))'
).search


def encode(
    value: Any,  # noqa: ANN401, any JSON value
    what: str,
    most: int = VALUE_BYTES_MAX,
    setting: str = "",
) -> Json:
    """Writes a value as JSON text.

    Shape:  (value, what it is for the message, how many bytes it may have, and the setting that
            says so) -> JSON text.
    Errors: UnserialisableError, for what is not JSON or larger.
    """
    if value is None:
        return "null"
    try:
        text = _ENCODE(value)
        # A lone surrogate is a str that no encoding of Unicode can hold.
        text.encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as why:
        raise UnserialisableError(_refusal(value, what, str(why))) from why
    if text.count("[") + text.count("{") > NESTING_MAX and _is_deeper(value, NESTING_MAX):
        raise UnserialisableError(
            f"expected {what} to have at most {NESTING_MAX} levels of lists and dicts, found more: "
            "make it flatter"
        )
    if _ODD_KEY(text) and not _keys_are_text(value):
        raise UnserialisableError(_refusal(value, what, "a key that is not text"))
    fault = value_problem(what, text, most, setting)
    if fault:
        raise UnserialisableError(fault)
    return text


def encode_params(
    params: Any,  # noqa: ANN401, any value of a declared type
    workflow: str,
    most: int = VALUE_BYTES_MAX,
) -> Json:
    """Return the params of a workflow as JSON text.

    Raises:
        UnserialisableError: As `encode_object`.
    """
    return encode_object(params, f"the params of {workflow}", most, "max_params_bytes")


def encode_object(
    value: Any,  # noqa: ANN401, any value of a declared type
    what: str,
    most: int = VALUE_BYTES_MAX,
    setting: str = "",
) -> Json:
    """Return a value as JSON text, as the type that a reader declares for it reads it.

    Besides JSON these are dates and times, UUID, Decimal, bytes, members of an Enum, sets, objects
    of dataclasses, attrs, msgspec and pydantic, and dicts whose keys are of one such type.

    Args:
        value: The value.
        what: Its name in the message of an error.
        most: The largest size in bytes.
        setting: The setting that this limit is, for the message.

    Raises:
        UnserialisableError: The value is none of these, or is too large.
    """
    try:
        return encode(value, what, most, setting)
    except UnserialisableError as error:
        refusal = error
    try:
        plain = to_plain(value)
    except (TypeError, ValueError, RecursionError) as why:
        place = next(_untyped_parts(value, "$"), None)
        if place is None:
            raise refusal from why
        raise UnserialisableError(
            f"expected {what} to be values of types that JSON has, or that "
            f"are written as text, found {place}; convert it first"
        ) from why
    return encode(plain, what, most, setting)


def _untyped_parts(value: object, path: str) -> Iterator[str]:
    """Yield the parts of a value that cannot be written, with their paths."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _untyped_parts(each, f"{path}.{_shown(key)}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _untyped_parts(each, f"{path}[{index}]")
    else:
        try:
            to_plain(value)
        except (TypeError, ValueError, RecursionError) as why:
            yield f"{type(value).__name__} at {path} ({why})"


def to_plain(value: Any) -> Any:  # noqa: ANN401, any value of a declared type
    """Return a value as JSON values.

    Raises:
        TypeError: A part of it cannot be written.
        ValueError: Two keys of a dict would become one.
        RecursionError: It is nested too deeply, or contains itself.
    """
    if _has_mixed_keys(value):
        raise ValueError("keys of several types in one dict")
    return msgspec.to_builtins(value, str_keys=True, enc_hook=dumped)


def _has_mixed_keys(value: object) -> bool:
    if isinstance(value, dict):
        kinds = {type(key) for key in value}
        return len(kinds) > 1 or float in kinds or any(map(_has_mixed_keys, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_mixed_keys, value))


def _is_deeper(value: object, levels: int) -> bool:
    at = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(levels):
        within = (each.values() if isinstance(each, dict) else each for each in at)
        at = [each for some in within for each in some if isinstance(each, dict | list | tuple)]
    return bool(at)


def _keys_are_text(value: object) -> bool:
    left = [value]
    while left:
        at = left.pop()
        if isinstance(at, dict):
            if not all(isinstance(key, str) for key in at):
                return False
            left.extend(at.values())
        elif isinstance(at, list | tuple):
            left.extend(at)
    return True


def _refusal(value: object, what: str, why: str) -> str:
    """The message about a value that is refused: what is wrong with it, and where."""
    try:
        found = next(_faults(value, "$", ()), f"{type(value).__name__}: {why}")
    except RecursionError:
        found = f"{type(value).__name__}, nested too deeply: make it flatter"
    return (
        f"expected {what} to be JSON (None, bool, int, float, str, list, dict with str keys), "
        f"found {found}"
    )


def _faults(value: object, path: str, above: tuple[int, ...]) -> Iterator[str]:
    """What is not JSON in a value, each with its place and advice."""
    if isinstance(value, dict | list | tuple):
        if id(value) in above:
            yield f"a {type(value).__name__} at {path} that contains itself; leave that out"
        else:
            yield from _faults_within(value, path, (*above, id(value)))
    elif isinstance(value, str):
        if sound(value) != value:
            yield f"text that UTF-8 cannot hold at {path}, with a lone surrogate: {value!r:.80}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{value} at {path}: JSON has no such number; use None or text for it"
    elif value is not None and not isinstance(value, int):
        yield f"{type(value).__name__} at {path}; convert it, for example to text, first"


def _faults_within(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: str, above: tuple[int, ...]
) -> Iterator[str]:
    if not isinstance(value, dict):
        for index, each in enumerate(value):
            yield from _faults(each, f"{path}[{index}]", above)
        return
    for key, each in value.items():
        if isinstance(key, str):
            yield from _faults(key, f"a key of {path}", above)
        else:
            kind = type(key).__name__
            yield f"the key {_shown(key)} of type {kind} at {path}; make it text first"
        yield from _faults(each, f"{path}.{_shown(key)}", above)


def _shown(key: object) -> str:
    try:
        return key[:80] if isinstance(key, str) else f"{key!r:.80}"
    except Exception:  # noqa: BLE001, an author's __repr__ may do anything
        return f"({type(key).__name__})"


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
