"""What operators do with instances past their retention: count, remove, and see how far it is."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from headwater.gateway.http.openapi import problem_responses
from headwater.gateway.http.own_instances import looked_at, started
from headwater.gateway.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.expired import Expiry, expired_counts
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Commands

#: Entries of a prune that are looked through for the last page.
_LOOKED_AT: Final = 10

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


def prune_routes(
    reader: PooledReader,
    *,
    commands: Commands,
    workflows: Workflows,
    new_id: Callable[[], str],
    clock: Callable[[], int],
) -> list[HTTPRouteHandler]:
    """The routes under /admin/prunes."""

    @post(
        "/prunes",
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
    async def prune(data: JSONBody[PruneOrder]) -> Response[PruneState]:
        until = datetime.fromtimestamp(clock() / 1000, UTC).isoformat()
        asked = Expiry(until=until, workflow=data.workflow)
        counts = await expired_counts(reader, asked)
        matched = sum(counts.values())
        if data.dry_run:
            found = PruneState(id=None, state="dry_run", matched=matched, by_workflow=counts)
            return Response(found, status_code=200)
        prune_id = new_id()
        params = PruneParams(asked=asked, matched=matched)
        await started(commands, workflows, PRUNE, prune_id, params)
        return Response(PruneState(id=prune_id, state="deleting", matched=matched), status_code=202)

    @get(
        "/prunes/{prune_id:str}",
        summary="How far a prune is",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(prune_id: FromPath[str]) -> PruneState:
        instance, params = await looked_at(workflows, PRUNE, prune_id, PruneParams)
        return await _state(workflows, instance, params.matched)

    return [prune, look]


async def _state(workflows: Workflows, instance: Instance, matched: int) -> PruneState:
    run = RunKey(PRUNE, instance.id, instance.meta.run_number)
    page = await workflows.steps(run, order="desc", limit=_LOOKED_AT)
    state, far, records = "deleting", Pruned(), None
    for entry in page.rows:
        if entry.name == ERASE:
            state, records = "erasing", entry.result and int(entry.result)
        elif entry.name == PAGE and entry.result is not None:
            far = msgspec.json.decode(entry.result, type=Pruned)
            break
    if instance.details.ended:
        state = "done" if instance.details.status is RunStatus.COMPLETE else "failed"
    return PruneState(
        id=instance.id,
        state=state,
        matched=matched,
        deleted=far.deleted,
        kept=far.kept,
        records=records or (0 if state == "done" else None),
    )
