"""The workflow that forgets instances about a user, once a wipe has removed what is delivered.

It knows the user by a digest alone, and its steps give numbers: what is left of it names nobody.
Each step looks for what is still to be done, so one that was cut off begins again.
"""

from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.processors.wipes import FORGET, ForgetParams, ForgetResult
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.gateway.house.forgetting import Forgetting

_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy house need to be there; then it is asked again.
_TIMEOUT: Final = "10 minutes"
#: The whole history is read.
_ERASE_TIMEOUT: Final = "6 hours"


def forget_workflow(instances: "Callable[[], Awaitable[Forgetting]]") -> Workflow:
    """The workflow, over the instances that there are.

    It waits until nobody starts any more of them, deletes them, and erases what they left.
    """

    async def forget(event: WorkflowEvent[ForgetParams], step: Step) -> dict[str, Any]:
        params = event.payload

        async def settle() -> int:
            return await (await instances()).settle(params)

        async def delete() -> int:
            return await (await instances()).delete(params, until_ms)

        async def erase() -> int:
            return await (await instances()).erase()

        until_ms = await step.do("settle", settle, retries=_UNTIL_IT_WORKS, timeout=_TIMEOUT)
        deleted = await step.do("delete", delete, retries=_UNTIL_IT_WORKS, timeout=_TIMEOUT)
        records = await step.do("erase", erase, retries=_UNTIL_IT_WORKS, timeout=_ERASE_TIMEOUT)
        forgotten: dict[str, Any] = msgspec.to_builtins(ForgetResult(deleted, records))
        return forgotten

    return Workflow(FORGET, forget, strict=False)
