"""The workflow that deletes the instances about a user, after a wipe of the user's deliveries."""

from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.gateway.builtin.instances import ERASE
from headwater.processors.wipes import FORGET, ForgetParams, ForgetResult
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.gateway.builtin.bulk_operations import InstanceDeletion

_ERASE_TIMEOUT: Final = "6 hours"
_RETRY: Final = Retry(limit=inf, delay="5 seconds", backoff="constant")
#: Longer than all readers of a busy system need to catch up; then the step is retried.
_TIMEOUT: Final = "10 minutes"


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

        until_ms = await step.do("settle", settle, retries=_RETRY, timeout=_TIMEOUT)
        deleted = await step.do("delete", delete, retries=_RETRY, timeout=_TIMEOUT)
        records = await step.do(ERASE, erase, retries=_RETRY, timeout=_ERASE_TIMEOUT)
        forgotten: dict[str, Any] = msgspec.to_builtins(ForgetResult(deleted, records))
        return forgotten

    return Workflow(FORGET, forget, strict=False)
