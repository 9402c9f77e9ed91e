"""The workflow that deletes instances past their retention, page by page.

A page that was in progress when a worker was killed is repeated. An instance that starts under one
of its ids meanwhile is newer than the row in Postgres, and is kept.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from headwater.gateway.builtin.paging import UNTIL_IT_WORKS, process_pages
from headwater.gateway.builtin.ports import InstancePruner
from headwater.gateway.builtin.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.projections.workflows.expired import FIRST
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: Instances of a page, whose commands are sent as one batch.
_PAGE_MAX: Final = 100
#: This step reads the whole history topic.
_ERASE_TIMEOUT: Final = "6 hours"


def prune_workflow(instances: Callable[[], Awaitable[InstancePruner]]) -> Workflow:
    """Return the workflow; it deletes instances past their retention and erases their history."""

    async def prune(event: WorkflowEvent[PruneParams], step: Step) -> dict[str, Any]:
        async def page(so_far: Pruned) -> Pruned:
            pruner = await instances()
            rows = await pruner.expired(event.payload.asked, so_far.after or FIRST, _PAGE_MAX)
            deleted = await pruner.delete_unchanged(rows) if rows else 0
            return Pruned(
                deleted=so_far.deleted + deleted,
                kept=so_far.kept + len(rows) - deleted,
                after=rows[-1].cursor if len(rows) == _PAGE_MAX else None,
            )

        async def erase() -> int:
            return await (await instances()).erase()

        done = await process_pages(step, PAGE, Pruned(), page)
        records = 0
        if done.deleted:
            records = await step.do(ERASE, erase, retries=UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        return {"deleted": done.deleted, "kept": done.kept, "records": records}

    return Workflow(PRUNE, prune, strict=False)
