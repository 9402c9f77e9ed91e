"""Process pages in a workflow, with the progress as the state of a durable loop.

After a crash, the workflow continues after the last completed page; a page in progress is repeated.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, Protocol, TypeVar

import msgspec

from headwater.streams.authoring.workflow_values import Break, Continue, Retry
from headwater.streams.replay.step import Step

_PAGE_TIMEOUT: Final = "10 minutes"
#: Latest pages whose history is kept for inspection.
_KEPT: Final = 10
UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")


class Progress(Protocol):
    """Progress of the loop; a msgspec struct."""

    @property
    def after(self) -> object:
        """Cursor of the next page; None after the last page."""


F = TypeVar("F", bound=Progress)


async def process_pages(
    step: Step, name: str, progress: F, page: Callable[[F], Awaitable[F]], pause_ms: int = 0
) -> F:
    """Process pages, each in a step.

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
