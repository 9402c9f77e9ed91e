"""Queries of the projection of deliveries: named SQL in, typed rows out."""

from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Final

import msgspec
from psycopg import sql

from headwater.processors.trace_spans import TracedDelivery
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.statements import filled, statement

_NEWEST: Final = {"at": "infinity", "partition": 0, "offset": 0}
_LEVELS: Final = ("info", "error")


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of deliveries with the same outcome."""

    status: str
    reason: str
    deliveries: int


class DeadLetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of dead letters of a stage with a reason."""

    stage: str
    reason: str
    dead_letters: int


async def dead_letter_counts(reader: PooledReader) -> list[DeadLetterCount]:
    """Return the number of dead letters that were neither reprocessed nor expired.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("dead_letter_counts"))
    return msgspec.convert(rows, list[DeadLetterCount])


class RejectedField(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a delivery that was dropped, while the rest of its record was stored.

    Attributes:
        path: Its dotted path in the delivery.
        reason: One of not_measured, out_of_range, wrong_type.
        count: Number of such values.
    """

    path: str
    reason: str
    count: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a delivery."""

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
    rejected_fields: tuple[RejectedField, ...] = ()
    rejected_fields_total: int = 0
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
    """One stage of a delivery's trace.

    Attributes:
        stage: One of received, admitted, duplicate, handshake, refused, parked, released,
            normalized, dead, effect_failed.
        at_ms: Unix milliseconds.
        position: topic/partition@offset; empty if it is not known.
    """

    stage: str
    at_ms: int
    position: str
    detail: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Trace of a delivery, or of a dropped duplicate."""

    request_id: str
    event_id: str
    user_id: str | None
    level: str
    hops: tuple[Hop, ...]
    started_at: datetime
    ended_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="dead"):
    """A record that could not be processed, and why; partition and offset identify it."""

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
    source: str | None = None
    type: str | None = None
    subject: str | None = None
    user_id: str | None = None


class ParkedDelivery(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="parked"):
    """A delivery that waits for the user of its subject; it is stored in `webhooks`."""

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
    """Dead letters, newest first; `cursor` continues with older ones, None if there are none.

    Waiting deliveries are included if they were requested.
    """

    rows: tuple[DeadLetter | ParkedDelivery, ...]
    cursor: str | None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of dead letters and parked deliveries: all fields that are set must match."""

    reason: str | None = None
    source: str | None = None
    type: str | None = None
    user_id: str | None = None


ALL_DEAD: Final = DeadLetterFilter()


class DeadReason(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, or parked deliveries, with the same reason.

    Attributes:
        state: dead or parked.
        reason: The reason.
        deliveries: Their number, up to a limit.
        new: How many of them since the requested time.
        first_at: When the first of them died or was parked.
        last_at: When the last of them did.
    """

    state: str
    reason: str
    deliveries: int
    new: int
    first_at: datetime
    last_at: datetime


#: Dead letters, and parked deliveries, that are counted by reason.
_COUNTED_MAX: Final = 1000
_REASONS_MAX: Final = 100


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


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at: datetime
    partition: int
    offset: int


def _cursor_of(row: DeadLetter | ParkedDelivery) -> _Cursor:
    if isinstance(row, DeadLetter):
        return _Cursor(row.dead_at, row.partition, row.offset)
    return _Cursor(row.parked_at, row.original_partition, row.original_offset)


def _order(row: DeadLetter | ParkedDelivery) -> tuple[datetime, int, int]:
    cursor = _cursor_of(row)
    return (cursor.at, cursor.partition, cursor.offset)


