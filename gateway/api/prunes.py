"""Operator routes for prunes: count or delete instances past their retention."""

from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from headwater.gateway.api.auditing import note
from headwater.gateway.api.builtin_instances import BuiltinInstances, result_of_last, state_of
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.builtin.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.expired import Expiry, expired_counts
from headwater.schemas.answers import Instance

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


def prune_routes(reader: PooledReader, builtin: BuiltinInstances) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/prunes."""

    @post(
        "/prunes",
        audit="instances.prune",
        status_code=202,
        summary="Delete instances past their retention",
        description="Deletes their rows, snapshots, worker state and history; a dry run (200) "
        "counts them by workflow. An instance that changes meanwhile, for example by a restart, is "
        "kept. A prune is a workflow instance, which continues after its last page when a worker "
        "is killed. Without HEADWATER_RETENTION, no instance has a retention.",
        responses={
            200: ResponseSpec(PruneState, description="The counts of a dry run."),
            **problem_responses("broker_unavailable", "overloaded", "store_unavailable"),
        },
    )
    async def prune(request: AnyRequest, data: JSONBody[PruneOrder]) -> Response[PruneState]:
        note(request, workflow=PRUNE, dry_run=data.dry_run)
        expiry = Expiry(until=builtin.now(), workflow=data.workflow)
        counts = await expired_counts(reader, expiry)
        matched = sum(counts.values())
        if data.dry_run:
            state = PruneState(id=None, state="dry_run", matched=matched, by_workflow=counts)
            return Response(state, status_code=200)
        prune_id = await builtin.begin(PRUNE, PruneParams(asked=expiry, matched=matched))
        note(request, run_id=prune_id)
        return Response(PruneState(id=prune_id, state="deleting", matched=matched), status_code=202)

    @get(
        "/prunes/{prune_id:str}",
        summary="Get the state of a prune",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(prune_id: FromPath[str]) -> PruneState:
        instance, params = await builtin.find(PRUNE, prune_id, PruneParams)
        return await _state(builtin, instance, params.matched)

    return [prune, look]


async def _state(builtin: BuiltinInstances, instance: Instance, matched: int) -> PruneState:
    entries = await builtin.latest_entries(PRUNE, instance)
    progress = result_of_last(PAGE, entries, Pruned) or Pruned()
    erase = next((entry for entry in entries if entry.name == ERASE), None)
    state = state_of(instance, "deleting" if erase is None else "erasing")
    records = int(erase.result) if erase is not None and erase.result else None
    return PruneState(
        id=instance.id,
        state=state,
        matched=matched,
        deleted=progress.deleted,
        kept=progress.kept,
        records=records or (0 if state == "done" else None),
    )
