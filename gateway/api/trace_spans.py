"""The route of spans: what deliveries, runs and steps were in a time, page by page."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.request_parameters import LIMIT_DEFAULT, Cursor, Limit, moment_of
from headwater.processors.api_keys import Scope
from headwater.processors.trace_spans import (
    Span,
    TracedDelivery,
    TracedRun,
    TracedStep,
    span_of_run,
    span_of_step,
    spans_of_delivery,
)
from headwater.projections.deliveries.queries import Reader
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.workflows.instances import (
    SpanKey,
    traced_runs,
    traced_steps,
    traced_tokens,
)

#: What is exported, one kind after the other: a page has one of them.
_DELIVERIES: Final = 0
_OF_RUNS: Final = (traced_runs, traced_steps, traced_tokens)
_KINDS: Final = 1 + len(_OF_RUNS)
_BEGINNING: Final = ("-infinity", "")


class SpanPage(msgspec.Struct, frozen=True):
    """Spans; without a cursor, these are the last ones."""

    spans: Sequence[Span]
    cursor: str | None


class _Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of an export: a kind, and the last row of it.

    Attributes:
        until: End of the time, so that all pages of an export have the same.
    """

    until: datetime
    kind: int = _DELIVERIES
    delivery: tuple[str, str] = _BEGINNING
    run: tuple[str, str, int, str] = SpanKey()


def span_routes(reader: Reader) -> list[HTTPRouteHandler]:
    """Return the route of spans."""

    @get(
        "/traces/spans",
        scope=Scope.DELIVERIES_READ,
        audit_read="traces.read",
        summary="Spans of deliveries, runs and steps",
        description="All that were received, or were active, in a time. Their ids follow from the "
        "log, so the same time has the same spans. They name instances, and no users.",
        responses=problem_responses("invalid_cursor", "invalid_parameter", "store_unavailable"),
    )
    async def spans(
        since: Annotated[
            str | None,
            QueryParameter(description="Beginning of the time, in RFC 3339; by default, all."),
        ] = None,
        until: Annotated[
            str | None, QueryParameter(description="Its end, in RFC 3339; by default, none.")
        ] = None,
        after: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> SpanPage:
        begin = moment_of("since", since) or _FIRST
        end = moment_of("until", until) or _LAST
        position = _Position(end) if after is None else unpack(after, _Position)
        with valid_cursor():
            return await _page(reader, begin, position, limit)

    return [spans]


_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)


async def _page(reader: Reader, since: datetime, position: _Position, limit: int) -> SpanPage:
    """Return the next spans; a kind without rows is followed by the next one at once."""
    for kind in range(max(position.kind, _DELIVERIES), _KINDS):
        begin = position if kind == position.kind else _Position(position.until, kind)
        rows, end = await _rows(reader, since, begin, limit)
        if rows:
            is_full = len(rows) == limit
            following = end if is_full else _Position(position.until, kind + 1)
            return SpanPage(
                list(_spans(rows)), pack(following) if following.kind < _KINDS else None
            )
    return SpanPage([], None)


async def _rows(
    reader: Reader, since: datetime, begin: _Position, limit: int
) -> tuple[Sequence[TracedDelivery | TracedRun | TracedStep], _Position]:
    """Return rows of a kind after a position, and the position of the last one."""
    if begin.kind == _DELIVERIES:
        deliveries = await reader.traced_deliveries(
            since, begin.until, after=begin.delivery, limit=limit
        )
        if deliveries:
            last = (deliveries[-1].received_at.isoformat(), deliveries[-1].event_id)
            begin = msgspec.structs.replace(begin, delivery=last)
        return deliveries, begin
    read = _OF_RUNS[begin.kind - 1]
    rows: Sequence[TracedRun | TracedStep]
    rows = await read(reader, since, begin.until, SpanKey(*begin.run), limit)
    if rows:
        row = rows[-1]
        key = row.key if isinstance(row, TracedStep) else ""
        last_run = (row.workflow_name, row.instance_id, row.run_number, key)
        begin = msgspec.structs.replace(begin, run=last_run)
    return rows, begin


def _spans(rows: Iterable[TracedDelivery | TracedRun | TracedStep]) -> Iterable[Span]:
    for row in rows:
        match row:
            case TracedDelivery():
                yield from spans_of_delivery(row)
            case TracedRun():
                yield from filter(None, [span_of_run(row)])
            case TracedStep():
                yield from filter(None, [span_of_step(row)])
