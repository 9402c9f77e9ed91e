"""What can be asked of the projection of deliveries: named SQL in, typed rows out."""

from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Final

import msgspec
from psycopg import sql

from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement

__all__ = [
    "DeadLetter",
    "DeadLetterPage",
    "DeadLetterWhole",
    "Hop",
    "Outcome",
    "OutcomeCount",
    "ParkedDelivery",
    "Position",
    "ProjectionError",
    "Reader",
    "Trace",
]

_NEWEST: Final = {"at": "infinity", "partition": 0, "offset": 0}
_LEVELS: Final = ("info", "error")


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries came to the same end."""

    status: str
    reason: str
    deliveries: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery."""

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    user_id: str | None
    status: str
    reason: str
    rows: int
    rejected: int
    partition: int
    offset: int
    received_at: datetime
    admitted_at: datetime
    parked_at: datetime | None
    released_at: datetime | None
    at: datetime
    stage: str
    position: str
    replay: str = ""


class Hop(msgspec.Struct, frozen=True):
    """One stage of a delivery's journey.

    Shape:  stage is one of received, admitted, duplicate, handshake, refused, parked, released,
            normalized, dead, effect_failed.
    Units:  at_ms in Unix milliseconds; position as topic/partition@offset, empty when not known.
    """

    stage: str
    at_ms: int
    position: str
    detail: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery's journey, or that of a copy that was dropped."""

    request_id: str
    event_id: str
    user_id: str | None
    level: str
    hops: tuple[Hop, ...]
    started_at: datetime
    ended_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="dead"):
    """What could not be processed, and why; partition and offset name it."""

    partition: int
    offset: int
    event_id: str | None
    request_id: str | None
    original_topic: str | None
    original_partition: int | None
    original_offset: int | None
    reason: str
    message: str | None
    stage: str | None
    rule: str | None
    dead_at: datetime
    replayed_at: datetime | None
    expired_at: datetime | None


class ParkedDelivery(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="parked"):
    """A delivery that waits for the user of its subject; it lies in `webhooks`."""

    event_id: str
    request_id: str
    source: str
    type: str
    subject: str
    reason: str
    original_topic: str
    original_partition: int
    original_offset: int
    parked_at: datetime


class DeadLetterWhole(DeadLetter, frozen=True, kw_only=True):
    """A dead letter with its bytes and headers."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | None], ...]


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first; `cursor` continues with older ones, None when there are none.

    Shape:  deliveries that wait are among them if they were asked for.
    """

    rows: tuple[DeadLetter | ParkedDelivery, ...]
    cursor: str | None


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has applied a partition."""

    projection: str
    topic: str
    partition: int
    next_offset: int
    applied_at: datetime | None


class ProjectionError(msgspec.Struct, frozen=True, kw_only=True):
    """A record that the projector could not apply."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes | None
    at: datetime


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at: datetime
    partition: int
    offset: int


def _place_of(row: DeadLetter | ParkedDelivery) -> _Place:
    if isinstance(row, DeadLetter):
        return _Place(row.dead_at, row.partition, row.offset)
    return _Place(row.parked_at, row.original_partition, row.original_offset)


def _order(row: DeadLetter | ParkedDelivery) -> tuple[datetime, int, int]:
    place = _place_of(row)
    return (place.at, place.partition, place.offset)


