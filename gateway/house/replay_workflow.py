"""The workflow that replays deliveries, a page after the other; an instance a replay.

Its progress is the state of its loop: a worker that is killed goes on behind the last page. A page
that was under way is appended again, which changes nothing.
"""

from math import inf
from typing import Any, Final

import msgspec

from headwater.gateway.house.outside import Replays
from headwater.gateway.replay_instances import PAGE, REPLAY, Progress, ReplayParams
from headwater.projections.deliveries.replaying import FIRST, Selection
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

_PAGE_MAX: Final = 500
_PAGE_TIMEOUT: Final = "10 minutes"
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")
#: Pages that stay to be looked at.
_KEPT: Final = 10


class ReplayWorkflow:
    """The workflow, over what it needs of the outside."""

    def __init__(self, outside: Replays) -> None:
        self._outside = outside

    @property
    def workflow(self) -> Workflow:
        """The workflow itself."""
        return Workflow(REPLAY, self.replay, strict=False)

    async def replay(self, event: WorkflowEvent[ReplayParams], step: Step) -> dict[str, Any]:
        """Replays all that was selected."""
        params, replay_id = event.payload, event.instance_id

        async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
            return await self._page(step, params, replay_id, msgspec.convert(plain, Progress))

        plain = await step.loop(
            "pages",
            turn,
            state=_plain(Progress()),
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )
        done = msgspec.convert(plain, Progress)
        return {"matched": params.matched, "replayed": done.replayed, "gone": done.gone}

    async def _page(
        self, step: Step, params: ReplayParams, replay_id: str, so_far: Progress
    ) -> Continue | Break:
        limit = min(params.rate, _PAGE_MAX) or _PAGE_MAX

        async def page() -> dict[str, Any]:
            return _plain(await self._replay_page(params.selection, replay_id, so_far, limit))

        plain = await step.do(PAGE, page, retries=_UNTIL_IT_WORKS, timeout=_PAGE_TIMEOUT)
        if msgspec.convert(plain, Progress).after is None:
            return Break(plain)
        if params.rate:
            await step.sleep("pace", round(1_000 * limit / params.rate))
        return Continue(plain)

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


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
