"""The workflow that removes instances past their retention, a page after the other.

Its progress is the state of its loop: a worker that is killed goes on behind the last page. A page
that was under way is deleted again; what begins under one of its ids meanwhile is newer than what
Postgres knew, and stays.
"""

from math import inf
from typing import Any, Final

import msgspec

from headwater.gateway.house.outside import Prunes
from headwater.gateway.prune_instances import ERASE, PAGE, PRUNE, Pruned, PruneParams
from headwater.projections.workflows.expired import FIRST
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: Commands of one call.
_PAGE_MAX: Final = 100
_PAGE_TIMEOUT: Final = "10 minutes"
#: The whole history is read.
_ERASE_TIMEOUT: Final = "6 hours"
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")
#: Pages that stay to be looked at.
_KEPT: Final = 10


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

        async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
            so_far = msgspec.convert(plain, Pruned)

            async def page() -> dict[str, Any]:
                return _plain(await self._delete_page(params, so_far))

            plain = await step.do(PAGE, page, retries=_UNTIL_IT_WORKS, timeout=_PAGE_TIMEOUT)
            return Break(plain) if plain["after"] is None else Continue(plain)

        async def erase() -> int:
            return await (await self._outside.pruning()).erase()

        plain = await step.loop(
            "pages",
            turn,
            state=_plain(Pruned()),
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )
        done = msgspec.convert(plain, Pruned)
        records = 0
        if done.deleted:
            records = await step.do(ERASE, erase, retries=_UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
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


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
