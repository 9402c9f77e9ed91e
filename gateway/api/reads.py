"""Sync route for readers and users: the rows that changed since a cursor."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Final

import msgspec
from litestar import Router, get
from litestar.openapi import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.event_streams import MEDIA_TYPE, EventStreams
from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.key_guards import Callers, user_or_reader
from headwater.gateway.api.openapi import READ_KEY, USER_TOKEN, problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of, with_checked_parameters
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.row_streams import RowChanges, RowStreams, change_of
from headwater.processors.api_keys import Scope
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.sync import (
    SYNCED,
    SyncPage,
    changes,
    progress,
    users_changed,
)
from headwater.projections.postgres.connections import PAGE_MAX, PooledReader
from headwater.projections.projector.store import SYNC_KEPT_DAYS
from headwater.schemas.errors import HeadwaterError

_LOG: Final = logging.getLogger("headwater.gateway")

_PAGE_DEFAULT: Final = 1000
_JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_MEDIA_TYPES: Final = [_JSON, NDJSON, MEDIA_TYPE]

_DESCRIPTION: Final = f"""\
Rows by table, oldest change first. Continue with the returned cursor: immediately while `has_more`,
later to get newer changes. A row is returned again whenever it changes, so upsert by primary key. A
deleted row consists of its key and `"deleted": true`; deleted rows precede the other rows of their
table. A cursor is valid for {SYNC_KEPT_DAYS} days; then the response is `cursor_expired`: empty
your copy, and start without a cursor. The readers' key returns the rows of all users, a user's
token only those of the user.

With `Accept: {NDJSON}` the response has one line for each row, `{{"table", "row"}}` or
`{{"table", "deleted": true, "key"}}`, and ends with `{{"cursor", "has_more"}}`; without that last
line, the response is incomplete. Without a limit, it continues until there are no more rows.

