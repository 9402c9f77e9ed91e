"""Actions on instances: pause, resume, terminate, cancel and restart.

The HTTP routes and the CLI commands are generated from `ACTIONS`. The client's handles and the
test harness's instances inherit their methods from `Controllable`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from headwater.schemas.failures import INSTANCE_TERMINAL, INVALID_PARAMS, RECORD_TOO_LARGE
from headwater.schemas.history import (
    CancelRun,
    Command,
    PauseRun,
    RestartRun,
    ResumeRun,
    TerminateRun,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action on an instance.

    Attributes:
        name: Last segment of its URL path, and its CLI command.
        command: The command that it sends.
        summary: One line for users, without a full stop.
        effect: Description for users.
        refusals: Error codes that it may return, besides those for a missing instance.
        repeatable: Whether it may be sent again when its outcome is unknown.
        begins_run: Whether it starts a new run.
    """

    name: str
    command: Command
    summary: str
    effect: str
    refusals: tuple[str, ...] = ()
    repeatable: bool = True
    begins_run: bool = False

    @property
    def takes_reason(self) -> bool:
        """Whether the caller may pass a reason."""
        return isinstance(self.command, TerminateRun | CancelRun)

    def with_reason(self, reason: str) -> Command:
        """Return the command with a reason."""
        return msgspec.structs.replace(self.command, reason=reason) if reason else self.command


PAUSE: Final = Action(
    name="pause",
    command=PauseRun(),
    summary="Pause an instance at its next step boundary",
    effect="Sleeps and waits keep running; events that arrive are kept. An instance that is "
    "already paused stays paused.",
    refusals=(INSTANCE_TERMINAL,),
)
RESUME: Final = Action(
    name="resume",
    command=ResumeRun(),
    summary="Resume a paused instance",
    effect="An instance that is not paused is left unchanged.",
)
TERMINATE: Final = Action(
    name="terminate",
    command=TerminateRun(),
    summary="End an instance permanently and at once",
    effect="Its code is not notified, and nothing is rolled back; use cancel for that. Only a "
    "restart brings it back.",
    refusals=(INSTANCE_TERMINAL,),
)
CANCEL: Final = Action(
    name="cancel",
    command=CancelRun(),
    summary="End an instance permanently, once its code has cleaned up",
    effect="Its code gets a CancelledError where it waits, and may clean up, for 30 seconds unless "
    "its worker is configured otherwise; then rollback handlers run, and it is terminated, however "
    "its code ended. Children are cancelled with it; tasks of a graph end at once. A paused "
    "instance resumes; one that is already being cancelled is left unchanged. Only a restart "
    "brings it back.",
    refusals=(INSTANCE_TERMINAL,),
)
RESTART: Final = Action(
    name="restart",
    command=RestartRun(),
    summary="Start a new run of an instance from the beginning",
    effect="It has the same params, whatever the status of the instance. Earlier runs stay in its "
    "history; events that they received do not count for the new one.",
    refusals=(INVALID_PARAMS, RECORD_TOO_LARGE),
    repeatable=False,
    begins_run=True,
)

ACTIONS: Final = (PAUSE, RESUME, TERMINATE, CANCEL, RESTART)


class Controllable(ABC, Generic[T]):
    """An instance that accepts actions; T is the result of one."""

    @abstractmethod
    async def perform(self, action: Action, reason: str = "") -> T:
        """Perform one of `ACTIONS`.

        Args:
            action: The action.
            reason: Becomes part of the instance's error, if the action takes a reason.
        """

    async def pause(self) -> T:
        """Pause the instance at its next step boundary. A paused instance is left unchanged."""
        return await self.perform(PAUSE)

    async def resume(self) -> T:
        """Resume a paused instance. Any other is left unchanged."""
        return await self.perform(RESUME)

    async def terminate(self, reason: str = "") -> T:
        """End the instance permanently and at once, with `reason` in its error."""
        return await self.perform(TERMINATE, reason)

    async def cancel(self, reason: str = "") -> T:
        """End the instance permanently, after its code has cleaned up and rollback has run."""
        return await self.perform(CANCEL, reason)

    async def restart(self) -> T:
        """Start a new run. A request with an unknown outcome is not repeated."""
        return await self.perform(RESTART)
