"""The workflow that replays deliveries, a page after the other; an instance a replay.

A page that was under way when a worker was killed is appended again, which changes nothing.
"""

from typing import Any, Final

from headwater.gateway.house.outside import Replays
from headwater.gateway.house.paging import through_pages
from headwater.gateway.replay_instances import PAGE, REPLAY, Progress, ReplayParams
from headwater.projections.deliveries.replaying import FIRST, Selection
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

_PAGE_MAX: Final = 500


class ReplayWorkflow:
    """The workflow, over what it needs of the outside."""

    def __init__(self, outside: Replays) -> None:
        self._outside = outside

    @property
    def workflow(self) -> Workflow:
        """The workflow itself."""
        return Workflow(REPLAY, self.replay, strict=False)

    async def replay(self, event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        """Replays all that was selected; of a dry run nothing."""
        params, replay_id = event.payload, event.instance_id
        if params.dry_run:
            return {"matched": params.matched, "replayed": 0, "gone": 0}
        limit = min(params.rate, _PAGE_MAX) or _PAGE_MAX

        async def page(so_far: Progress) -> Progress:
            return await self._replay_page(params.selection, replay_id, so_far, limit)

        pause_ms = round(1_000 * limit / params.rate) if params.rate else 0
        done = await through_pages(step, PAGE, Progress(), page, pause_ms)
        return {"matched": params.matched, "replayed": done.replayed, "gone": done.gone}

    async def _replay_page(
        self, selection: Selection, replay_id: str, so_far: Progress, limit: int
    ) -> Progress:
        replays = await self._outside.replays()
        page = await replays.page(selection, so_far.after or FIRST, limit)
        replayed = await replays.again(page, replay_id)
        return Progress(
            replayed=so_far.replayed + replayed,
            gone=so_far.gone + len(page) - replayed,
            after=page[-1].place if len(page) == limit else None,
        )
