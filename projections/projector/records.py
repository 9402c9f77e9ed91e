"""Records of the log as a projector reads them, and rows for unreadable ones."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from headwater.schemas.errors import HeadwaterError
from headwater.schemas.newer import Logged

__all__ = ["UNREADABLE", "LogRecord", "SqlRow", "base64_text", "refusal"]

#: A row with the field names of its statement. All rows of a table have the same type.
SqlRow: TypeAlias = dict[str, Any] | msgspec.Struct

#: Exceptions when a record cannot be decoded, or has a time out of range.
UNREADABLE: Final = (HeadwaterError, ValueError, OverflowError, OSError, msgspec.MsgspecError)


class LogRecord(Logged, Protocol):
    """A record of the log, as returned by aiokafka."""

    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...  # noqa: D102


def refusal(record: LogRecord, error: str) -> SqlRow:
    """Return the row of `projection_errors` for a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "error": error,
        "value": base64_text(record.value),
    }


def base64_text(data: bytes | None) -> str | None:
    """Return bytes as text for JSON."""
    return None if data is None else b64encode(data).decode()
