"""What the gateway needs to know of a verified body: what it is, and whom it is about.

Rule: the envelope decides where a delivery goes and nothing else. Names and ids become Kafka keys
and Postgres columns, so whoever reads an envelope holds them to what those can hold (`texts`).
"""

from hashlib import sha256
from struct import Struct
from typing import Final

import msgspec

#: Hexadecimal characters of an event id: 128 bits, beyond any accidental collision.
_EVENT_ID_CHARS: Final = 32
_length: Final = Struct(">I").pack
_RETRIED_FOR_MS: Final = 24 * 60 * 60 * 1000

#: Type of a signed delivery whose body could not be read. It is kept and becomes a dead letter.
UNREADABLE: Final = "unreadable"
#: Code of a body that its provider cannot read.
MALFORMED: Final = "malformed_payload"


class Routing(msgspec.Struct, frozen=True):
    """Where a delivery goes.

    Shape:  subject is the provider's id of whatever the delivery is about, empty for nothing;
            reference is the id of ours that the provider echoes, or None.
    Units:  updated_at_ms in Unix milliseconds; 0 where the provider gives none. So is ordered_ms,
            when the provider says that it first had the delivery.
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
    """When a delivery was sent first: what orders it among others.

    Shape:  what the provider says, if that is at most a day before the signature and not after it:
            nobody has signed it, and no sender retries for longer. Else the signed time.
    """
    return ordered_ms if 0 <= signed_ms - ordered_ms <= _RETRIED_FOR_MS else signed_ms


def event_id(source: str, type_: str, subject: str, body: bytes) -> str:
    """The id of a delivery, equal for two deliveries exactly when all four are equal.

    Shape:  32 hexadecimal characters. Every part is hashed with its length in front, so that no
            part can borrow characters from its neighbour.
    Source: deduplication by (event type, subject, SHA-256 of the body).
    """
    a, b, c, d = source.encode(), type_.encode(), subject.encode(), sha256(body).digest()
    named = (_length(len(a)), a, _length(len(b)), b, _length(len(c)), c, _length(len(d)), d)
    return sha256(b"".join(named)).hexdigest()[:_EVENT_ID_CHARS]


def user_of(reference: str | None, user_prefix: str) -> str | None:
    """The user that a reference names: itself, if it starts as our user ids do; else None."""
    return reference if reference and reference.startswith(user_prefix) else None
