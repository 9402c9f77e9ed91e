"""The workflow that deletes instances about a user, after a wipe has deleted their deliveries.

It knows only a digest of the user's id, and its steps return numbers, so its history does not name
the user. Its steps are idempotent: an interrupted step runs again and does what is left.
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

    from headwater.gateway.builtin.instance_deletion import InstanceDeletion

_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy system need to catch up; then the step is retried.
_TIMEOUT: Final = "10 minutes"
#: This step reads the whole history topic.
_ERASE_TIMEOUT: Final = "6 hours"


def forget_workflow(instances: "Callable[[], Awaitable[InstanceDeletion]]") -> Workflow:
    """Return the workflow.

    It waits until no more instances about the user can start, deletes them, and erases their
    history.
    """

    async def forget(event: WorkflowEvent[ForgetParams], step: Step) -> dict[str, Any]:
        params = event.payload

        async def settle() -> int:
            return await (await instances()).wait_until_settled(params)

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
