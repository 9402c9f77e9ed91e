"""Encode authors' values as JSON text.

A workflow always sees a result as it was recorded, also on the first execution, so that it behaves
the same on replay. Hence no value is converted silently. The standard library's encoder is used
because it alone refuses NaN and keeps large integers.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headwater.processors.code.errors import UnserialisableError
from headwater.processors.runs.limits import VALUE_BYTES_MAX, value_problem
from headwater.schemas.history import NESTING_MAX, Json
from headwater.streams.authoring.pydantic_models import model_to_plain

_ENCODE: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
_SCAN: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # typeshed omits it
#: Matches the end of a key that may have been a number, a bool or None before the encoder wrote it
#: as text, by which two keys of a dict can become one. Checking every key of every value would cost
#: as much as encoding it; this search in the text costs a tenth.
_ODD_KEY: Final = re.compile(
    r'":(?<=[0-9le]":)(?:(?<=[0-9]":)|(?<="null":)|(?<="true":)|(?<="false":))'
).search


def encode(
    value: Any,  # noqa: ANN401, any JSON value
    what: str,
    most: int = VALUE_BYTES_MAX,
    setting: str = "",
) -> Json:
    """Encode a value as JSON text.

    Args:
        value: The value.
        what: Its name in error messages.
        most: Largest size in bytes.
        setting: Name of the setting of this limit, for error messages.

    Raises:
        UnserialisableError: The value is not JSON, or is too large.
    """
    if value is None:
        return "null"
    try:
        text = _ENCODE(value)
        # UTF-8 cannot encode a lone surrogate.
        text.encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise UnserialisableError(_refusal(value, what, str(error))) from error
    if text.count("[") + text.count("{") > NESTING_MAX and _is_deeper(value, NESTING_MAX):
        raise UnserialisableError(
            f"expected {what} to have at most {NESTING_MAX} levels of lists and dicts, found more: "
            "make it flatter"
        )
    if _ODD_KEY(text) and not _keys_are_text(value):
        raise UnserialisableError(_refusal(value, what, "a key that is not text"))
    problem = value_problem(what, text, most, setting)
    if problem:
        raise UnserialisableError(problem)
    return text


def encode_params(
    params: Any,  # noqa: ANN401, any value of a declared type
    workflow: str,
    most: int = VALUE_BYTES_MAX,
) -> Json:
    """Encode the params of a workflow as JSON text.

    Raises:
        UnserialisableError: As for `encode_object`.
    """
    return encode_object(params, f"the params of {workflow}", most, "max_params_bytes")


def encode_object(
    value: Any,  # noqa: ANN401, any value of a declared type
    what: str,
    most: int = VALUE_BYTES_MAX,
    setting: str = "",
) -> Json:
    """Encode a value as JSON text that its declared type can be read from.

    Besides JSON, it accepts dates and times, UUID, Decimal, bytes, members of an Enum, sets,
    objects of dataclasses, attrs, msgspec and pydantic, and dicts with keys of one such type.

    Args:
        value: The value.
        what: Its name in error messages.
        most: Largest size in bytes.
        setting: Name of the setting of this limit, for error messages.

    Raises:
        UnserialisableError: The value is none of these, or is too large.
    """
    try:
        return encode(value, what, most, setting)
    except UnserialisableError as error:
        refusal = error
    try:
        plain = to_plain(value)
    except (TypeError, ValueError, RecursionError) as error:
        problem = next(_untyped_parts(value, "$"), None)
        if problem is None:
            raise refusal from error
        raise UnserialisableError(
            f"expected {what} to be values of types that JSON has, or that "
            f"are written as text, found {problem}; convert it first"
        ) from error
    return encode(plain, what, most, setting)


def _untyped_parts(value: object, path: str) -> Iterator[str]:
    """Yield descriptions of the parts of a value that cannot be encoded, with their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _untyped_parts(item, f"{path}.{_shown(key)}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _untyped_parts(item, f"{path}[{index}]")
    else:
        try:
            to_plain(value)
        except (TypeError, ValueError, RecursionError) as error:
            yield f"{type(value).__name__} at {path} ({error})"


def to_plain(value: Any) -> Any:  # noqa: ANN401, any value of a declared type
    """Convert a value to JSON values.

    Raises:
        TypeError: A part of it cannot be encoded.
        ValueError: Two keys of a dict would become equal.
        RecursionError: It is nested too deeply, or contains itself.
    """
    if _has_mixed_keys(value):
        raise ValueError("keys of several types in one dict")
    return msgspec.to_builtins(value, str_keys=True, enc_hook=model_to_plain)


def _has_mixed_keys(value: object) -> bool:
    if isinstance(value, dict):
        kinds = {type(key) for key in value}
        return len(kinds) > 1 or float in kinds or any(map(_has_mixed_keys, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_mixed_keys, value))


def _is_deeper(value: object, levels: int) -> bool:
    containers = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(levels):
        children = (item.values() if isinstance(item, dict) else item for item in containers)
        containers = [
            item for items in children for item in items if isinstance(item, dict | list | tuple)
        ]
    return bool(containers)


def _keys_are_text(value: object) -> bool:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            if not all(isinstance(key, str) for key in current):
                return False
            pending.extend(current.values())
        elif isinstance(current, list | tuple):
            pending.extend(current)
    return True


def _refusal(value: object, what: str, reason: str) -> str:
    """Return the error message for a value: what is wrong with it, and where."""
    try:
        problem = next(_problems(value, "$", ()), f"{type(value).__name__}: {reason}")
    except RecursionError:
        problem = f"{type(value).__name__}, nested too deeply: make it flatter"
    return (
        f"expected {what} to be JSON (None, bool, int, float, str, list, dict with str keys), "
        f"found {problem}"
    )


def _problems(value: object, path: str, above: tuple[int, ...]) -> Iterator[str]:
    """Yield the parts of a value that are not JSON, with their paths and advice."""
    if isinstance(value, dict | list | tuple):
        if id(value) in above:
            yield f"a {type(value).__name__} at {path} that contains itself; leave that out"
        else:
            yield from _problems_within(value, path, (*above, id(value)))
    elif isinstance(value, str):
        if utf8_safe(value) != value:
            yield f"text that UTF-8 cannot hold at {path}, with a lone surrogate: {value!r:.80}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{value} at {path}: JSON has no such number; use None or text for it"
    elif value is not None and not isinstance(value, int):
        yield f"{type(value).__name__} at {path}; convert it, for example to text, first"


def _problems_within(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: str, above: tuple[int, ...]
) -> Iterator[str]:
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            yield from _problems(item, f"{path}[{index}]", above)
        return
    for key, item in value.items():
        if isinstance(key, str):
            yield from _problems(key, f"a key of {path}", above)
        else:
            kind = type(key).__name__
            yield f"the key {_shown(key)} of type {kind} at {path}; convert it to text first"
        yield from _problems(item, f"{path}.{_shown(key)}", above)


def _shown(key: object) -> str:
    try:
        return key[:80] if isinstance(key, str) else f"{key!r:.80}"
    except Exception:  # noqa: BLE001, an author's __repr__ may do anything
        return f"({type(key).__name__})"


def utf8_safe(text: str) -> str:
    """Return text that UTF-8 can encode: lone surrogates, as in file names, become escapes."""
    if type(text) is str and text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def check_utf8(what: str, text: object) -> None:
    """Check that a value is text that UTF-8 can encode.

    Raises:
        TypeError: The value is not text.
        UnserialisableError: The text has a lone surrogate.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected {what} to be text, found {type(text).__name__}")
    if utf8_safe(text) != text:
        raise UnserialisableError(
            f"expected {what} to be text that UTF-8 can hold, found a lone surrogate: {text[:80]!r}"
        )


def decode(text: Json) -> Any:  # noqa: ANN401, any JSON value
    """Decode JSON text."""
    try:
        # What `json.loads` does after it has looked for white space.
        value, end = _SCAN(text, 0)
    except StopIteration:
        value, end = None, -1
    return value if end == len(text) else json.loads(text)
