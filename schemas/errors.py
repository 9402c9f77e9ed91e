"""The errors of the house. Each says what the shell should do with it: its `disposition`."""

from enum import StrEnum
from typing import ClassVar, Final

#: What parsers raise for bytes of another program that they cannot read. The errors of msgspec,
#: json, orjson and base64, and of bytes that are not UTF-8, are ValueErrors.
PARSE_ERRORS: Final = (ValueError, RecursionError, OverflowError, MemoryError)


class Disposition(StrEnum):
    """What the shell does with an error."""

    DEAD_LETTER = "dead_letter"
    REJECT = "reject"
    RETRY = "retry"
    WAIT = "wait"
    HALT = "halt"


class HeadwaterError(Exception):
    """Base of all errors of the house; not raised itself."""

    disposition: ClassVar[Disposition]
    code: ClassVar[str]

    def __init__(self, message: str) -> None:
        if type(self) is HeadwaterError:
            raise TypeError("raise one of its subclasses, not HeadwaterError itself")
        super().__init__(message)
        self.message = message


class UndecodableRecord(HeadwaterError):
    """Bytes that are not the record they should be."""

    disposition = Disposition.DEAD_LETTER
    code = "undecodable_record"


class UnknownSchema(HeadwaterError):
    """A schema id that the catalogue does not hold, and that no later release will bring."""

    disposition = Disposition.DEAD_LETTER
    code = "unknown_schema"


class NewerSchema(HeadwaterError):
    """What a later release wrote: nothing behind it may be read before it is."""

    disposition = Disposition.WAIT
    code = "newer_schema"


class NotYetReadable(HeadwaterError):
    """A record that a member of an older release could not read: it is not written yet."""

    disposition = Disposition.RETRY
    code = "not_yet_readable"


class MalformedPayload(HeadwaterError):
    """A body that is not what its producer documents."""

    disposition = Disposition.REJECT
    code = "malformed_payload"


class UnknownSource(HeadwaterError):
    """A delivery of a provider, or of a type of it, that this program does not have."""

    disposition = Disposition.DEAD_LETTER
    code = "unknown_source"


class BrokerUnavailable(HeadwaterError):
    """Kafka did not acknowledge in time."""

    disposition = Disposition.RETRY
    code = "broker_unavailable"


class Overloaded(HeadwaterError):
    """As much is under way as may be; nothing was begun."""

    disposition = Disposition.RETRY
    code = "overloaded"


class StoreUnavailable(HeadwaterError):
    """Postgres did not answer."""

    disposition = Disposition.RETRY
    code = "store_unavailable"


class Superseded(HeadwaterError):
    """Somebody else has claimed a partition since; what was asked for did not take effect."""

    disposition = Disposition.RETRY
    code = "superseded"


class PartUnavailable(HeadwaterError):
    """A part of the house could not be started; the message says what to do."""

    disposition = Disposition.HALT
    code = "part_unavailable"


class InvariantViolation(HeadwaterError):
    """A history that our own code cannot have written: a bug of ours."""

    disposition = Disposition.HALT
    code = "invariant_violation"
