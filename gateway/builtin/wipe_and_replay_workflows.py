"""Workflows that replay deliveries, and that delete instances: of a wiped user, or old ones.

Prunes and replays work page by page. After a crash, they continue after the last completed page; a
page in progress is repeated. A delivery that is appended again changes nothing. An instance that
starts under the id of a deleted one meanwhile is newer than the row in Postgres, and is kept.
"""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from headwater.gateway.builtin.instances import (
    ERASE,
    PAGE,
    PRUNE,
    REPLAY,
    PageProgress,
    PruneParams,
    ReplayParams,
)
from headwater.processors.wipes import FORGET, ForgetParams, ForgetResult
from headwater.projections.deliveries.replaying import Matched
from headwater.projections.workflows.instances import Expired
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from headwater.gateway.builtin.bulk_operations import DeliveryReplays, InstanceDeletion

#: Handles the page after a cursor; returns its rows, and how many of them were done.
HandlePage: TypeAlias = Callable[
    [Sequence[str]], Awaitable[tuple[Sequence[Matched | Expired], int]]
]

_PAGE_TIMEOUT: Final = "10 minutes"
#: Latest pages that are kept in the history for inspection.
_KEPT: Final = 10
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")


async def process_pages(
    step: Step, page: HandlePage, size: int, *, pause_ms: int = 0
) -> PageProgress:
    """Handle pages, each in a step, until one has fewer rows than `size`; pause between them."""

    async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
        before = msgspec.convert(plain, PageProgress)

        async def once() -> Any:  # noqa: ANN401
            rows, done = await page(before.after or ())
            progress = PageProgress(
                done=before.done + done,
                skipped=before.skipped + len(rows) - done,
                after=rows[-1].cursor if len(rows) == size else None,
            )
            return msgspec.to_builtins(progress)

        plain = await step.do(PAGE, once, retries=_UNTIL_IT_WORKS, timeout=_PAGE_TIMEOUT)
        if plain["after"] is None:
            return Break(plain)
        if pause_ms:
            await step.sleep("pace", pause_ms)
        return Continue(plain)

    plain = await step.loop(
        "pages",
        turn,
        state=msgspec.to_builtins(PageProgress()),
        commit_interval=1,
        history_every=_KEPT,
        history_keep=_KEPT,
    )
    return msgspec.convert(plain, PageProgress)


# -- replay

_REPLAY_PAGE_MAX: Final = 500


def replay_workflow(deliveries: "Callable[[], Awaitable[DeliveryReplays]]") -> Workflow:
    """Return the workflow."""

    async def replay(event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        params, progress = event.payload, PageProgress()
        size = min(params.rate or _REPLAY_PAGE_MAX, _REPLAY_PAGE_MAX)
        pause_ms = round(1_000 * size / params.rate) if params.rate else 0

        async def page(after: Sequence[str]) -> tuple[Sequence[Matched], int]:
            return await (await deliveries()).replay_page(params, after, size, event.instance_id)

        if not params.dry_run:
            progress = await process_pages(step, page, size, pause_ms=pause_ms)
        return {"matched": params.matched, "replayed": progress.done, "gone": progress.skipped}

    return Workflow(REPLAY, replay, strict=False)


# -- prune

#: Instances of a page; their commands are sent as one batch.
_PRUNE_PAGE_MAX: Final = 100
#: This step reads the whole history topic.
_ERASE_TIMEOUT: Final = "6 hours"


def prune_workflow(instances: "Callable[[], Awaitable[InstanceDeletion]]") -> Workflow:
    """Return the workflow; it deletes instances past their retention and erases their history."""

    async def prune(event: WorkflowEvent[PruneParams], step: Step) -> dict[str, Any]:
        async def page(after: Sequence[str]) -> tuple[Sequence[Expired], int]:
            return await (await instances()).prune_page(event.payload, after, _PRUNE_PAGE_MAX)

        async def erase() -> int:
            return await (await instances()).erase()

        progress = await process_pages(step, page, _PRUNE_PAGE_MAX)
        records = 0
        if progress.done:
            records = await step.do(ERASE, erase, retries=_UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        return {"deleted": progress.done, "kept": progress.skipped, "records": records}

    return Workflow(PRUNE, prune, strict=False)


# -- wipe

_FORGET_RETRY: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy system need to catch up; then the step is retried.
_FORGET_TIMEOUT: Final = "10 minutes"


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
        records = await step.do(ERASE, erase, retries=_FORGET_RETRY, timeout=_ERASE_TIMEOUT)
        forgotten: dict[str, Any] = msgspec.to_builtins(ForgetResult(deleted, records))
        return forgotten

    return Workflow(FORGET, forget, strict=False)
