"""The workflow that forgets instances about a user, once a wipe has removed what is delivered.

It knows the user by a digest alone, and its steps give numbers: what is left of it names nobody.
Each step looks for what is still to be done, so one that was cut off begins again.
"""

from math import inf
from typing import Any, Final

import msgspec

from headwater.gateway.house.outside import Forgets
from headwater.processors.wipes import FORGET, ForgetParams, Forgotten
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy house need to be there; then it is asked again.
_TIMEOUT: Final = "10 minutes"
#: The whole history is read.
_ERASE_TIMEOUT: Final = "6 hours"


class ForgetWorkflow:
    """The workflow, over what it needs of the outside."""

    def __init__(self, outside: Forgets) -> None:
        self._outside = outside

    @property
    def workflow(self) -> Workflow:
        """The workflow itself."""
        return Workflow(FORGET, self.forget, strict=False)

    async def forget(self, event: WorkflowEvent[ForgetParams], step: Step) -> dict[str, Any]:
        """Waits until nobody starts any more of them, deletes them, and erases what they left."""
        params = event.payload

        async def settle() -> int:
            return await (await self._outside.forgetting()).settle(params)

        async def delete() -> int:
            return await (await self._outside.forgetting()).delete(params, until_ms)

        async def erase() -> int:
            return await (await self._outside.forgetting()).erase()

        until_ms = await step.do("settle", settle, retries=_UNTIL_IT_WORKS, timeout=_TIMEOUT)
        instances = await step.do("delete", delete, retries=_UNTIL_IT_WORKS, timeout=_TIMEOUT)
        records = await step.do("erase", erase, retries=_UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        forgotten: dict[str, Any] = msgspec.to_builtins(Forgotten(instances, records))
        return forgotten
