"""Workflows that replay deliveries and delete instances, page by page.

After a crash, a workflow continues after the last completed page; a page in progress is repeated.
Repeating a page changes nothing.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from headwater.gateway.builtin.dependencies import InstancePruner
from headwater.gateway.builtin.instances import (
    ERASE,
    PRUNE,
    PRUNE_PAGE,
    REPLAY,
    REPLAY_PAGE,
    Pruned,
    PruneParams,
    ReplayParams,
    ReplayProgress,
)
from headwater.processors.wipes import FORGET, ForgetParams, ForgetResult
from headwater.projections.deliveries.replaying import FIRST as FIRST_DELIVERY
from headwater.projections.workflows.instances import FIRST as FIRST_INSTANCE
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from headwater.gateway.builtin.bulk_operations import DeliveryReplays, InstanceDeletion


_PAGE_TIMEOUT: Final = "10 minutes"
#: Latest pages that are kept in the history for inspection.
_KEPT: Final = 10
UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")


class PageProgress(Protocol):
    """Progress of the loop; a msgspec struct."""

    @property
    def after(self) -> object:
        """Cursor of the next page; None after the last page."""


F = TypeVar("F", bound=PageProgress)


async def process_pages(
    step: Step, name: str, progress: F, page: Callable[[F], Awaitable[F]], pause_ms: int = 0
) -> F:
    """Process pages, one step per page.

    Args:
        step: The workflow's step API.
        name: Name of the step.
        progress: Initial progress.
        page: Processes the page after a progress, and returns the new progress.
        pause_ms: Pause between pages in milliseconds.

    Returns:
        The progress after the last page.
    """
    kind = type(progress)

    async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
        before = msgspec.convert(plain, kind)

        async def once() -> Any:  # noqa: ANN401
            return msgspec.to_builtins(await page(before))

        plain = await step.do(name, once, retries=UNTIL_IT_WORKS, timeout=_PAGE_TIMEOUT)
        if msgspec.convert(plain, kind).after is None:
            return Break(plain)
        if pause_ms:
            await step.sleep("pace", pause_ms)
        return Continue(plain)

    plain = await step.loop(
        "pages",
        turn,
        state=msgspec.to_builtins(progress),
        commit_interval=1,
        history_every=_KEPT,
        history_keep=_KEPT,
    )
    return msgspec.convert(plain, kind)


# -- replay

_REPLAY_PAGE_MAX: Final = 500


def replay_workflow(deliveries: "Callable[[], Awaitable[DeliveryReplays]]") -> Workflow:
    """Return the workflow."""

    async def replay(event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        params, replay_id = event.payload, event.instance_id
        if params.dry_run:
            return {"matched": params.matched, "replayed": 0, "gone": 0}
        limit = min(params.rate, _REPLAY_PAGE_MAX) or _REPLAY_PAGE_MAX

        async def page(so_far: ReplayProgress) -> ReplayProgress:
            replays = await deliveries()
            rows = await replays.page(params.selection, so_far.after or FIRST_DELIVERY, limit)
            replayed = await replays.append(rows, replay_id)
            return ReplayProgress(
                replayed=so_far.replayed + replayed,
                gone=so_far.gone + len(rows) - replayed,
                after=rows[-1].cursor if len(rows) == limit else None,
            )

        pause_ms = round(1_000 * limit / params.rate) if params.rate else 0
        done = await process_pages(step, REPLAY_PAGE, ReplayProgress(), page, pause_ms)
        return {"matched": params.matched, "replayed": done.replayed, "gone": done.gone}

    return Workflow(REPLAY, replay, strict=False)


# -- prune

#: Instances of a page; their commands are sent as one batch.
_PRUNE_PAGE_MAX: Final = 100
#: This step reads the whole history topic.
_PRUNE_ERASE_TIMEOUT: Final = "6 hours"


def prune_workflow(instances: Callable[[], Awaitable[InstancePruner]]) -> Workflow:
    """Return the workflow; it deletes instances past their retention and erases their history.

    An instance that starts under one of the ids of a repeated page is newer than the row in
    Postgres, and is kept.
    """

    async def prune(event: WorkflowEvent[PruneParams], step: Step) -> dict[str, Any]:
        async def page(so_far: Pruned) -> Pruned:
            pruner = await instances()
            rows = await pruner.expired(
                event.payload.asked, so_far.after or FIRST_INSTANCE, _PRUNE_PAGE_MAX
            )
            deleted = await pruner.delete_unchanged(rows) if rows else 0
            return Pruned(
                deleted=so_far.deleted + deleted,
                kept=so_far.kept + len(rows) - deleted,
                after=rows[-1].cursor if len(rows) == _PRUNE_PAGE_MAX else None,
            )

        async def erase() -> int:
            return await (await instances()).erase()

        done = await process_pages(step, PRUNE_PAGE, Pruned(), page)
        records = 0
        if done.deleted:
            records = await step.do(
                ERASE, erase, retries=UNTIL_IT_WORKS, timeout=_PRUNE_ERASE_TIMEOUT
            )
        return {"deleted": done.deleted, "kept": done.kept, "records": records}

    return Workflow(PRUNE, prune, strict=False)


# -- forget

_FORGET_RETRY: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy system need to catch up; then the step is retried.
_FORGET_TIMEOUT: Final = "10 minutes"
#: This step reads the whole history topic.
_FORGET_ERASE_TIMEOUT: Final = "6 hours"


def forget_workflow(instances: "Callable[[], Awaitable[InstanceDeletion]]") -> Workflow:
    """Return the workflow that deletes instances about a user, after a wipe of their deliveries.

    It waits until no more instances about the user can start, deletes them, and erases their
    history.

    Its params have only a digest of the user's id, and its steps return numbers, so its history
    does not name the user. Its steps are idempotent: an interrupted step runs again and does what
    is left.
    """

    async def forget(event: WorkflowEvent[ForgetParams], step: Step) -> dict[str, Any]:
        params = event.payload

        async def settle() -> int:
            return await (await instances()).wait_until_settled(params)

        async def delete() -> int:
            return await (await instances()).delete(params, until_ms)

        async def erase() -> int:
            return await (await instances()).erase()

        until_ms = await step.do("settle", settle, retries=_FORGET_RETRY, timeout=_FORGET_TIMEOUT)
        deleted = await step.do("delete", delete, retries=_FORGET_RETRY, timeout=_FORGET_TIMEOUT)
        records = await step.do(
            "erase", erase, retries=_FORGET_RETRY, timeout=_FORGET_ERASE_TIMEOUT
        )
        forgotten: dict[str, Any] = msgspec.to_builtins(ForgetResult(deleted, records))
        return forgotten

    return Workflow(FORGET, forget, strict=False)
