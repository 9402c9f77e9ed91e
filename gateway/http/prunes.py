"""What operators do with instances past their retention: count, remove, and see how far it is."""

from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from headwater.gateway.http.auditing import note
from headwater.gateway.http.openapi import problem_responses
from headwater.gateway.http.own_instances import OwnInstances, result_of_last, state_of
from headwater.gateway.http.request_scope import AnyRequest
from headwater.gateway.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.expired import Expiry, expired_counts
from headwater.schemas.answers import Instance

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=WORKFLOW_NAME_MAX)]


class PruneOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which instances to remove: those past their retention, of one workflow or of all."""

    workflow: _Name | None = None
    dry_run: bool = False


class PruneState(msgspec.Struct, frozen=True, kw_only=True):
    """A prune.

    Shape:  state is deleting, erasing, done or failed; of a dry run it is dry_run, and there is no
            id. by_workflow is what a dry run has counted; kept counts instances to which something
            has happened since Postgres knew them; records is what Kafka removes when it compacts
            the log, known when it is done.
    """

    id: str | None
    state: str
    matched: int
    by_workflow: dict[str, int] = {}
    deleted: int = 0
    kept: int = 0
    records: int | None = None


def prune_routes(reader: PooledReader, own: OwnInstances) -> list[HTTPRouteHandler]:
    """The routes under /admin/prunes."""

    @post(
        "/prunes",
        audit="instances.prune",
        status_code=202,
        summary="Remove instances that are past their retention",
        description="From rows, snapshots, the stores of workers and the log; a dry run (200) "
        "counts them by workflow. An instance to which something happens meanwhile, such as a "
        "restart, stays. A prune is an instance of a workflow, which goes on behind its last page "
        "when a worker is killed. Without HEADWATER_RETENTION nothing is ever past it.",
        responses={
            200: ResponseSpec(PruneState, description="What a dry run counted."),
            **problem_responses("broker_unavailable", "overloaded", "store_unavailable"),
        },
    )
    async def prune(request: AnyRequest, data: JSONBody[PruneOrder]) -> Response[PruneState]:
        note(request, workflow=PRUNE, dry_run=data.dry_run)
        asked = Expiry(until=own.now(), workflow=data.workflow)
        counts = await expired_counts(reader, asked)
        matched = sum(counts.values())
        if data.dry_run:
            found = PruneState(id=None, state="dry_run", matched=matched, by_workflow=counts)
            return Response(found, status_code=200)
        prune_id = await own.begin(PRUNE, PruneParams(asked=asked, matched=matched))
        note(request, run_id=prune_id)
        return Response(PruneState(id=prune_id, state="deleting", matched=matched), status_code=202)

    @get(
        "/prunes/{prune_id:str}",
        summary="How far a prune is",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(prune_id: FromPath[str]) -> PruneState:
        instance, params = await own.find(PRUNE, prune_id, PruneParams)
        return await _state(own, instance, params.matched)

    return [prune, look]


async def _state(own: OwnInstances, instance: Instance, matched: int) -> PruneState:
    entries = await own.latest_entries(PRUNE, instance)
    far = result_of_last(PAGE, entries, Pruned) or Pruned()
    erase = next((each for each in entries if each.name == ERASE), None)
    state = state_of(instance, "deleting" if erase is None else "erasing")
    records = int(erase.result) if erase is not None and erase.result else None
    return PruneState(
        id=instance.id,
        state=state,
        matched=matched,
        deleted=far.deleted,
        kept=far.kept,
        records=records or (0 if state == "done" else None),
    )
