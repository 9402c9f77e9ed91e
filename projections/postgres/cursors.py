"""Opaque cursors: a position as base64 of JSON, checked as closely as anything from outside."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from headwater.projections.errors import InvalidCursor, RecordRefused
from headwater.schemas.errors import PARSE_ERRORS

__all__ = ["pack", "unpack", "valid_cursor"]

T = TypeVar("T")


def pack(position: object) -> str:
    """Makes a cursor of a position."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def unpack(cursor: str, kind: type[T]) -> T:
    """Reads a cursor.

    Errors: InvalidCursor.
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
    """Translates what Postgres says of a place that it cannot hold, which no page has ended at.

    Errors: InvalidCursor.
    """
    try:
        yield
    except RecordRefused as error:
        raise InvalidCursor(
            "expected a cursor from an earlier page, found one out of range; start without one"
        ) from error
