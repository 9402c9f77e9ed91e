"""The workflow that removes instances past their retention, a page after the other.

A page that was under way when a worker was killed is deleted again; what begins under one of its
ids meanwhile is newer than what Postgres knew, and stays.
"""

from typing import Any, Final

from headwater.gateway.house.outside import Prunes
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


class PruneWorkflow:
    """The workflow, over what it needs of the outside."""

    def __init__(self, outside: Prunes) -> None:
        self._outside = outside

    @property
    def workflow(self) -> Workflow:
        """The workflow itself."""
        return Workflow(PRUNE, self.prune, strict=False)

    async def prune(self, event: WorkflowEvent[PruneParams], step: Step) -> dict[str, Any]:
        """Deletes what is past its retention, and has the log forget it."""
        params = event.payload

        async def page(so_far: Pruned) -> Pruned:
            return await self._delete_page(params, so_far)

        async def erase() -> int:
            return await (await self._outside.pruning()).erase()

        done = await through_pages(step, PAGE, Pruned(), page)
        records = 0
        if done.deleted:
            records = await step.do(ERASE, erase, retries=UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        return {"deleted": done.deleted, "kept": done.kept, "records": records}

    async def _delete_page(self, params: PruneParams, so_far: Pruned) -> Pruned:
        instances = await self._outside.pruning()
        page = await instances.expired(params.asked, so_far.after or FIRST, _PAGE_MAX)
        deleted = await instances.delete_unchanged(page) if page else 0
        return Pruned(
            deleted=so_far.deleted + deleted,
            kept=so_far.kept + len(page) - deleted,
            after=page[-1].place if len(page) == _PAGE_MAX else None,
        )
