"""The workflow that replays deliveries page by page; each replay is an instance.

A page that was in progress when a worker was killed is appended again, which is idempotent.
"""

from typing import TYPE_CHECKING, Any, Final

from headwater.gateway.builtin.paging import process_pages
from headwater.gateway.builtin.replay_instances import PAGE, REPLAY, Progress, ReplayParams
from headwater.projections.deliveries.replaying import FIRST
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.gateway.builtin.delivery_replays import DeliveryReplays

_PAGE_MAX: Final = 500


def replay_workflow(deliveries: "Callable[[], Awaitable[DeliveryReplays]]") -> Workflow:
    """Return the workflow."""

    async def replay(event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        params, replay_id = event.payload, event.instance_id
        if params.dry_run:
            return {"matched": params.matched, "replayed": 0, "gone": 0}
        limit = min(params.rate, _PAGE_MAX) or _PAGE_MAX

        async def page(so_far: Progress) -> Progress:
            replays = await deliveries()
            rows = await replays.page(params.selection, so_far.after or FIRST, limit)
            replayed = await replays.append(rows, replay_id)
            return Progress(
                replayed=so_far.replayed + replayed,
                gone=so_far.gone + len(rows) - replayed,
                after=rows[-1].cursor if len(rows) == limit else None,
            )

        pause_ms = round(1_000 * limit / params.rate) if params.rate else 0
        done = await process_pages(step, PAGE, Progress(), page, pause_ms)
        return {"matched": params.matched, "replayed": done.replayed, "gone": done.gone}

    return Workflow(REPLAY, replay, strict=False)
