"""Deliveries that no provider describes: their type and subject are found, and nothing else read.

They are recorded, skipped as `no_normalizer`, and start workflows by rules.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.processors.providers.envelope import Routing
from headwater.processors.providers.provider import Provider
from headwater.processors.signature_schemes import SignatureScheme
from headwater.processors.texts import fault_of

#: The type of a delivery whose type is not where it should be.
UNKNOWN: Final = "unknown"


def undescribed(
    name: str, scheme: SignatureScheme, *, type_at: str | None, subject_at: str | None
) -> Provider:
    """A provider that knows where type and subject are, and no types.

    Shape:  a place is a JSON pointer into the body (it begins with /) or the name of a header, in
            lower case. What is not there, or is no text or number, is unknown: no delivery is
            refused for that.
    """

    def read(body: bytes, headers: Mapping[str, str]) -> Routing:
        document = _document(body) if _is_pointer(type_at) or _is_pointer(subject_at) else None
        type_ = _text_at(type_at, document, headers)
        return Routing(type_ or UNKNOWN, _text_at(subject_at, document, headers))

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


def _document(body: bytes) -> Any:  # noqa: ANN401 (JSON)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text_at(place: str | None, document: Any, headers: Mapping[str, str]) -> str:  # noqa: ANN401 (JSON)
    if place is None:
        return ""
    found = _pointed(place, document) if _is_pointer(place) else headers.get(place, "")
    if isinstance(found, bool) or not isinstance(found, str | int):
        return ""
    text = str(found)
    return "" if fault_of("", text) else text


def _pointed(pointer: str, document: Any) -> Any:  # noqa: ANN401 (JSON)
    """What a JSON pointer points at (RFC 6901); None if nothing is there."""
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document
