"""Methods for the actions on an instance, of the client's handles and of the test harness."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from headwater.processors.runs.lifecycle import (
    CANCEL,
    MOVE,
    PAUSE,
    RESTART,
    RESUME,
    RETRY,
    TERMINATE,
    Action,
)

T = TypeVar("T")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Controllable(ABC, Generic[T]):
    """An instance that accepts actions; T is the result of one."""

    @abstractmethod
    async def perform(self, action: Action, arguments: Mapping[str, str] = _NONE) -> T:
        """Perform one of `ACTIONS`.

        Args:
            action: The action.
            arguments: Texts that the action takes, such as a reason, by name.
        """

    async def pause(self) -> T:
        """Pause the instance at its next step boundary. A paused instance is left unchanged."""
        return await self.perform(PAUSE)

    async def resume(self) -> T:
        """Resume a paused instance. Any other is left unchanged."""
        return await self.perform(RESUME)

    async def terminate(self, reason: str = "") -> T:
        """End the instance permanently and at once, with `reason` in its error."""
        return await self.perform(TERMINATE, _texts(reason=reason or None))

    async def cancel(self, reason: str = "") -> T:
        """End the instance permanently, after its code has cleaned up and rollback has run."""
        return await self.perform(CANCEL, _texts(reason=reason or None))

    async def restart(self, *, deployment: str | None = None) -> T:
        """Start a new run. A request with an unknown outcome is not repeated.

        Args:
            deployment: Where it begins: "same", "active", "app" for the code of `--app`, or the id
                of a deployment. By default the active one, if that has the workflow.
        """
        return await self.perform(RESTART, _texts(deployment=deployment))

    async def move(self, to: str) -> T:
        """Continue a live run on other code: "active", "app", or the id of a deployment."""
        return await self.perform(MOVE, {"deployment": to})

    async def retry(self, from_step: str | None = None, *, deployment: str | None = None) -> T:
        """Start a new run of an errored instance that keeps the completed steps.

        A retry whose outcome is unknown is not repeated.

        Args:
            from_step: Key of the first step to execute again, as in `history.steps[i].step_key`;
                None for the one that failed.
            deployment: Where it continues, as for `restart`. By default the same one.

        Raises:
            InstanceNotErroredError: The instance has not errored.
            StepNotFoundError: It has no such step.
        """
        return await self.perform(RETRY, _texts(fromStep=from_step, deployment=deployment))


def _texts(**texts: str | None) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}
