"""Records that a newer release wrote: a reader waits for them, and skips none.

A schema id a little greater than all of the catalogue can only come from a later release. What
such a record says is not known here, so nothing after it in its partition may be read either: the
reader stops there, other partitions go on, and a member of the newer release takes the partition
over in time.

Two kinds of records are no reason to wait. Programs of others may write to some topics, with ids of
a registry of their own: a record whose key is not of our form was never ours, and is decoded, which
fails, as any other that cannot be read. And an operator may say that a record is to be passed over.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from headwater.schemas.catalogue import IDS
from headwater.schemas.installed_tables import FINGERPRINTS, INSTALLED, SCHEMA_IDS
from headwater.schemas.topics import TOPICS

_MAGIC: Final = b"\x00"
#: More than releases that run side by side differ by. Bytes that seem to name a schema beyond it
#: were never a record of ours, and nobody should wait for them.
_AHEAD_MAX: Final = 1_000
_LATEST: Final = _MAGIC + max(IDS.values()).to_bytes(4, "big")
_BEYOND: Final = _MAGIC + (max(IDS.values()) + _AHEAD_MAX + 1).to_bytes(4, "big")
#: Ids of tables of installed packages have no order: one that is not known here is a newer one.
_FINGERPRINT: Final = _MAGIC + FINGERPRINTS.to_bytes(4, "big")
_KNOWN: Final = frozenset(_MAGIC + number.to_bytes(4, "big") for number in SCHEMA_IDS.values())
_INSTALLED: Final = frozenset(table.topic for table in INSTALLED)
_REMIND_MS: Final = 60_000
_KEYS: Final = {topic.name: topic.key_form for topic in TOPICS if topic.key_form is not None}


class Logged(Protocol):
    """A record as Kafka gives it."""

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


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


_skipped: frozenset[Place] = frozenset()


def skip(places: Iterable[Place]) -> None:
    """Says which records this process passes over, because an operator has said so."""
    global _skipped  # noqa: PLW0603, one for the process, set before anything is read
    _skipped = frozenset(places)


def skipped() -> frozenset[Place]:
    """The records that this process passes over."""
    return _skipped


def is_newer(record: Logged) -> bool:
    """Whether a record is of a schema that a later release has."""
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
    """Divides records of a partition: those before the first newer one, and that one if any.

    Shape:  those that an operator has had skipped are in neither.
    """
    if _skipped:
        records = [
            record
            for record in records
            if (record.topic, record.partition, record.offset) not in _skipped
        ]
    for at, record in enumerate(records):
        if is_newer(record):
            return records[:at], record
    return records, None


def why_waits(record: Logged) -> str:
    """What to log of a newer record."""
    position = f"{record.topic}/{record.partition}@{record.offset}"
    found = int.from_bytes((record.value or b"")[1:5], "big")
    if record.topic in _INSTALLED:
        known, whose = "that the installed package knows", "package"
    else:
        known, whose = f"of 1 to {max(IDS.values())}", "release"
    return (
        f"{position} has to wait: expected a schema id {known}, found {found}, which a newer "
        f"{whose} wrote; start that {whose} here, or, if none did, `headwater topics skip`"
    )


class Waiting:
    """The partitions, by any name, in which a reader waits for a newer release."""

    def __init__(self) -> None:
        self._why: dict[Hashable, str] = {}
        self._logged_ms: dict[Hashable, int] = {}

    def __contains__(self, where: Hashable) -> bool:
        return where in self._why

    def begin(self, where: Hashable, why: str) -> None:
        """Notes that a partition cannot be read on."""
        self._why[where] = why

    def end(self, where: Hashable) -> None:
        """Notes that a partition is read anew, or by somebody else."""
        self._why.pop(where, None)
        self._logged_ms.pop(where, None)

    def clear(self) -> None:
        """Ends all waits."""
        self._why.clear()
        self._logged_ms.clear()

    def due(self, now_ms: int) -> list[str]:
        """The lines to log now: each at once, and again every minute."""
        due = [
            where
            for where in self._why
            if now_ms - self._logged_ms.get(where, now_ms - _REMIND_MS) >= _REMIND_MS
        ]
        self._logged_ms.update(dict.fromkeys(due, now_ms))
        return [self._why[where] for where in due]
