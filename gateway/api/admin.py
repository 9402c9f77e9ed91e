"""Operator routes: dead letters and their replay, traces, outcomes, users, projection positions."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from litestar import Router, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from headwater.gateway.api.audit import attempt, note
from headwater.gateway.api.deliveries import delivery_routes, raw_event_routes
from headwater.gateway.api.json_bodies import BodySize, LimitedBodies, OperatorRequest, check_texts
from headwater.gateway.api.key_guards import OPERATORS, KeyGuard
from headwater.gateway.api.lineage import lineage_routes
from headwater.gateway.api.openapi import ADMIN_KEY, problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import (
    LIMIT_DEFAULT,
    Cursor,
    Limit,
    moment_of,
    with_checked_parameters,
)
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.trace_spans import span_routes
from headwater.processors.api_keys import Scope
from headwater.processors.providers.provider import Providers
from headwater.projections.deliveries.queries import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterWhole,
    Outcome,
    OutcomeCount,
    Position,
    ProjectionError,
    Reader,
    Trace,
)
from headwater.projections.deliveries.users import UserWhole, dead_before_connecting, user_whole
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import InstanceCount, instance_counts
from headwater.streams.pipeline.reprocessing import DeadLetters, ReplayResult
from headwater.streams.pipeline.webhook_log import WebhookLog


def user_routes(reader: PooledReader) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/user."""

    @get(
        "/user/{user_id:str}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="users.read",
        summary="Get the data of a user",
        description="Connections and what came last of the active ones, numbers of rows by table, "
        "the latest outcomes, parked deliveries, and deliveries that died before the user "
        "connected. All counts of an unknown user are 0.",
        responses=problem_responses("store_unavailable"),
    )
    async def user(user_id: FromPath[str]) -> UserWhole:
        return await user_whole(reader, user_id)

    return [user]


# -- the router and its routes

_PROBLEMS: Final = problem_responses("store_unavailable")

#: Dead letters of one replay. They are read and appended one by one, at some milliseconds a letter.
REPLAYS_MAX: Final = 1000

#: Characters of a dead letter's reason; those of Headwater have about thirty.
_REASON_CHARS: Final = 256


class Level(StrEnum):
    """Level of a trace: `error` if the delivery became a dead letter."""

    INFO = "info"
    ERROR = "error"


class Status(StrEnum):
    """Outcome of a delivery."""

    PROCESSED = "processed"
    SKIPPED = "skipped"
    PARKED = "parked"
    DEAD = "dead"


class State(StrEnum):
    """Kind of unprocessed delivery: dead letters, deliveries parked for their user, or both."""

    DEAD = "dead"
    PARKED = "parked"
    ALL = "all"


