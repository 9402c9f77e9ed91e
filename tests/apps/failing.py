"""A workflow whose step fails again and again."""

import math
from typing import Any

from headwater import Retry, Step, WorkflowEvent, workflow


def refuse() -> None:
    """Fails."""
    raise ValueError("no")


@workflow("failing")
async def failing(_: WorkflowEvent[Any], step: Step) -> None:
    """Never gets beyond its only step."""
    retry = Retry(limit=math.inf, delay="200 milliseconds", backoff="constant")
    await step.do("refuse", refuse, retry=retry)
