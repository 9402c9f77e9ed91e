"""Deliveries selected for a replay, in the order in which they were received."""

from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from headwater.projections.deliveries.users import subjects_of
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import filled, statement, template

_IDS_MAX: Final = 10_000
#: Characters of a text.
TEXT_MAX: Final = 512
_OFFSET_MAX: Final = 2**63 - 1
_SELECTED: Final = template("replay_selected")
_MATCHED: Final = filled("replay_matched", selected=_SELECTED)
_PAGE: Final = filled("replay_page", selected=_SELECTED)


Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_MAX)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=_OFFSET_MAX)]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of deliveries of any user: all fields that are set must match.

    `since` and `until` are RFC 3339 and refer to the time of receipt. `from` and `to` are offsets
    of the partition, inclusive.
    """

    ids: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=_IDS_MAX)] | None = None
    source: Text | None = None
    type: Text | None = None
    since: str | None = None
    until: str | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    from_: _Offset | None = msgspec.field(default=None, name="from")
    to: _Offset | None = None


class ReplayCursor(NamedTuple):
    """Position of a replay: the last delivery it has handled; by default, before all."""

    received_at: str = "-infinity"
    event_id: str = ""


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


async def matched(reader: PooledReader, selection: Selection, user_id: str | None) -> int:
    """Return the number of deliveries, of a user or of all.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(_MATCHED, **await _parameters(reader, selection, user_id))
    return int(rows[0]["matched"]) if rows else 0


async def page(
    reader: PooledReader,
    selection: Selection,
    user_id: str | None,
    after: ReplayCursor,
    limit: int,
) -> list[Matched]:
    """Return the next deliveries after a position, of a user or of all.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = await _parameters(reader, selection, user_id)
    rows = await reader.answers(_PAGE, **parameters, **after._asdict(), limit=limit)
    return msgspec.convert(rows, list[Matched])


async def user_with_digest(reader: PooledReader, user_sha256: str) -> str | None:
    """Return the user with a digest; None if no delivery names one, as after a wipe.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("user_with_digest"), user_sha256=user_sha256)
    return rows[0]["user_id"] if rows else None


async def _parameters(
    reader: PooledReader, selection: Selection, user_id: str | None
) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(selection),
        "user_id": user_id,
        "subjects": [] if user_id is None else await subjects_of(reader, user_id),
        "ids": None if selection.ids is None else list(selection.ids),
        "since": selection.since or "-infinity",
        "until": selection.until or "infinity",
        "from_offset": selection.from_ or 0,
        "to_offset": _OFFSET_MAX if selection.to is None else selection.to,
    }
