"""Deliveries of sources without a provider: only their type and subject are read.

They are recorded, skipped as `no_normalizer`, and can start workflows by rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.input_texts import MAX_ID_CHARS, text_problem
from headwater.processors.providers.envelope import UNKNOWN, Routing
from headwater.processors.providers.provider import Provider
from headwater.processors.signature_schemes import SignatureScheme
from headwater.schemas.errors import PARSE_ERRORS

#: Bytes of an encoded text: every character may be two escapes.
_TEXT_BYTES_MAX: Final = 12 * MAX_ID_CHARS + 2
#: Digits of a list index in a pointer: up to the thousandth item.
_INDEX_DIGITS: Final = 3
_NOTHING: Final = msgspec.Raw(b"")

#: Takes a body and its headers; returns a text from them.
_Reader: TypeAlias = Callable[[bytes, Mapping[str, str]], str]
_Decoder: TypeAlias = msgspec.json.Decoder[Any]


def generic_provider(
    name: str, scheme: SignatureScheme, *, type_at: str | None, subject_at: str | None
) -> Provider:
    """Return a provider that reads type and subject, and has no types.

    A location is a JSON pointer into the body (it begins with /) or the name of a header, in lower
    case. A missing value, or one that is not text or a number, is unknown. Only a body that is not
    JSON is malformed, if its type is in it.

    Args:
        name: Name of the source.
        scheme: Its signature scheme.
        type_at: Location of the type.
        subject_at: Location of the subject.
    """
    type_of, subject_of = _reader(type_at), _reader(subject_at)

    def read(body: bytes, headers: Mapping[str, str]) -> Routing:
        return Routing(type_of(body, headers) or UNKNOWN, subject_of(body, headers))

    locations = (type_at, subject_at)
    return Provider(
        name=name,
        scheme=scheme,
        read=read,
        types={},
        headers=tuple(header for header in locations if header and not _is_pointer(header)),
        type_header=None if _is_pointer(type_at) else type_at,
        type_in_body=_is_pointer(type_at),
    )


def _is_pointer(location: str | None) -> bool:
    return location is not None and location.startswith("/")


def _reader(location: str | None) -> _Reader:
    """Return a function that reads the text at a location, or "" if it cannot be an id."""
    if location is None:
        return lambda _body, _headers: ""
    if not _is_pointer(location):
        return lambda _body, headers: _usable(headers.get(location, ""))
    steps = [_step(part.replace("~1", "/").replace("~0", "~")) for part in location[1:].split("/")]
    return lambda body, _headers: _text_at(steps, body)


def _step(name: str) -> tuple[_Decoder, ...]:
    """Return decoders of a value that skip everything except one of its members.

    Skipping is linear and builds no objects, so a large body does not block the event loop.
    """
    member = ("member", msgspec.Raw, _NOTHING)
    of_object = msgspec.defstruct("Member", [member], rename={"member": name})
    if not (name.isascii() and name.isdecimal() and len(name) <= _INDEX_DIGITS):
        return (msgspec.json.Decoder(of_object),)
    before = [(f"skipped{number}", msgspec.Raw, _NOTHING) for number in range(int(name))]
    of_list = msgspec.defstruct("Item", [*before, member], array_like=True)
    return msgspec.json.Decoder(of_object), msgspec.json.Decoder(of_list)


def _text_at(steps: Sequence[tuple[_Decoder, ...]], body: bytes) -> str:
    """Return the text or integer that a JSON pointer (RFC 6901) refers to, or ""."""
    current: bytes | msgspec.Raw = body
    for decoders in steps:
        current = _member(decoders, current)
        if not current:
            return ""
    if len(bytes(current)) > _TEXT_BYTES_MAX:
        return ""
    try:
        value = msgspec.json.decode(current, type=str | int | bool)
    except PARSE_ERRORS:
        return ""
    return "" if isinstance(value, bool) else _usable(str(value))


def _member(decoders: tuple[_Decoder, ...], value: bytes | msgspec.Raw) -> msgspec.Raw:
    """Return a member as it is encoded; empty if it does not exist, or the value is not JSON."""
    for decoder in decoders:
        try:
            member: msgspec.Raw = decoder.decode(value).member
        except PARSE_ERRORS:
            continue
        return member
    return _NOTHING


def _usable(text: str) -> str:
    return "" if text_problem("", text) else text
