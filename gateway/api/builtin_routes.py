"""Operations of built-in workflows: prunes of instances and replays of deliveries."""

from typing import Annotated, Any, Final

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from headwater.gateway.api.audit import note
from headwater.gateway.api.json_bodies import BodySize, check_texts
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.operations import Operations, operation_routes
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.builtin.instances import (
    PRUNE,
    REPLAY,
    InstanceNamed,
    PageProgress,
    PruneParams,
    ReplayOrder,
    ReplayParams,
)
from headwater.processors.api_keys import Scope
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.processors.wipes import digest
from headwater.projections.deliveries.replaying import TEXT_MAX, matched
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import Expiry, expired_counts

_BEGIN_PROBLEMS: Final = problem_responses("broker_unavailable", "overloaded", "store_unavailable")

# -- prunes

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=WORKFLOW_NAME_MAX)]


class PruneOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances to delete: those past their retention, of one workflow or of all."""

    workflow: _Name | None = None
    dry_run: bool = False


class PruneState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a prune.

    `state` is deleting, erasing, done or failed. A dry run has no `id`, the state dry_run, and
    counts in `by_workflow`. `kept` counts instances that changed after Postgres selected them.
    `records` is the number of history records that compaction will remove, known at the end.
    """

    id: str | None
    state: str
    matched: int
    by_workflow: dict[str, int] = {}
    deleted: int = 0
    kept: int = 0
    records: int | None = None


def prune_routes(reader: PooledReader, operations: Operations) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/prunes."""

    async def prune(request: AnyRequest, data: JSONBody[PruneOrder]) -> Response[PruneState]:
        selection = {"workflow": data.workflow} if data.workflow else None
        note(request, workflow=PRUNE, selection=selection, dry_run=data.dry_run)
        expiry = Expiry(until=operations.now(), workflow=data.workflow)
        counts = await expired_counts(reader, expiry)
        matched = sum(counts.values())
        note(request, count=matched)
        if data.dry_run:
            state = PruneState(id=None, state="dry_run", matched=matched, by_workflow=counts)
            return Response(state, status_code=200)
        params = PruneParams(**msgspec.structs.asdict(expiry), matched=matched)
        prune_id = await operations.begin(request, PRUNE, params)
        return Response(PruneState(id=prune_id, state="deleting", matched=matched))

    async def look(prune_id: FromPath[str]) -> PruneState:
        operation = await operations.find(PRUNE, prune_id, PruneParams)
        state, progress = operation.state, operation.progress
        return PruneState(
            id=prune_id,
            state="deleting" if state == "running" else state,
            matched=operation.params.matched,
            deleted=progress.done,
            kept=progress.skipped,
            records=operation.records or (0 if state == "done" else None),
        )

    return operation_routes(
        "/prunes",
        "prune",
        prune,
        look,
        looks_need=Scope.SYSTEM_READ,
        scope=Scope.INSTANCES_PRUNE,
        audit="instances.prune",
        audits_attempt=True,
        summary="Delete instances past their retention",
        description="Deletes their rows, snapshots, worker state and history; a dry run (200) "
        "counts them by workflow. An instance that changes meanwhile, for example by a restart, is "
        "kept. A prune is a workflow instance, which continues after its last page when a worker "
        "is killed. Without HEADWATER_RETENTION, no instance has a retention.",
        responses={
            200: ResponseSpec(PruneState, description="The counts of a dry run."),
            **_BEGIN_PROBLEMS,
        },
    )


# -- replays


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replay.

    `state` is running, done or failed; a dry run is done immediately. `gone` counts deliveries
    whose bytes the log no longer has. If nothing matched, there is no instance and no `id`.
    """

    id: str | None
    state: str
    dry_run: bool
    matched: int
    replayed: int
    gone: int
    instance: InstanceNamed | None


def replay_routes(reader: PooledReader, operations: Operations) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/replays."""

    async def replay(request: AnyRequest, data: JSONBody[ReplayOrder]) -> ReplayState:
        note(request, workflow=REPLAY, dry_run=data.dry_run)
        _check_selectors(data)
        order = _complete(data, operations.now())
        number = await matched(reader, order)
        user_sha256 = None if data.user_id is None else digest(data.user_id)
        note(request, selection=_selection(data, user_sha256), count=number)
        nameless = msgspec.structs.asdict(order) | {"user_id": None}
        params = ReplayParams(**nameless, user_sha256=user_sha256, matched=number)
        if not number:
            return _replay_state(None, "done", params, PageProgress())
        replay_id = await operations.begin(request, REPLAY, params)
        return _replay_state(replay_id, "running", params, PageProgress())

    async def look(replay_id: FromPath[str]) -> ReplayState:
        params, state, progress, _ = await operations.find(REPLAY, replay_id, ReplayParams)
        return _replay_state(replay_id, state, params, progress)

    return operation_routes(
        "/replays",
        "replay",
        replay,
        look,
        looks_need=Scope.DELIVERIES_READ,
        scope=Scope.DELIVERIES_WRITE,
        audit="instances.replay",
        audits_attempt=True,
        body=BodySize.IDS,
        summary="Replay deliveries: process them again",
        description="Selects deliveries by ids, source, type, user, time or offsets: at least one "
        "selector, or `all`, is required. A dry run counts them. A replay is a workflow instance, "
        "which continues after its last page when a worker is killed. Rows that the deliveries set "
        "already do not change; workflows are not started again.",
        responses={**_BEGIN_PROBLEMS, **problem_responses("no_selector", "invalid_parameter")},
    )


def _selection(order: ReplayOrder, user_sha256: str | None) -> dict[str, Any]:
    """Return the selectors of an order for the audit log, which does not name users."""
    fields = msgspec.to_builtins(order)
    user = None if user_sha256 is None else f"sha256:{user_sha256}"
    selectors = {**fields, "user_id": user, "dry_run": None}
    return {name: value for name, value in selectors.items() if value not in (None, False)}


def _check_selectors(order: ReplayOrder) -> None:
    selectors = order.selectors
    if not selectors and not order.all:
        raise Problem(
            "no_selector",
            "expected ids, source, type, user_id, since, until, or partition with from or to, or "
            '"all": true for all deliveries; found none of them',
        )
    if selectors and order.all:
        detail = f"expected all or selectors, found both: {', '.join(selectors)}"
        raise Problem("invalid_parameter", detail, field="all")


def _complete(order: ReplayOrder, now: str) -> ReplayOrder:
    """Return an order with complete times; deliveries that are received later never match."""
    if (order.from_ is None and order.to is None) is (order.partition is not None):
        detail = "expected partition with from or to, found one without the other"
        raise Problem("invalid_parameter", detail, field="partition")
    ids = {f"ids[{number}]": text for number, text in enumerate(order.ids or ())}
    check_texts(TEXT_MAX, source=order.source, type=order.type, user_id=order.user_id, **ids)
    since, until = moment_of("since", order.since), moment_of("until", order.until)
    return msgspec.structs.replace(
        order,
        since=None if since is None else since.isoformat(),
        until=now if until is None else until.isoformat(),
    )


def _replay_state(
    replay_id: str | None, state: str, params: ReplayParams, progress: PageProgress
) -> ReplayState:
    return ReplayState(
        id=replay_id,
        state="done" if params.dry_run else state,
        dry_run=params.dry_run,
        matched=params.matched,
        replayed=progress.done,
        gone=progress.skipped,
        instance=None if replay_id is None else InstanceNamed(REPLAY, replay_id),
    )
