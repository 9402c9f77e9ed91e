"""Deliveries selected for a replay, in the order in which they were received."""

from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import filled, template

_OFFSET_MAX: Final = 2**63 - 1
_SELECTED: Final = template("replay_selected")
_MATCHED: Final = filled("replay_matched", selected=_SELECTED)
_PAGE: Final = filled("replay_page", selected=_SELECTED)


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Filter of deliveries: all fields that are set must match.

    Attributes:
        until: Deliveries received at or after this time never match.
        from_offset: First offset of the partition, inclusive.
        to_offset: Last offset of the partition, inclusive.
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


class ReplayCursor(msgspec.Struct, frozen=True):
    """Position of a replay: the last delivery it has handled."""

    received_at: str
    event_id: str


#: Position before all deliveries.
FIRST: Final = ReplayCursor("-infinity", "")


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to replay, its original position, and where it was last read."""

    event_id: str
    partition: int
    offset: int
    position: str
    status: str
    received_at: datetime

    @property
    def cursor(self) -> ReplayCursor:
        """Position of a replay after this delivery."""
        return ReplayCursor(self.received_at.isoformat(), self.event_id)


async def matched(reader: PooledReader, selection: Selection) -> int:
    """Return the number of deliveries.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(_MATCHED, **_parameters(selection))
    return int(rows[0]["matched"]) if rows else 0


async def page(
    reader: PooledReader, selection: Selection, after: ReplayCursor, limit: int
) -> list[Matched]:
    """Return the next deliveries after a position.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    position = {"received_at": after.received_at, "event_id": after.event_id}
    rows = await reader.answers(_PAGE, **_parameters(selection), **position, limit=limit)
    return msgspec.convert(rows, list[Matched])


def _parameters(selection: Selection) -> dict[str, Any]:
    parameters = msgspec.structs.asdict(selection)
    parameters["since"] = selection.since or "-infinity"
    parameters["ids"] = None if selection.ids is None else list(selection.ids)
    return parameters
