"""What readers ask: the rows that changed since they last asked."""

from datetime import datetime
from typing import Annotated, Any, Final

from litestar import Request, Router, get
from litestar.params import QueryParameter

from headwater.gateway.http.callers import Callers, user_or_reader
from headwater.gateway.http.known_parameters import known_parameters
from headwater.gateway.http.openapi import READ_KEY, USER_TOKEN, problem_responses
from headwater.gateway.http.problems import Problem
from headwater.gateway.http.whole_numbers import whole_numbers
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.sync import SyncPage, changes
from headwater.projections.postgres.reader import PAGE_MAX
from headwater.projections.projector.store import SYNC_KEPT_DAYS

_PAGE_DEFAULT: Final = 1000

Limit = Annotated[
    int,
    QueryParameter(
        ge=1, le=PAGE_MAX, description="Rows of all tables together, at most; of large ones fewer."
    ),
]


def read_routes(reader: Reader, callers: Callers) -> Router:
    """The routes under /v1."""

    @get(
        "/sync",
        summary="Rows that changed",
        description="Rows by table, the oldest change first. Ask again with the cursor of the "
        "answer: at once while has_more, later for what changed meanwhile. A row is repeated "
        "whenever it changes, so upsert by primary key. A row that was deleted is its key and "
        '`"deleted": true`; these come before the rows of their table. A cursor is good for '
        f"{SYNC_KEPT_DAYS} days; then the answer is `cursor_expired`: empty the copy, and begin "
        "without one. The readers' key sees the rows of all users, a user's token its own.",
        responses=problem_responses(
            "invalid_cursor", "cursor_expired", "forbidden", "store_unavailable", "jwks_unavailable"
        ),
    )
    async def sync(
        request: Request[Any, Any, Any],
        since: Annotated[
            str | None,
            QueryParameter(description="Only what was written since then: RFC 3339, or a cursor."),
        ] = None,
        cursor: Annotated[
            str | None, QueryParameter(description="The cursor of the previous answer.")
        ] = None,
        user_id: Annotated[
            str | None, QueryParameter(description="Only the rows of this user.")
        ] = None,
        limit: Limit = _PAGE_DEFAULT,
    ) -> SyncPage:
        caller = user_or_reader(request.scope)
        if caller is not None and user_id not in (None, caller):
            raise Problem(
                "forbidden", "user_id: a user's token sees no rows of others", field="user_id"
            )
        moment = None
        if cursor is None and since is not None:
            moment = _moment(since)
            cursor = since if moment is None else None
        return await changes(
            reader, after=cursor, since=moment, limit=limit, user_id=caller or user_id
        )

    return Router(
        "/v1",
        route_handlers=[sync],
        guards=[callers.users_and_readers, known_parameters, whole_numbers],
        security=[{READ_KEY: []}, {USER_TOKEN: []}],
        tags=["read"],
    )


def _moment(since: str) -> datetime | None:
    """A moment, if it is written as one; None for what may be a cursor.

    Errors: Problem for a moment without an offset, which could be meant in any time zone.
    """
    try:
        # A plus sign that was not escaped arrives as a space.
        moment = datetime.fromisoformat(since.strip().replace(" ", "+"))
    except ValueError:
        if since[:1].isdigit():
            raise _bad_since(since) from None
        return None
    if moment.tzinfo is None:
        raise _bad_since(since)
    return moment


def _bad_since(since: str) -> Problem:
    return Problem(
        "invalid_parameter",
        "since: expected RFC 3339 with an offset, for example 2026-07-01T00:00:00Z, or a cursor, "
        f"found {since[:60]!r}",
        field="since",
    )
