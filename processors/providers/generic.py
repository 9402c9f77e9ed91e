"""Deliveries that no provider describes: their type and subject are found, and nothing else read.

They are recorded, skipped as `no_normalizer`, and start workflows by rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.providers.envelope import Routing
from headwater.processors.providers.provider import Provider
from headwater.processors.signature_schemes import SignatureScheme
from headwater.processors.texts import MAX_ID_CHARS, text_problem
from headwater.schemas.errors import PARSE_ERRORS

#: The type of a delivery whose type is not where it should be.
UNKNOWN: Final = "unknown"
#: Bytes of a text as it is written: each of its characters may be two escapes.
_TEXT_BYTES_MAX: Final = 12 * MAX_ID_CHARS + 2
#: Digits of an index in a pointer: up to the thousandth item of a list.
_INDEX_DIGITS: Final = 3
_NOTHING: Final = msgspec.Raw(b"")

#: A body and its headers -> a text of it.
_Reader: TypeAlias = Callable[[bytes, Mapping[str, str]], str]
_Decoder: TypeAlias = msgspec.json.Decoder[Any]


def generic_provider(
    name: str, scheme: SignatureScheme, *, type_at: str | None, subject_at: str | None
) -> Provider:
    """A provider that knows where type and subject are, and no types.

    Shape:  a place is a JSON pointer into the body (it begins with /) or the name of a header, in
            lower case. What is not there, or is no text or number, is unknown: no delivery is
            refused for that.
    """
    type_of, subject_of = _reader(type_at), _reader(subject_at)

    def read(body: bytes, headers: Mapping[str, str]) -> Routing:
        return Routing(type_of(body, headers) or UNKNOWN, subject_of(body, headers))

    places = (type_at, subject_at)
    return Provider(
        name=name,
        scheme=scheme,
        read=read,
        types={},
        headers=tuple(place for place in places if place and not _is_pointer(place)),
        type_header=None if _is_pointer(type_at) else type_at,
    )


def _is_pointer(place: str | None) -> bool:
    return place is not None and place.startswith("/")


def _reader(place: str | None) -> _Reader:
    """Return what reads the text at a place; "" where there is none that an id can be."""
    if place is None:
        return lambda _body, _headers: ""
    if not _is_pointer(place):
        return lambda _body, headers: _usable(headers.get(place, ""))
    steps = [_step(part.replace("~1", "/").replace("~0", "~")) for part in place[1:].split("/")]
    return lambda body, _headers: _text_at(steps, body)


def _step(name: str) -> tuple[_Decoder, ...]:
    """Return decoders of a value that skip everything but one of its members.

    Skipping is linear and builds no objects, so a large body does not block the event loop.
    """
    member = ("found", msgspec.Raw, _NOTHING)
    of_object = msgspec.defstruct("Member", [member], rename={"found": name})
    if not (name.isascii() and name.isdecimal() and len(name) <= _INDEX_DIGITS):
        return (msgspec.json.Decoder(of_object),)
    before = [(f"skipped{number}", msgspec.Raw, _NOTHING) for number in range(int(name))]
    of_list = msgspec.defstruct("Item", [*before, member], array_like=True)
    return msgspec.json.Decoder(of_object), msgspec.json.Decoder(of_list)


def _text_at(steps: Sequence[tuple[_Decoder, ...]], body: bytes) -> str:
    """Return the text or whole number that a JSON pointer (RFC 6901) points at, or ""."""
    found: bytes | msgspec.Raw = body
    for decoders in steps:
        found = _member(decoders, found)
        if not found:
            return ""
    if len(bytes(found)) > _TEXT_BYTES_MAX:
        return ""
    try:
        value = msgspec.json.decode(found, type=str | int | bool)
    except PARSE_ERRORS:
        return ""
    return "" if isinstance(value, bool) else _usable(str(value))


def _member(decoders: tuple[_Decoder, ...], value: bytes | msgspec.Raw) -> msgspec.Raw:
    """Return a member as it was written; nothing if there is none, or the value is no JSON."""
    for decoder in decoders:
        try:
            found: msgspec.Raw = decoder.decode(value).found
        except PARSE_ERRORS:
            continue
        return found
    return _NOTHING


def _usable(text: str) -> str:
    return "" if text_problem("", text) else text