class Reader(PooledReader):
    """Reads the projection of deliveries.

    All methods except `open` and `close` raise StoreUnavailable.
    """

    async def outcome_counts(self, since: datetime | None = None) -> list[OutcomeCount]:
        """Count deliveries received since a time, by outcome."""
        rows = await self._rows("outcome_counts", since=since or "-infinity")
        return msgspec.convert(rows, list[OutcomeCount])

    async def outcome(self, event_id: str) -> Outcome | None:
        """Return the outcome of a delivery; None if it is not known (yet)."""
        rows = await self._rows("outcome", event_id=event_id)
        return msgspec.convert(rows[0], Outcome) if rows else None

    async def traces(
        self,
        *,
        request_id: str | None = None,
        user_id: str | None = None,
        event_ids: Collection[str] = (),
        level: str | None = None,
        limit: int,
    ) -> list[Trace]:
        """Return traces, newest first. With `request_id`, other filters are ignored.

        Args:
            request_id: Only those of this request.
            user_id: Only those of this user, and of `event_ids`.
            event_ids: Deliveries that name no user, but are the user's.
            level: Only those of this level.
            limit: How many, at most.
        """
        limit = bounded(limit)
        query = _traces_query(request_id, user_id, event_ids, level)
        if query is None:
            return []
        named = {"request_id": request_id, "user_id": user_id, "event_ids": list(event_ids)}
        rows = await self.answers(query, **named, limit=limit)
        return msgspec.convert(rows, list[Trace])

    async def traced_deliveries(
        self, since: datetime, until: datetime, *, after: tuple[str, str], limit: int
    ) -> list[TracedDelivery]:
        """Return deliveries received in a time, in the order of their receipt.

        Args:
            since: Only those received at or after this time.
            until: Only those received before this time.
            after: Continue after a receipt, in RFC 3339, and an event id.
            limit: How many, at most.
        """
        begin = {"received_at": after[0], "event_id": after[1]}
        rows = await self._rows(
            "traced_deliveries", since=since, until=until, **begin, limit=bounded(limit)
        )
        return [
            msgspec.convert({**row, "processed": [*row["earlier"], row]}, TracedDelivery)
            for row in rows
        ]

    async def dead_letters(
        self,
        *,
        limit: int,
        after: str | None = None,
        states: Collection[str] = ("dead",),
        selected: DeadLetterFilter = ALL_DEAD,
    ) -> DeadLetterPage:
        """Return dead letters, waiting deliveries (`parked`), or both, newest first.

        Raises:
            InvalidCursor: The cursor cannot be read.
        """
        limit = bounded(limit)
        start = _NEWEST if after is None else msgspec.structs.asdict(unpack(after, _Cursor))
        parameters = {**start, **msgspec.structs.asdict(selected), "limit": limit + 1}
        entries: list[DeadLetter | ParkedDelivery] = []
        with valid_cursor():
            if "dead" in states:
                rows = await self._rows("dead_letters", **parameters)
                entries += msgspec.convert(rows, list[DeadLetter])
            if "parked" in states:
                rows = await self._rows("parked", **parameters)
                entries += msgspec.convert(rows, list[ParkedDelivery])
        entries.sort(key=_order, reverse=True)
        # Entries of two topics may have the same sort key: keep them on one page.
        end = min(limit, len(entries))
        while 0 < end < len(entries) and _order(entries[end]) == _order(entries[end - 1]):
            end += 1
        last = _cursor_of(entries[end - 1]) if end < len(entries) else None
        return DeadLetterPage(rows=tuple(entries[:end]), cursor=pack(last) if last else None)

    async def dead_reasons(self, since: datetime | None = None) -> list[DeadReason]:
        """Return dead letters that were never put back, and parked deliveries, by reason.

        Args:
            since: From when on they count as new; None for none of them.
        """
        rows = await self._rows(
            "dead_reasons", since=since or "infinity", limit=_COUNTED_MAX, groups=_REASONS_MAX
        )
        return msgspec.convert(rows, list[DeadReason])

    async def dead_letter(self, partition: int, offset: int) -> DeadLetterWhole | None:
        """Return a dead letter with its bytes; None if there is none at that position."""
        rows = await self._rows("dead_letter", partition=partition, offset=offset)
        return msgspec.convert(rows[0], DeadLetterWhole) if rows else None

    async def pending_dead_letters(
        self, *, limit: int, after: tuple[int, int] = (-1, -1)
    ) -> list[DeadLetter]:
        """Return dead letters that were never replayed, ordered by (partition, offset)."""
        rows = await self._rows(
            "pending_dead_letters", partition=after[0], offset=after[1], limit=bounded(limit)
        )
        return msgspec.convert(rows, list[DeadLetter])

    async def projection_positions(self) -> list[Position]:
        """Return how far each projection has applied each partition."""
        return msgspec.convert(await self._rows("projection_positions"), list[Position])

    async def projection_errors(self, *, limit: int) -> list[ProjectionError]:
        """Return records that the projector could not apply, newest first."""
        rows = await self._rows("projection_errors", limit=bounded(limit))
        return msgspec.convert(rows, list[ProjectionError])

    async def active_connections(self, *, after: str, limit: int) -> list[str]:
        """Return Terra's ids of active connections, ordered by their MD5.

        Only those after a digest, in hexadecimal, are returned.
        """
        rows = await self._rows("active_connections", after=after, limit=bounded(limit))
        return [row["terra_user_id"] for row in rows]

    async def active_connections_of(self, digests: Collection[str]) -> list[str]:
        """Return Terra's ids of active connections with these digests."""
        rows = await self._rows("active_connections_of", digests=list(digests))
        return [row["terra_user_id"] for row in rows]

    async def _rows(self, query: str, **parameters: object) -> list[Row]:
        return await self.answers(statement(query), **parameters)


def _traces_query(
    request_id: str | None, user_id: str | None, event_ids: Collection[str], level: str | None
) -> bytes | None:
    """Return the query for these filters; None for an unknown level."""
    if request_id is not None:
        return statement("traces_by_request")
    if level not in (None, *_LEVELS):
        return None
    return _newest_traces(level, of_user=user_id is not None, with_others=bool(event_ids))


@cache
def _newest_traces(level: str | None, *, of_user: bool, with_others: bool) -> bytes:
    conditions: list[sql.Composable] = []
    if of_user and with_others:  # Rare, because Postgres sorts all traces of the user then.
        conditions.append(sql.SQL("(user_id = %(user_id)s or event_id = any(%(event_ids)s))"))
    elif of_user:
        conditions.append(sql.SQL("user_id = %(user_id)s"))
    if level is not None:
        # A literal: with a parameter, Postgres could not choose the partial index.
        conditions.append(sql.SQL("level = {}").format(sql.Literal(level)))
    condition = sql.SQL(" and ").join(conditions or [sql.SQL("true")])
    return filled("traces_newest", condition=condition)
