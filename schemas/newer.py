"""Records that a newer release wrote: a reader waits for them, and skips none.

A schema id greater than all of the catalogue can only come from a later release. What such a record
says is not known here, so nothing behind it in its partition may be read either: the reader stops
there, other partitions go on, and a member of the newer release takes the partition over in time.
An id that is missing in between is another matter: no release will ever bring it.
"""

from collections.abc import Hashable, Sequence
from typing import Final, Protocol, TypeVar

from headwater.schemas.catalogue import IDS

_MAGIC: Final = b"\x00"
#: No catalogue will have as many. Bytes that seem to name a schema beyond it were never a record of
#: ours, and nobody should wait for them.
_IDS_MAX: Final = 65_536
_LATEST: Final = _MAGIC + max(IDS.values()).to_bytes(4, "big")
_BEYOND: Final = _MAGIC + _IDS_MAX.to_bytes(4, "big")
_REMIND_MS: Final = 60_000


class Logged(Protocol):
    """A record as Kafka gives it."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102


R = TypeVar("R", bound=Logged)


def is_newer(value: bytes | None) -> bool:
    """Whether a record's value names a schema that a later release has."""
    return value is not None and len(value) >= len(_LATEST) and _LATEST < value[:5] < _BEYOND


def readable(records: Sequence[R]) -> tuple[Sequence[R], R | None]:
    """Divides records of a partition: those before the first newer one, and that one if any."""
    for at, record in enumerate(records):
        if is_newer(record.value):
            return records[:at], record
    return records, None


def why_waits(record: Logged) -> str:
    """What to log of a newer record."""
    position = f"{record.topic}/{record.partition}@{record.offset}"
    return f"{position} has to wait: {why_newer(record.value or b'')}"


def why_newer(value: bytes) -> str:
    """What is wrong with a newer value, and what to do."""
    return (
        f"expected a schema id of 1 to {max(IDS.values())}, found "
        f"{int.from_bytes(value[1:5], 'big')}, which a newer release wrote; start that release here"
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