With `Accept: {MEDIA_TYPE}` the response does not end: server-sent events `row` and `deleted` with
the data of such lines, first those since the cursor, then every change within about a second. Event
ids are cursors, and `Last-Event-ID` continues after one. The last row of a page has its id, so rows
may come again after a reconnection. Comments keep the connection alive."""

_RESPONSES: Final = {
    200: ResponseSpec(SyncPage, generate_examples=False, description="The changed rows."),
    **problem_responses(
        "invalid_cursor",
        "cursor_expired",
        "forbidden",
        "overloaded",
        "store_unavailable",
        "jwks_unavailable",
    ),
}

Since = Annotated[
    str | None,
    QueryParameter(description="Only rows written since, in RFC 3339, or a cursor."),
]
CursorOf = Annotated[str | None, QueryParameter(description="Cursor of the previous response.")]
UserId = Annotated[str | None, QueryParameter(description="Only the rows of this user.")]
TableName = Annotated[str | None, QueryParameter(description="Only the rows of this table.")]
LastEventId = Annotated[
    str | None,
    HeaderParameter(
        name="last-event-id", description="Streams only: id of the last event; a cursor."
    ),
]
Limit = Annotated[
    int,
    QueryParameter(
        ge=1,
        le=PAGE_MAX,
        description="Maximum number of rows of all tables together; fewer if rows are large.",
    ),
]


#: Characters of a user's id; those of Headwater have about thirty.
_USER_CHARS: Final = 512


def read_routes(
    reader: Reader, following: PooledReader, callers: Callers, streams: EventStreams
) -> Router:
    """Return the router of the sync route.

    Args:
        reader: Reads Postgres.
        following: Reads Postgres for streams.
        callers: Guards.
        streams: All open streams.
    """
    row_changes = RowChanges(lambda: progress(following), partial(users_changed, following))
    row_streams = RowStreams(row_changes, streams)

    @get(
        "/sync",
        scope=Scope.ROWS_READ,
        summary="Rows that changed",
        description=_DESCRIPTION,
        responses=_RESPONSES,
    )
    async def sync(  # noqa: PLR0913, PLR0917 (one argument for each parameter of the route)
        request: AnyRequest,
        since: Since = None,
        cursor: CursorOf = None,
        user_id: UserId = None,
        table: TableName = None,
        limit: Limit = _PAGE_DEFAULT,
        last_event_id: LastEventId = None,
    ) -> ASGIApp:
        check_texts(_USER_CHARS, user_id=user_id)
        owner = _owner(user_or_reader(request.scope), user_id)
        _check_table(table)
        streams_rows = request.accept.best_match(_MEDIA_TYPES) == MEDIA_TYPE
        if streams_rows:
            streams.require_capacity(owner)
            cursor = last_event_id or cursor
        cursor, moment = _beginning(cursor, since)

        async def page_after(cursor: str | None) -> SyncPage:
            return await changes(
                following if streams_rows else reader,
                after=cursor,
                since=moment,
                limit=limit,
                user_id=owner,
                table=table,
            )

        page = await page_after(cursor)
        if streams_rows:
            return row_streams.response(
                page, page_after, lambda: callers.still_admits(request), owner
            )
        return _response(request, page, page_after, callers)

    return Router(
        "/v1",
        route_handlers=[sync],
        guards=[with_checked_parameters(callers.users_and_readers)],
        security=[{READ_KEY: []}, {USER_TOKEN: []}],
        tags=["read"],
    )


def _check_table(table: str | None) -> None:
    """Refuse the name of a table that is not synced.

    Raises:
        Problem: There is no such table.
    """
    if table is not None and table not in SYNCED:
        raise Problem(
            "invalid_parameter",
            f"table: expected one of {', '.join(SYNCED)}, found {table[:60]!r}",
            field="table",
        )


def _beginning(cursor: str | None, since: str | None) -> tuple[str | None, datetime | None]:
    """Return the cursor, or the moment since which rows are read."""
    if cursor is not None or since is None:
        return cursor, None
    # No cursor begins with a digit.
    return (None, moment_of("since", since)) if since[:1].isdigit() else (since, None)


def _response(
    request: AnyRequest,
    page: SyncPage,
    page_after: Callable[[str], Awaitable[SyncPage]],
    callers: Callers,
) -> ASGIApp:
    """Return a page as JSON; or as lines, with all further pages unless the request has a limit."""
    if request.accept.best_match(_MEDIA_TYPES) != NDJSON:
        return ASGIResponse(body=msgspec.json.encode(page), media_type=_JSON)

    async def next_page(cursor: str) -> SyncPage | None:
        # A user's token may expire before the user's own rows are read.
        admitted = user_or_reader(request.scope) or await callers.still_admits(request)
        return await page_after(cursor) if admitted else None

    all_pages = "limit" not in request.query_params
    return Streamed(iterator=_lines(page, next_page if all_pages else None), media_type=NDJSON)


def _owner(caller: str | None, user_id: str | None) -> str | None:
    """Return the user to read rows of; None for all users.

    Raises:
        Problem: A user requests the rows of another one.
    """
    if caller is not None and user_id not in (None, caller):
        raise Problem(
            "forbidden",
            "user_id: a user's token does not give access to rows of other users",
            field="user_id",
        )
    return caller or user_id


async def _lines(
    page: SyncPage, page_after: Callable[[str], Awaitable[SyncPage | None]] | None
) -> AsyncGenerator[bytes, None]:
    """Yield a page as lines, then further pages if `page_after` is set, one in memory at a time.

    The last line, with the cursor, is missing if an error ends it, or the end of a reader's key.
    """
    yield _lines_of_rows(page)
    try:
        while page.has_more and page_after is not None:
            following = await page_after(page.cursor)
            if following is None:
                return
            page = following
            yield _lines_of_rows(page)
    except HeadwaterError as error:
        _LOG.warning("a stream of rows ended early: %s", error)
        return
    yield msgspec.json.encode({"cursor": page.cursor, "has_more": page.has_more}) + b"\n"


def _lines_of_rows(page: SyncPage) -> bytes:
    lines = [
        msgspec.json.encode(change_of(table, row))
        for table, rows in page.tables.items()
        for row in rows
    ]
    return b"".join(line + b"\n" for line in lines)
