"""Methods for the actions on an instance, of the client's handles and of the test harness."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from headwater.processors.runs.lifecycle import (
    CANCEL,
    PAUSE,
    RESTART,
    RESUME,
    RETRY,
    TERMINATE,
    Action,
)

T = TypeVar("T")


class Controllable(ABC, Generic[T]):
    """An instance that accepts actions; T is the result of one."""

    @abstractmethod
    async def perform(self, action: Action, argument: str | None = None) -> T:
        """Perform one of `ACTIONS`.

        Args:
            action: The action.
            argument: Text that the action takes, such as a reason.
        """

    async def pause(self) -> T:
        """Pause the instance at its next step boundary. A paused instance is left unchanged."""
        return await self.perform(PAUSE)

    async def resume(self) -> T:
        """Resume a paused instance. Any other is left unchanged."""
        return await self.perform(RESUME)

    async def terminate(self, reason: str = "") -> T:
        """End the instance permanently and at once, with `reason` in its error."""
        return await self.perform(TERMINATE, reason or None)

    async def cancel(self, reason: str = "") -> T:
        """End the instance permanently, after its code has cleaned up and rollback has run."""
        return await self.perform(CANCEL, reason or None)

    async def restart(self) -> T:
        """Start a new run. A request with an unknown outcome is not repeated."""
        return await self.perform(RESTART)

    async def retry(self, from_step: str | None = None) -> T:
        """Start a new run of an errored instance that keeps the completed steps.

        A retry whose outcome is unknown is not repeated.

        Args:
            from_step: Key of the first step to execute again, as in `history.steps[i].step_key`;
                None for the one that failed.

        Raises:
            InstanceNotErroredError: The instance has not errored.
            StepNotFoundError: It has no such step.
        """
        return await self.perform(RETRY, from_step)
