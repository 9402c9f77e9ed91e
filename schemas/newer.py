"""Records of a newer release: a reader waits for them, and skips none.

A schema id slightly above all of the catalog can only come from a newer release. The content of
such a record is unknown here, so no later record of its partition may be read either: the reader
stops there, other partitions continue, and eventually a member of the newer release acquires the
partition.

Two kinds of records are no reason to wait. Other programs may write to some topics, with ids of
their own registry: a record with a key that does not have Headwater's format is decoded, which
fails as for any other undecodable record. And an operator may mark a record to be skipped.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.installed_tables import FINGERPRINTS, INSTALLED, SCHEMA_IDS
from headwater.schemas.topics import TOPICS

_MAGIC: Final = b"\x00"
#: More than the difference of concurrently running releases. Bytes that seem to name a schema
#: beyond it are not a Headwater record, and readers do not wait for them.
_AHEAD_MAX: Final = 1_000
_LATEST: Final = _MAGIC + max(IDS.values()).to_bytes(4, "big")
_BEYOND: Final = _MAGIC + (max(IDS.values()) + _AHEAD_MAX + 1).to_bytes(4, "big")
#: Ids of tables of installed packages are not ordered: an unknown one belongs to a newer version.
_FINGERPRINT: Final = _MAGIC + FINGERPRINTS.to_bytes(4, "big")
_KNOWN: Final = frozenset(_MAGIC + number.to_bytes(4, "big") for number in SCHEMA_IDS.values())
_INSTALLED: Final = frozenset(table.topic for table in INSTALLED)
_REMIND_MS: Final = 60_000
_KEYS: Final = {topic.name: topic.key_form for topic in TOPICS if topic.key_form is not None}


class Logged(Protocol):
    """A record as Kafka returns it."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102


R = TypeVar("R", bound=Logged)


class RecordPosition(NamedTuple):
    """Position of a record."""

    topic: str
    partition: int
    offset: int


_skipped: frozenset[RecordPosition] = frozenset()


def skip(positions: Iterable[RecordPosition]) -> None:
    """Set the records that this process skips, as an operator requested."""
    global _skipped  # noqa: PLW0603, one per process, set before anything is read
    _skipped = frozenset(positions)


def skipped() -> frozenset[RecordPosition]:
    """Return the records that this process skips."""
    return _skipped


def is_newer(record: Logged) -> bool:
    """Return whether a record has a schema of a newer release."""
    value = record.value
    if value is None or len(value) < len(_LATEST) or value[:5] <= _LATEST:
        return False
    if record.topic in _INSTALLED:
        return value[:5] >= _FINGERPRINT and value[:5] not in _KNOWN
    if value[:5] >= _BEYOND:
        return False
    form = _KEYS.get(record.topic)
    return form is None or form.fullmatch(record.key or b"") is not None


def readable(records: Sequence[R]) -> tuple[Sequence[R], R | None]:
    """Split records of a partition: those before the first newer one, and that one or None.

    Records that an operator marked to be skipped are in neither.
    """
    if _skipped:
        records = [
            record
            for record in records
            if (record.topic, record.partition, record.offset) not in _skipped
        ]
    for index, record in enumerate(records):
        if is_newer(record):
            return records[:index], record
    return records, None


def newer_schema_message(record: Logged) -> str:
    """Return the log message for a record of a newer release."""
    position = f"{record.topic}/{record.partition}@{record.offset}"
    schema_id = int.from_bytes((record.value or b"")[1:5], "big")
    if record.topic in _INSTALLED:
        known, writer = "that the installed package knows", "package"
    else:
        known, writer = f"of 1 to {max(IDS.values())}", "release"
    return (
        f"{position} has to wait: expected a schema id {known}, found {schema_id}, which a newer "
        f"{writer} wrote; start that {writer} here, or, if none did, `headwater topics skip`"
    )


class Waiting:
    """Partitions, identified by any key, in which a reader waits for a newer release."""

    def __init__(self) -> None:
        self._messages: dict[Hashable, str] = {}
        self._logged_ms: dict[Hashable, int] = {}

    def __contains__(self, where: Hashable) -> bool:
        return where in self._messages

    def begin(self, where: Hashable, message: str) -> None:
        """Record that a partition cannot be read further."""
        self._messages[where] = message

    def end(self, where: Hashable) -> None:
        """Record that a partition is read again, or by another process."""
        self._messages.pop(where, None)
        self._logged_ms.pop(where, None)

    def clear(self) -> None:
        """End all waits."""
        self._messages.clear()
        self._logged_ms.clear()

    def due(self, now_ms: int) -> list[str]:
        """Return the messages to log now: a new one immediately, and then once a minute."""
        due = [
            where
            for where in self._messages
            if now_ms - self._logged_ms.get(where, now_ms - _REMIND_MS) >= _REMIND_MS
        ]
        self._logged_ms.update(dict.fromkeys(due, now_ms))
        return [self._messages[where] for where in due]