class DeadLetterPosition(msgspec.Struct, frozen=True):
    """Position of a dead letter in the topic dead-letters."""

    partition: Annotated[int, msgspec.Meta(ge=0)]
    offset: Annotated[int, msgspec.Meta(ge=0)]


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters to replay: those at `positions`, or all that were never replayed.

    `reason` filters `all`. With `all`, one request replays one page; pass `next` of the answer as
    `after` to continue.
    """

    positions: Annotated[tuple[DeadLetterPosition, ...], msgspec.Meta(max_length=REPLAYS_MAX)] = ()
    all: bool = False
    reason: str | None = None
    after: DeadLetterPosition | None = None
    dry_run: bool = False


class ReplayAnswer(msgspec.Struct, frozen=True):
    """Results of a replay. With `all`, `next` is set while there may be more dead letters."""

    dry_run: bool
    replayed: int
    failed: int
    next: DeadLetterPosition | None
    results: Sequence[ReplayResult]


class Traces(msgspec.Struct, frozen=True):
    """Traces, newest first."""

    traces: list[Trace]


class Outcomes(msgspec.Struct, frozen=True):
    """Number of deliveries by outcome."""

    outcomes: list[OutcomeCount]


class Instances(msgspec.Struct, frozen=True):
    """Number of workflow instances by workflow and status."""

    instances: list[InstanceCount]


class Projections(msgspec.Struct, frozen=True):
    """Positions of the projections, and the records that they could not apply."""

    positions: list[Position]
    errors: list[ProjectionError]


def admin_routes(  # noqa: PLR0913 (one parameter per dependency)
    reader: Reader,
    log: WebhookLog,
    replays: DeadLetters,
    providers: Providers,
    *,
    keys: KeyGuard,
    limited: LimitedBodies,
    more: Sequence[HTTPRouteHandler],
) -> Router:
    """Return the router for /admin.

    Args:
        reader: Postgres reader.
        log: Topic `webhooks`.
        replays: DeadLetters dead letters and deliveries.
        providers: Installed providers.
        keys: Authenticates operators.
        limited: Middleware that limits request bodies.
        more: Further route handlers for this router.
    """
    handlers = [
        *_dead_letter_routes(reader, replays),
        *_journey_routes(reader),
        *_summary_routes(reader),
        *delivery_routes(reader, log),
        *raw_event_routes(reader, log, replays),
        *user_routes(reader),
        *lineage_routes(reader, log, providers),
        *more,
    ]
    return Router(
        "/admin",
        route_handlers=handlers,
        middleware=[limited],
        request_class=OperatorRequest,
        request_max_body_size=None,
        guards=[with_checked_parameters(keys.requires(OPERATORS))],
        security=[{ADMIN_KEY: []}],
        tags=["operate"],
    )


def _dead_letter_routes(reader: Reader, replays: DeadLetters) -> list[HTTPRouteHandler]:
    @get(
        "/dlq",
        scope=Scope.DELIVERIES_READ,
        summary="Dead letters, newest first",
        description="`state=parked` lists deliveries parked for their user, `state=all` both. Dead "
        "letters are left out once their delivery was processed, however it was replayed.",
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def dead_letters(  # noqa: PLR0913, PLR0917 (one argument for each parameter)
        selected: Annotated[
            State, QueryParameter(name="state", description="Dead letters, parked, or both.")
        ] = State.DEAD,
        reason: FromQuery[str | None] = None,
        source: FromQuery[str | None] = None,
        type: FromQuery[str | None] = None,  # noqa: A002 (as the parameter is named)
        user_id: FromQuery[str | None] = None,
        limit: Limit = LIMIT_DEFAULT,
        after: Cursor = None,
    ) -> DeadLetterPage:
        filters = {"reason": reason, "source": source, "type": type, "user_id": user_id}
        check_texts(_REASON_CHARS, **filters)
        states = (State.DEAD, State.PARKED) if selected is State.ALL else (selected,)
        return await reader.dead_letters(
            limit=limit, after=after, states=states, selected=DeadLetterFilter(**filters)
        )

    @get(
        "/dlq/{partition:int}/{offset:int}",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="dead_letters.read",
        summary="Get a dead letter with its key and value",
        description="Key and value are the original bytes in base64.",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def dead_letter(partition: FromPath[int], offset: FromPath[int]) -> DeadLetterWhole:
        letter = await reader.dead_letter(partition, offset)
        if letter is None:
            raise Problem("not_found", f"There is no dead letter at {partition}/{offset}.")
        return letter

    @post(
        "/dlq/replay",
        scope=Scope.DELIVERIES_WRITE,
        body=BodySize.POSITIONS,
        audit="dead_letters.replay",
        audits_attempt=True,
        status_code=200,
        summary="Replay dead letters to their original topics",
        description=f"At most {REPLAYS_MAX} in one request. Replaying again is safe: rows and "
        "outcomes converge.",
        responses=problem_responses("broker_unavailable", "store_unavailable"),
    )
    async def replay(request: AnyRequest, data: JSONBody[ReplayRequest]) -> ReplayAnswer:
        return await _replay(reader, replays, data, request)

    return [dead_letters, dead_letter, replay]


def _journey_routes(reader: Reader) -> list[HTTPRouteHandler]:
    @get(
        "/traces",
        scope=Scope.PERSONAL_DATA_READ,
        audit_read="traces.read",
        summary="Traces of deliveries, newest first",
        description="Those of a user include deliveries of the user's connections that died before "
        "the connection was known.",
        responses=problem_responses("invalid_parameter", "store_unavailable"),
    )
    async def traces(
        request_id: FromQuery[str | None] = None,
        user_id: FromQuery[str | None] = None,
        level: FromQuery[Level | None] = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Traces:
        others = [] if user_id is None else await dead_before_connecting(reader, user_id, limit)
        selected = {"request_id": request_id, "user_id": user_id, "level": level}
        return Traces(await reader.traces(**selected, event_ids=others, limit=limit))

    @get(
        "/outcomes/{event_id:str}",
        scope=Scope.DELIVERIES_READ,
        summary="Get the outcome of a delivery",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def outcome(event_id: FromPath[str]) -> Outcome:
        row = await reader.outcome(event_id)
        if row is None:
            raise Problem("not_found", f"No outcome of {event_id[:64]} is known (yet).")
        return row

    return [traces, outcome, *span_routes(reader)]


def _summary_routes(reader: Reader) -> list[HTTPRouteHandler]:
    @get(
        "/outcomes",
        scope=Scope.DELIVERIES_READ,
        summary="Number of deliveries by outcome",
        responses=problem_responses("invalid_parameter", "store_unavailable"),
    )
    async def outcomes(
        status: FromQuery[Status | None] = None,
        since: Annotated[
            str | None, QueryParameter(description="Only deliveries received since, in RFC 3339.")
        ] = None,
    ) -> Outcomes:
        counts = await reader.outcome_counts(moment_of("since", since))
        return Outcomes([count for count in counts if status in (None, count.status)])

    @get(
        "/instances",
        scope=Scope.SYSTEM_READ,
        summary="Number of workflow instances by workflow and status",
        responses=_PROBLEMS,
    )
    async def instances() -> Instances:
        return Instances(await instance_counts(reader))

    @get(
        "/projections",
        scope=Scope.SYSTEM_READ,
        summary="Positions and errors of the projections",
        responses=_PROBLEMS,
    )
    async def projections(limit: Limit = LIMIT_DEFAULT) -> Projections:
        return Projections(
            await reader.projection_positions(), await reader.projection_errors(limit=limit)
        )

    return [outcomes, instances, projections]


async def _replay(
    reader: Reader, replays: DeadLetters, order: ReplayRequest, request: AnyRequest
) -> ReplayAnswer:
    note(request, dry_run=order.dry_run)
    if order.all == bool(order.positions):
        raise Problem("invalid_parameter", "expected either positions or all", field="positions")
    check_texts(_REASON_CHARS, reason=order.reason)
    pending, next_page = await _pending(reader, order) if order.all else ({}, None)
    positions = [*pending, *((named.partition, named.offset) for named in order.positions)]
    note(
        request,
        selection={"all": True, "reason": order.reason} if order.all else None,
        positions=[f"{partition}@{offset}" for partition, offset in positions],
        count=len(positions),
    )
    if order.dry_run:
        results = [
            _dry_run_result(*position, pending.get(position) or await reader.dead_letter(*position))
            for position in positions
        ]
    else:
        await attempt(request)
        results = [*await replays.replay(positions)]
    succeeded = sum(result.ok for result in results)
    return ReplayAnswer(order.dry_run, succeeded, len(results) - succeeded, next_page, results)


async def _pending(
    reader: Reader, request: ReplayRequest
) -> tuple[dict[tuple[int, int], DeadLetter], DeadLetterPosition | None]:
    """Return a page of dead letters that were never replayed, and the position to continue at."""
    begin = request.after
    after = (-1, -1) if begin is None else (begin.partition, begin.offset)
    page = await reader.pending_dead_letters(limit=REPLAYS_MAX, after=after)
    letters = {
        (letter.partition, letter.offset): letter
        for letter in page
        if request.reason in (None, letter.reason)
    }
    last = page[-1] if len(page) == REPLAYS_MAX else None
    return letters, DeadLetterPosition(last.partition, last.offset) if last else None


def _dry_run_result(partition: int, offset: int, letter: DeadLetter | None) -> ReplayResult:
    """Return what a replay would do, according to the projection."""
    topic = "" if letter is None else letter.original_topic or ""
    detail = "no dead letter there" if letter is None else "would be replayed"
    return ReplayResult(partition, offset, topic, bool(topic), detail)
