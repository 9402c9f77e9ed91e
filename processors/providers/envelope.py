"""What the gateway has to know of a verified body: its type, and the person it is about.

The envelope only decides where a delivery is routed. Names and ids become Kafka keys and Postgres
columns, so code that parses an envelope checks them against the limits of those (`input_texts`).
"""

from hashlib import sha256
from struct import Struct
from typing import Final

import msgspec

#: Hexadecimal characters of an event id: 128 bits, beyond any accidental collision.
_EVENT_ID_CHARS: Final = 32
_length: Final = Struct(">I").pack
_SECOND_MS: Final = 1_000
_RETRIED_FOR_MS: Final = 24 * 60 * 60 * 1000

#: Type of a delivery without a type where its source says.
UNKNOWN: Final = "unknown"
#: Type of a signed delivery with an unreadable body. It is kept and becomes a dead letter.
UNREADABLE: Final = "unreadable"
#: Codes of bodies that their provider cannot route: not what the producer documents, without a
#: type, or not even text.
MALFORMED: Final = "malformed_payload"
MISSING_TYPE: Final = "missing_type"
UNDECODABLE: Final = "undecodable"


class Routing(msgspec.Struct, frozen=True):
    """Routing of a delivery.

    Attributes:
        subject: The provider's id of what the delivery is about; empty for nothing.
        reference: Headwater's id that the provider echoes, or None.
        updated_at_ms: When the provider's data changed, in Unix milliseconds; 0 if not provided.
        ordered_ms: When the provider first had the delivery, in Unix milliseconds; 0 if not
            provided.
    """

    type: str
    subject: str
    reference: str | None = None
    updated_at_ms: int = 0
    ordered_ms: int = 0


class Malformed(msgspec.Struct, frozen=True):
    """A body that cannot be routed; its delivery becomes a dead letter with this code."""

    code: str
    detail: str


def sent_at_ms(signed_ms: int, ordered_ms: int) -> int:
    """Return when a delivery was first sent, which orders it among others, in Unix milliseconds.

    This is the provider's time if it is at most a day before the signature, and before the end of
    its second: it is not signed, no sender retries for longer, and signatures have whole seconds.
    Otherwise it is the signed time.
    """
    end_ms = signed_ms - signed_ms % _SECOND_MS + _SECOND_MS
    is_plausible = signed_ms - _RETRIED_FOR_MS <= ordered_ms < end_ms
    return ordered_ms if is_plausible else signed_ms


def event_id(source: str, type_: str, subject: str, body: bytes, occurrence: str = "") -> str:
    """Return the id of a delivery, equal for two deliveries exactly if all parts are equal.

    The id has 32 hexadecimal characters. Every part is hashed after its length, so that no
    character can move from one part to another. An empty `occurrence` is no part.

    Source: deduplication by (event type, subject, SHA-256 of the body).
    """
    a, b, c, d = source.encode(), type_.encode(), subject.encode(), sha256(body).digest()
    parts = [_length(len(a)), a, _length(len(b)), b, _length(len(c)), c, _length(len(d)), d]
    if occurrence:
        e = occurrence.encode()
        parts += [_length(len(e)), e]
    return sha256(b"".join(parts)).hexdigest()[:_EVENT_ID_CHARS]


def occurrence_of(signed_ms: int, ordered_ms: int) -> str:
    """Return what distinguishes an event from a later one with the same bytes.

    This is the provider's time, which all attempts to deliver an event share; without one, the time
    of the signature, which they do not share.
    """
    return f"ordered {ordered_ms}" if ordered_ms else f"signed {signed_ms}"


def user_of(reference: str | None, user_prefix: str) -> str | None:
    """Return the user of a reference: itself, if it has the prefix of user ids; else None.

    With an empty prefix, every reference that is not empty is a user's id.
    """
    return reference if reference and reference.startswith(user_prefix) else None
