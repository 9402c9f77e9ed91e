"""A workflow whose step fails again and again."""

import math
from typing import Any

from headwater import Retry, Step, WorkflowEvent, workflow

SOON = Retry(limit=math.inf, delay="200 ms", backoff="constant")


def refuse() -> None:
    """Fails."""
    raise ValueError("no")


@workflow("failing")
async def failing(_: WorkflowEvent[Any], step: Step) -> None:
    """Never gets beyond its only step."""
    await step.do("refuse", refuse, retries=SOON)
