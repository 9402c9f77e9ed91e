"""Records of the log as a projector reads them, and those that it cannot."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from headwater.schemas.errors import HeadwaterError
from headwater.schemas.newer import Logged

__all__ = ["UNREADABLE", "LogRecord", "SqlRow", "base64_text", "refusal"]

#: A row whose fields are named as its statement names them. All of a table are of one kind.
SqlRow: TypeAlias = dict[str, Any] | msgspec.Struct

#: What reading a record may raise: not our record, or a moment that no calendar has.
UNREADABLE: Final = (HeadwaterError, ValueError, OverflowError, OSError, msgspec.MsgspecError)


class LogRecord(Logged, Protocol):
    """A record of the log, as aiokafka gives it."""

    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...  # noqa: D102


def refusal(record: LogRecord, error: str) -> SqlRow:
    """The row of `projection_errors` of a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "error": error,
        "value": base64_text(record.value),
    }


def base64_text(data: bytes | None) -> str | None:
    """Bytes as text that JSON can hold."""
    return None if data is None else b64encode(data).decode()
