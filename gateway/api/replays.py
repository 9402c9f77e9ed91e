"""Operator routes for replays of processed deliveries."""

from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from headwater.gateway.api.auditing import note
from headwater.gateway.api.builtin_instances import BuiltinInstances, result_of_last, state_of
from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.limited_bodies import BodySize
from headwater.gateway.api.moments import moment_of
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.builtin.replay_instances import PAGE, REPLAY, Progress, ReplayParams
from headwater.projections.deliveries.replaying import Selection, matched
from headwater.projections.postgres.reader import PooledReader

_IDS_MAX: Final = 10_000
_TEXT_CHARS: Final = 512
_RATE_MAX: Final = 100_000
_OFFSET_MAX: Final = 2**63 - 1

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=_TEXT_CHARS)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=_OFFSET_MAX)]


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to replay: those that match all filters; without filters, all deliveries.

    `since` and `until` are RFC 3339 and refer to the time of receipt. `from` and `to` are offsets
    of the partition, inclusive. `rate` is in deliveries a second.
    """

    ids: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=_IDS_MAX)] | None = None
    source: _Text | None = None
    type: _Text | None = None
    user_id: _Text | None = None
    since: str | None = None
    until: str | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    from_: _Offset | None = msgspec.field(default=None, name="from")
    to: _Offset | None = None
    rate: Annotated[int, msgspec.Meta(ge=1, le=_RATE_MAX)] | None = None
    dry_run: bool = False


class InstanceNamed(msgspec.Struct, frozen=True):
    """An instance of a workflow."""

    workflow: str
    id: str


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replay.

    `state` is running, done or failed; a dry run is done immediately. `gone` counts deliveries
    whose bytes the log no longer has.
    """

    id: str
    state: str
    dry_run: bool
    matched: int
    replayed: int
    gone: int
    instance: InstanceNamed


def replay_routes(reader: PooledReader, builtin: BuiltinInstances) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/replays."""

    @post(
        "/replays",
        audit="instances.replay",
        body=BodySize.IDS,
        status_code=202,
        summary="Replay deliveries: process them again",
        description="Selects deliveries by ids, source, type, user, time or offsets; a dry run "
        "counts them. A replay is a workflow instance, which continues after its last page when a "
        "worker is killed. Rows that the deliveries set already do not change; workflows are not "
        "started again.",
        responses=problem_responses("broker_unavailable", "overloaded", "store_unavailable"),
    )
    async def replay(request: AnyRequest, data: JSONBody[ReplayOrder]) -> ReplayState:
        note(request, workflow=REPLAY, dry_run=data.dry_run)
        selection = _selection(data, builtin.now())
        params = ReplayParams(
            selection=selection,
            matched=await matched(reader, selection),
            user_id=selection.user_id,
            rate=data.rate or 0,
            dry_run=data.dry_run,
        )
        replay_id = await builtin.begin(REPLAY, params)
        note(request, run_id=replay_id)
        return _state(replay_id, "running", params, Progress())

    @get(
        "/replays/{replay_id:str}",
        summary="Get the progress of a replay",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(replay_id: FromPath[str]) -> ReplayState:
        instance, params = await builtin.find(REPLAY, replay_id, ReplayParams)
        entries = await builtin.latest_entries(REPLAY, instance)
        progress = result_of_last(PAGE, entries, Progress) or Progress()
        return _state(replay_id, state_of(instance, "running"), params, progress)

    return [replay, look]


def _selection(order: ReplayOrder, now: str) -> Selection:
    if (order.from_ is None and order.to is None) is (order.partition is not None):
        detail = "expected partition with from or to, found one without the other"
        raise Problem("invalid_parameter", detail, field="partition")
    ids = {f"ids[{number}]": text for number, text in enumerate(order.ids or ())}
    check_texts(_TEXT_CHARS, source=order.source, type=order.type, user_id=order.user_id, **ids)
    since, until = moment_of("since", order.since), moment_of("until", order.until)
    return Selection(
        until=now if until is None else until.isoformat(),
        ids=order.ids,
        source=order.source,
        type=order.type,
        user_id=order.user_id,
        since=None if since is None else since.isoformat(),
        partition=order.partition,
        from_offset=order.from_ or 0,
        to_offset=_OFFSET_MAX if order.to is None else order.to,
    )


def _state(replay_id: str, state: str, params: ReplayParams, progress: Progress) -> ReplayState:
    return ReplayState(
        id=replay_id,
        state="done" if params.dry_run else state,
        dry_run=params.dry_run,
        matched=params.matched,
        replayed=progress.replayed,
        gone=progress.gone,
        instance=InstanceNamed(REPLAY, replay_id),
    )
