"""What operators ask: dead letters and their replay, journeys, outcomes, freshness."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from litestar import Router, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from headwater.gateway.http.auditing import note
from headwater.gateway.http.checked_parameters import checked_parameters
from headwater.gateway.http.deliveries import delivery_routes
from headwater.gateway.http.json_bodies import OrderRequest, check_texts
from headwater.gateway.http.keys import operators_only
from headwater.gateway.http.limited_bodies import BodySize, LimitedBodies
from headwater.gateway.http.lineage import lineage_routes
from headwater.gateway.http.moments import moment_of
from headwater.gateway.http.openapi import ADMIN_KEY, problem_responses
from headwater.gateway.http.ports import DeliveryLog, Replays
from headwater.gateway.http.problems import Problem
from headwater.gateway.http.raw_events import raw_event_routes
from headwater.gateway.http.request_scope import AnyRequest
from headwater.gateway.http.users_looked_at import user_routes
from headwater.processors.providers.provider import Providers
from headwater.projections.deliveries.queries import (
    DeadLetter,
    DeadLetterPage,
    DeadLetterWhole,
    Outcome,
    OutcomeCount,
    Position,
    ProjectionError,
    Reader,
    Trace,
)
from headwater.projections.postgres.reader import PAGE_MAX
from headwater.projections.workflows.counts import InstanceCount, instance_counts

_PAGE_DEFAULT: Final = 50
_PROBLEMS: Final = problem_responses("store_unavailable")

#: Dead letters of one replay: each is read and appended by itself, some milliseconds.
REPLAYS_MAX: Final = 1000

#: Of why a dead letter is dead: ours have some thirty.
_REASON_CHARS: Final = 256

Limit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many, at most.")]


class Level(StrEnum):
    """Of a journey: `error` if it ended dead."""

    INFO = "info"
    ERROR = "error"


class Status(StrEnum):
    """What became of a delivery."""

    PROCESSED = "processed"
    SKIPPED = "skipped"
    PARKED = "parked"
    DEAD = "dead"


class State(StrEnum):
    """Of what is in the way: dead letters, deliveries that wait for their user, or both."""

    DEAD = "dead"
    PARKED = "parked"
    ALL = "all"


class DeadLetterPosition(msgspec.Struct, frozen=True):
    """A dead letter, named by its place in the topic dead-letters."""

    partition: Annotated[int, msgspec.Meta(ge=0)]
    offset: Annotated[int, msgspec.Meta(ge=0)]


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters to replay: those named, or all that never were (of one reason).

    All come a page at a time: the next one begins after `next` of the answer.
    """

    positions: Annotated[tuple[DeadLetterPosition, ...], msgspec.Meta(max_length=REPLAYS_MAX)] = ()
    all: bool = False
    reason: str | None = None
    after: DeadLetterPosition | None = None
    dry_run: bool = False


class ReplayResult(msgspec.Struct, frozen=True):
    """What came of one dead letter."""

    partition: int
    offset: int
    topic: str
    ok: bool
    detail: str


class ReplayAnswer(msgspec.Struct, frozen=True):
    """What came of a replay; `next` when there may be more, of all that were asked for."""

    dry_run: bool
    replayed: int
    failed: int
    next: DeadLetterPosition | None
    results: list[ReplayResult]


class Traces(msgspec.Struct, frozen=True):
    """Journeys, the newest first."""

    traces: list[Trace]


class Outcomes(msgspec.Struct, frozen=True):
    """How many deliveries came to which end."""

    outcomes: list[OutcomeCount]


class Instances(msgspec.Struct, frozen=True):
    """How many instances of each workflow stand in which way."""

    instances: list[InstanceCount]


class Projections(msgspec.Struct, frozen=True):
    """How far the projections are, and what they could not take."""

    positions: list[Position]
    errors: list[ProjectionError]


def admin_routes(  # noqa: PLR0913 (all that operators look at)
    reader: Reader,
    log: DeliveryLog,
    replays: Replays,
    providers: Providers,
    *,
    key: str,
    limited: LimitedBodies,
    more: Sequence[HTTPRouteHandler],
) -> Router:
    """The routes under /admin; more are those that somebody else has composed."""
    handlers = [
        *_dead_letter_routes(reader, replays),
        *_journey_routes(reader),
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
        request_class=OrderRequest,
        request_max_body_size=None,
        guards=[operators_only(key), checked_parameters],
        security=[{ADMIN_KEY: []}],
        tags=["operate"],
    )


