"""What is done to an instance by its name alone: each verb is described here, for everybody.

The routes of the API and the commands of the command line are made from `VERBS`. The client's
handles and the harness's instances inherit the methods of `Steered`.
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
class Verb:
    """Something that is done to an instance.

    Shape:  name is the end of its path, and its command; summary and effect are for people, the
            summary without a full stop; refusals are the codes beside "not found"; one that is
            repeatable may be sent again when its outcome is unknown.
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
        """Whether it may be said why, for people."""
        return isinstance(self.command, TerminateRun | CancelRun)

    def because(self, reason: str) -> Command:
        """Its command, with a reason."""
        return msgspec.structs.replace(self.command, reason=reason) if reason else self.command


PAUSE: Final = Verb(
    name="pause",
    command=PauseRun(),
    summary="Pause an instance at its next step boundary",
    effect="Sleeps and waits go on to count; events that come are kept. One that is paused already "
    "stays so.",
    refusals=(INSTANCE_TERMINAL,),
)
RESUME: Final = Verb(
    name="resume",
    command=ResumeRun(),
    summary="Let a paused instance go on",
    effect="Any other is left as it is.",
)
TERMINATE: Final = Verb(
    name="terminate",
    command=TerminateRun(),
    summary="End an instance for good, at once",
    effect="Its code is not asked, and nothing is rolled back: cancel does that. Only a restart "
    "brings it back.",
    refusals=(INSTANCE_TERMINAL,),
)
CANCEL: Final = Verb(
    name="cancel",
    command=CancelRun(),
    summary="End an instance for good, once its code has cleaned up",
    effect="Its code gets a CancelledError where it waits, and may clean up, for 30 seconds unless "
    "its worker says otherwise; then rollback handlers run, and it is terminated, however its code "
    "ended. Children are cancelled with it; tasks of a graph end at once. A paused one goes on; "
    "one that is being cancelled stays so. Only a restart brings it back.",
    refusals=(INSTANCE_TERMINAL,),
)
RESTART: Final = Verb(
    name="restart",
    command=RestartRun(),
    summary="Begin a new run of an instance, from the start",
    effect="It has the same params, however the instance stands. Earlier runs stay in its history; "
    "events that they received do not count for the new one.",
    refusals=(INVALID_PARAMS, RECORD_TOO_LARGE),
    repeatable=False,
    begins_run=True,
)

VERBS: Final = (PAUSE, RESUME, TERMINATE, CANCEL, RESTART)


class Steered(ABC, Generic[T]):
    """An instance that can be steered; T is what its holder is told of it."""

    @abstractmethod
    async def steer(self, verb: Verb, reason: str = "") -> T:
        """Does one of `VERBS`; with a reason, which its error says, if the verb takes one."""

    async def pause(self) -> T:
        """Pauses it at its next step boundary; one that is paused stays so."""
        return await self.steer(PAUSE)

    async def resume(self) -> T:
        """Lets it go on if it is paused; any other is left as it is."""
        return await self.steer(RESUME)

    async def terminate(self, reason: str = "") -> T:
        """Ends it for good, at once; its error says the reason, if there is one."""
        return await self.steer(TERMINATE, reason)

    async def cancel(self, reason: str = "") -> T:
        """Ends it for good, once its code has cleaned up and its rollback handlers have run."""
        return await self.steer(CANCEL, reason)

    async def restart(self) -> T:
        """Begins a new run. A request whose outcome is unknown is not repeated."""
        return await self.steer(RESTART)
