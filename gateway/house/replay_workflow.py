"""The workflow that replays deliveries, a page after the other; an instance a replay.

A page that was under way when a worker was killed is appended again, which changes nothing.
"""

from typing import TYPE_CHECKING, Any, Final

from headwater.gateway.house.paging import through_pages
from headwater.gateway.replay_instances import PAGE, REPLAY, Progress, ReplayParams
from headwater.projections.deliveries.replaying import FIRST
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.gateway.house.deliveries_again import DeliveriesAgain

_PAGE_MAX: Final = 500


def replay_workflow(deliveries: "Callable[[], Awaitable[DeliveriesAgain]]") -> Workflow:
    """The workflow, over the deliveries that there are."""

    async def replay(event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        params, replay_id = event.payload, event.instance_id
        if params.dry_run:
            return {"matched": params.matched, "replayed": 0, "gone": 0}
        limit = min(params.rate, _PAGE_MAX) or _PAGE_MAX

        async def page(so_far: Progress) -> Progress:
            found = await deliveries()
            some = await found.page(params.selection, so_far.after or FIRST, limit)
            replayed = await found.again(some, replay_id)
            return Progress(
                replayed=so_far.replayed + replayed,
                gone=so_far.gone + len(some) - replayed,
                after=some[-1].cursor if len(some) == limit else None,
            )

        pause_ms = round(1_000 * limit / params.rate) if params.rate else 0
        done = await through_pages(step, PAGE, Progress(), page, pause_ms)
        return {"matched": params.matched, "replayed": done.replayed, "gone": done.gone}

    return Workflow(REPLAY, replay, strict=False)
