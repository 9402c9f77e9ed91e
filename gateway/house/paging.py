"""Going through pages in a workflow: its progress is the state of a loop.

A worker that is killed goes on behind the last page; one that was under way is done again.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, Protocol, TypeVar

import msgspec

from headwater.streams.authoring.workflow_values import Break, Continue, Retry
from headwater.streams.replay.step import Step

_PAGE_TIMEOUT: Final = "10 minutes"
#: Pages that stay to be looked at.
_KEPT: Final = 10
UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")


class Progress(Protocol):
    """How far it is: a struct."""

    @property
    def after(self) -> object:
        """The place after which the next page begins; None once there is none."""


F = TypeVar("F", bound=Progress)


async def through_pages(
    step: Step, name: str, far: F, page: Callable[[F], Awaitable[F]], pause_ms: int = 0
) -> F:
    """Does page after page, each a step of this name, with a pause between; gives the last."""
    kind = type(far)

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
        state=msgspec.to_builtins(far),
        commit_interval=1,
        history_every=_KEPT,
        history_keep=_KEPT,
    )
    return msgspec.convert(plain, kind)
