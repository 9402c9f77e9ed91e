"""The workflow that removes instances past their retention, a page after the other.

A page that was under way when a worker was killed is deleted again; what begins under one of its
ids meanwhile is newer than what Postgres knew, and stays.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from headwater.gateway.house.outside import PrunesInstances
from headwater.gateway.house.paging import UNTIL_IT_WORKS, through_pages
from headwater.gateway.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.projections.workflows.expired import FIRST
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: Commands of one call.
_PAGE_MAX: Final = 100
#: The whole history is read.
_ERASE_TIMEOUT: Final = "6 hours"


def prune_workflow(instances: Callable[[], Awaitable[PrunesInstances]]) -> Workflow:
    """The workflow, over the instances that there are.

    It deletes what is past its retention, and has the log forget it.
    """

    async def prune(event: WorkflowEvent[PruneParams], step: Step) -> dict[str, Any]:
        async def page(so_far: Pruned) -> Pruned:
            found = await instances()
            some = await found.expired(event.payload.asked, so_far.after or FIRST, _PAGE_MAX)
            deleted = await found.delete_unchanged(some) if some else 0
            return Pruned(
                deleted=so_far.deleted + deleted,
                kept=so_far.kept + len(some) - deleted,
                after=some[-1].cursor if len(some) == _PAGE_MAX else None,
            )

        async def erase() -> int:
            return await (await instances()).erase()

        done = await through_pages(step, PAGE, Pruned(), page)
        records = 0
        if done.deleted:
            records = await step.do(ERASE, erase, retries=UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        return {"deleted": done.deleted, "kept": done.kept, "records": records}

    return Workflow(PRUNE, prune, strict=False)
