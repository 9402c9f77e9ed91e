"""Opaque cursors: a position as base64 of JSON, validated like any external input."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from headwater.projections.errors import InvalidCursor, RecordRefused
from headwater.schemas.errors import PARSE_ERRORS

T = TypeVar("T")


def pack(position: object) -> str:
    """Encode a position as a cursor."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def unpack(cursor: str, kind: type[T]) -> T:
    """Decode a cursor.

    Raises:
        InvalidCursor: The cursor cannot be decoded.
    """
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        return msgspec.json.decode(urlsafe_b64decode(padded), type=kind)
    except PARSE_ERRORS as error:  # base64's errors are ValueErrors, too
        raise InvalidCursor(
            f"expected a cursor from an earlier page, found {cursor[:40]!r}; start without one"
        ) from error


@contextmanager
def valid_cursor() -> Iterator[None]:
    """Translate Postgres's error about a position out of range, which no page ends at.

    Raises:
        InvalidCursor: The position is out of range.
    """
    try:
        yield
    except RecordRefused as error:
        raise InvalidCursor(
            "expected a cursor from an earlier page, found one out of range; start without one"
        ) from error
