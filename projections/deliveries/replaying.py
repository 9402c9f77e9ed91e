"""Which deliveries a replay takes, in the order in which they were received."""

from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import filled, template

__all__ = ["FIRST", "Matched", "Place", "Selection", "matched", "page"]

_OFFSET_MAX: Final = 2**63 - 1
_SELECTED: Final = template("replay_selected")
_MATCHED: Final = filled("replay_matched", selected=_SELECTED)
_PAGE: Final = filled("replay_page", selected=_SELECTED)


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which deliveries: all that is given has to fit; what is received from `until` on never does.

    Shape:  from_offset and to_offset are offsets of the partition, both included.
    """

    until: str
    ids: tuple[str, ...] | None = None
    source: str | None = None
    type: str | None = None
    user_id: str | None = None
    since: str | None = None
    partition: int | None = None
    from_offset: int = 0
    to_offset: int = _OFFSET_MAX


class Place(msgspec.Struct, frozen=True):
    """How far a replay is: behind this delivery."""

    received_at: str
    event_id: str


#: Before all deliveries.
FIRST: Final = Place("-infinity", "")


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that is to be replayed, where it lay first and where it was read last."""

    event_id: str
    partition: int
    offset: int
    position: str
    status: str
    received_at: datetime

    @property
    def place(self) -> Place:
        """Where a replay is that has come to it."""
        return Place(self.received_at.isoformat(), self.event_id)


async def matched(reader: PooledReader, selection: Selection) -> int:
    """How many deliveries there are.

    Errors: StoreUnavailable.
    """
    rows = await reader.answers(_MATCHED, **_asked(selection))
    return int(rows[0]["matched"]) if rows else 0


async def page(
    reader: PooledReader, selection: Selection, after: Place, limit: int
) -> list[Matched]:
    """The next of them, behind a place.

    Errors: StoreUnavailable.
    """
    behind = {"received_at": after.received_at, "event_id": after.event_id}
    rows = await reader.answers(_PAGE, **_asked(selection), **behind, limit=limit)
    return msgspec.convert(rows, list[Matched])


def _asked(selection: Selection) -> dict[str, Any]:
    asked = msgspec.structs.asdict(selection)
    asked["since"] = selection.since or "-infinity"
    asked["ids"] = None if selection.ids is None else list(selection.ids)
    return asked