class Reader(PooledReader):
    """Reads what was projected of deliveries.

    Errors: StoreUnavailable from every method but `open` and `close`.
    """

    async def outcome_counts(self, since: datetime | None = None) -> list[OutcomeCount]:
        """How many deliveries, of those received since then, came to which end."""
        rows = await self._rows("outcome_counts", since=since or "-infinity")
        return msgspec.convert(rows, list[OutcomeCount])

    async def outcome(self, event_id: str) -> Outcome | None:
        """What became of a delivery; None when it is not known (yet)."""
        rows = await self._rows("outcome", event_id=event_id)
        return msgspec.convert(rows[0], Outcome) if rows else None

    async def traces(
        self,
        *,
        request_id: str | None = None,
        user_id: str | None = None,
        level: str | None = None,
        limit: int,
    ) -> list[Trace]:
        """Journeys, the newest first; `request_id` names one and makes the rest superfluous."""
        limit = bounded(limit)
        query = _traces_query(request_id, user_id, level)
        if query is None:
            return []
        rows = await self.answers(query, request_id=request_id, user_id=user_id, limit=limit)
        return msgspec.convert(rows, list[Trace])

    async def dead_letters(
        self, *, limit: int, after: str | None = None, states: Collection[str] = ("dead",)
    ) -> DeadLetterPage:
        """Dead letters, deliveries that wait (`parked`), or both, newest first.

        Errors: InvalidCursor.
        """
        limit = bounded(limit)
        place = _NEWEST if after is None else msgspec.structs.asdict(unpack(after, _Place))
        asked = {**place, "limit": limit + 1}
        found: list[DeadLetter | ParkedDelivery] = []
        with valid_cursor():
            if "dead" in states:
                rows = await self._rows("dead_letters", **asked)
                found += msgspec.convert(rows, list[DeadLetter])
            if "parked" in states:
                rows = await self._rows("parked", **asked)
                found += msgspec.convert(rows, list[ParkedDelivery])
        found.sort(key=_order, reverse=True)
        # Two topics may have the same place: what comes next must not be left out.
        end = min(limit, len(found))
        while 0 < end < len(found) and _order(found[end]) == _order(found[end - 1]):
            end += 1
        last = _place_of(found[end - 1]) if end < len(found) else None
        return DeadLetterPage(rows=tuple(found[:end]), cursor=pack(last) if last else None)

    async def dead_letter(self, partition: int, offset: int) -> DeadLetterWhole | None:
        """One dead letter with its bytes; None when there is none at that position."""
        rows = await self._rows("dead_letter", partition=partition, offset=offset)
        return msgspec.convert(rows[0], DeadLetterWhole) if rows else None

    async def pending_dead_letters(
        self, *, limit: int, after: tuple[int, int] = (-1, -1)
    ) -> list[DeadLetter]:
        """Dead letters that were never replayed, by position, after a (partition, offset)."""
        rows = await self._rows(
            "pending_dead_letters", partition=after[0], offset=after[1], limit=bounded(limit)
        )
        return msgspec.convert(rows, list[DeadLetter])

    async def projection_positions(self) -> list[Position]:
        """How far every projection is."""
        return msgspec.convert(await self._rows("projection_positions"), list[Position])

    async def projection_errors(self, *, limit: int) -> list[ProjectionError]:
        """Records that the projector could not apply, newest first."""
        rows = await self._rows("projection_errors", limit=bounded(limit))
        return msgspec.convert(rows, list[ProjectionError])

    async def active_connections(self, *, after: str, limit: int) -> list[str]:
        """Terra's ids of connections that are active, in the order of their MD5.

        Shape:  those behind a digest; in hexadecimal digits.
        """
        rows = await self._rows("active_connections", after=after, limit=bounded(limit))
        return [row["terra_user_id"] for row in rows]

    async def active_connections_of(self, digests: Collection[str]) -> list[str]:
        """Terra's ids of those active connections that have one of some digests."""
        rows = await self._rows("active_connections_of", digests=list(digests))
        return [row["terra_user_id"] for row in rows]

    async def _rows(self, query: str, **parameters: object) -> list[Row]:
        return await self.answers(statement(query), **parameters)


def _traces_query(request_id: str | None, user_id: str | None, level: str | None) -> bytes | None:
    """The query for what is asked; None for a level that there is not."""
    if request_id is not None:
        return statement("traces_by_request")
    if level not in (None, *_LEVELS):
        return None
    return _newest_traces(level, of_user=user_id is not None)


@cache
def _newest_traces(level: str | None, *, of_user: bool) -> bytes:
    asked: list[sql.Composable] = [sql.SQL("user_id = %(user_id)s")] if of_user else []
    if level is not None:
        # Filled in: of a parameter Postgres could not tell that the index of it applies.
        asked.append(sql.SQL("level = {}").format(sql.Literal(level)))
    return filled("traces_newest", asked=sql.SQL(" and ").join(asked or [sql.SQL("true")]))