def _dead_letter_routes(reader: Reader, replays: Replays) -> list[HTTPRouteHandler]:
    @get(
        "/dlq",
        summary="Dead letters, newest first",
        description="With `state=parked` deliveries that wait for their user, with `all` both.",
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def dead_letters(
        wanted: Annotated[
            State, QueryParameter(name="state", description="Which of the two.")
        ] = State.DEAD,
        limit: Limit = _PAGE_DEFAULT,
        after: Annotated[
            str | None, QueryParameter(description="The cursor of the previous page.")
        ] = None,
    ) -> DeadLetterPage:
        states = (State.DEAD, State.PARKED) if wanted is State.ALL else (wanted,)
        return await reader.dead_letters(limit=limit, after=after, states=states)

    @get(
        "/dlq/{partition:int}/{offset:int}",
        summary="One dead letter, whole",
        description="Key and value are base64 of the bytes as they were read.",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def dead_letter(partition: FromPath[int], offset: FromPath[int]) -> DeadLetterWhole:
        found = await reader.dead_letter(partition, offset)
        if found is None:
            raise Problem("not_found", f"There is no dead letter at {partition}/{offset}.")
        return found

    @post(
        "/dlq/replay",
        body=BodySize.POSITIONS,
        audit="dead_letters.replay",
        status_code=200,
        summary="Put dead letters back where they came from",
        description=f"At most {REPLAYS_MAX} in one request. Replaying again is safe: rows and "
        "outcomes converge.",
        responses=problem_responses("broker_unavailable", "store_unavailable"),
    )
    async def replay(request: AnyRequest, data: JSONBody[ReplayRequest]) -> ReplayAnswer:
        note(request, dry_run=data.dry_run)
        return await _replay(reader, replays, data)

    return [dead_letters, dead_letter, replay]


def _journey_routes(reader: Reader) -> list[HTTPRouteHandler]:
    @get(
        "/traces",
        summary="Journeys of deliveries, newest first",
        responses=problem_responses("invalid_parameter", "store_unavailable"),
    )
    async def traces(
        request_id: FromQuery[str | None] = None,
        user_id: FromQuery[str | None] = None,
        level: FromQuery[Level | None] = None,
        limit: Limit = _PAGE_DEFAULT,
    ) -> Traces:
        found = await reader.traces(
            request_id=request_id, user_id=user_id, level=level, limit=limit
        )
        return Traces(found)

    @get(
        "/outcomes",
        summary="How many deliveries came to which end",
        responses=problem_responses("invalid_parameter", "store_unavailable"),
    )
    async def outcomes(
        status: FromQuery[Status | None] = None,
        since: Annotated[
            str | None, QueryParameter(description="Only deliveries received since then: RFC 3339.")
        ] = None,
    ) -> Outcomes:
        found = await reader.outcome_counts(moment_of("since", since))
        return Outcomes([one for one in found if status in (None, one.status)])

    @get(
        "/outcomes/{event_id:str}",
        summary="What became of one delivery",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def outcome(event_id: FromPath[str]) -> Outcome:
        found = await reader.outcome(event_id)
        if found is None:
            raise Problem("not_found", f"No outcome of {event_id[:64]} is known (yet).")
        return found

    @get(
        "/instances",
        summary="How many instances of workflows there are, and how they stand",
        responses=_PROBLEMS,
    )
    async def instances() -> Instances:
        return Instances(await instance_counts(reader))

    @get("/projections", summary="How far the projections are", responses=_PROBLEMS)
    async def projections(limit: Limit = _PAGE_DEFAULT) -> Projections:
        return Projections(
            await reader.projection_positions(), await reader.projection_errors(limit=limit)
        )

    return [traces, outcomes, outcome, instances, projections]


async def _replay(reader: Reader, replays: Replays, request: ReplayRequest) -> ReplayAnswer:
    if request.all == bool(request.positions):
        raise Problem("invalid_parameter", "expected either positions or all", field="positions")
    check_texts(_REASON_CHARS, reason=request.reason)
    positions = [(one.partition, one.offset) for one in request.positions]
    pending: list[DeadLetter] = []
    next_page = None
    if request.all:
        pending, next_page = await _pending(reader, request)
        positions = [(one.partition, one.offset) for one in pending]
    if request.dry_run and request.all:
        results = [_rehearsed(one.partition, one.offset, one) for one in pending]
    elif request.dry_run:
        found = [(*place, await reader.dead_letter(*place)) for place in positions]
        results = [_rehearsed(*one) for one in found]
    else:
        results = [
            ReplayResult(one.partition, one.offset, one.topic, one.ok, one.detail)
            for one in await replays.replay(positions)
        ]
    replayed = sum(one.ok for one in results)
    return ReplayAnswer(request.dry_run, replayed, len(results) - replayed, next_page, results)


async def _pending(
    reader: Reader, request: ReplayRequest
) -> tuple[list[DeadLetter], DeadLetterPosition | None]:
    """A page of the dead letters that were never replayed, and where the next one begins."""
    begin = request.after
    after = (-1, -1) if begin is None else (begin.partition, begin.offset)
    page = await reader.pending_dead_letters(limit=REPLAYS_MAX, after=after)
    wanted = [one for one in page if request.reason in (None, one.reason)]
    last = page[-1] if len(page) == REPLAYS_MAX else None
    return wanted, DeadLetterPosition(last.partition, last.offset) if last else None


def _rehearsed(partition: int, offset: int, found: DeadLetter | None) -> ReplayResult:
    """What a replay would do, as far as the projection knows."""
    topic = "" if found is None else found.original_topic or ""
    detail = "no dead letter there" if found is None else "would be replayed"
    return ReplayResult(partition, offset, topic, bool(topic), detail)
