"""Headwater's errors. Every error states how the caller should handle it: its `disposition`."""

from enum import StrEnum
from typing import ClassVar, Final

#: Errors of parsers for bytes of other programs. The errors of msgspec, json, orjson and base64,
#: and of bytes that are not UTF-8, are ValueErrors.
PARSE_ERRORS: Final = (ValueError, RecursionError, OverflowError, MemoryError)


class Disposition(StrEnum):
    """How an error is handled."""

    DEAD_LETTER = "dead_letter"
    REJECT = "reject"
    RETRY = "retry"
    WAIT = "wait"
    HALT = "halt"


class HeadwaterError(Exception):
    """Base of all errors of Headwater; not raised itself."""

    disposition: ClassVar[Disposition]
    code: ClassVar[str]

    def __init__(self, message: str) -> None:
        if type(self) is HeadwaterError:
            raise TypeError("raise one of its subclasses, not HeadwaterError itself")
        super().__init__(message)
        self.message = message


class UndecodableRecord(HeadwaterError):
    """Bytes that are not the expected record."""

    disposition = Disposition.DEAD_LETTER
    code = "undecodable_record"


class UnknownSchema(HeadwaterError):
    """A schema id that is not in the catalog and cannot be that of a newer release."""

    disposition = Disposition.DEAD_LETTER
    code = "unknown_schema"


class RowTooLarge(HeadwaterError):
    """A delivery for which the record of a row has no room."""

    disposition = Disposition.DEAD_LETTER
    code = "row_too_large"


class NewerSchema(HeadwaterError):
    """A record of a newer release: no record after it may be read before it."""

    disposition = Disposition.WAIT
    code = "newer_schema"


class NotYetReadable(HeadwaterError):
    """A record that a member of an older release could not read: it is not written yet."""

    disposition = Disposition.RETRY
    code = "not_yet_readable"


class MalformedPayload(HeadwaterError):
    """A body that does not match its producer's documentation."""

    disposition = Disposition.REJECT
    code = "malformed_payload"


def excerpt(body: bytes) -> str:
    """Return the first bytes of a body, for an error message."""
    return f"{len(body)} bytes that start with {body[:24]!r}" if body else "an empty body"


class UnknownSource(HeadwaterError):
    """A delivery of a provider or type that this program does not have."""

    disposition = Disposition.DEAD_LETTER
    code = "unknown_source"


class BrokerUnavailable(HeadwaterError):
    """Kafka did not acknowledge in time."""

    disposition = Disposition.RETRY
    code = "broker_unavailable"


class Overloaded(HeadwaterError):
    """The limit of concurrent work is reached; nothing was started."""

    disposition = Disposition.RETRY
    code = "overloaded"


class StoreUnavailable(HeadwaterError):
    """Postgres did not answer."""

    disposition = Disposition.RETRY
    code = "store_unavailable"


class Superseded(HeadwaterError):
    """Another process has claimed the partition; the operation did not take effect."""

    disposition = Disposition.RETRY
    code = "superseded"


class ProcessUnavailable(HeadwaterError):
    """A process could not be started; the message states what to do."""

    disposition = Disposition.HALT
    code = "part_unavailable"


class InvariantViolation(HeadwaterError):
    """A history that Headwater cannot have written: a bug in Headwater."""

    disposition = Disposition.HALT
    code = "invariant_violation"
