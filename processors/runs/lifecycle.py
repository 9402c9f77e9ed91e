"""Actions on instances: pause, resume, terminate, cancel, restart and retry.

API, client, command line, test harness and console have the actions of `ACTIONS`.
"""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from headwater.schemas.failures import (
    INSTANCE_NOT_ERRORED,
    INSTANCE_TERMINAL,
    INVALID_PARAMS,
    RECORD_TOO_LARGE,
    STEP_NOT_FOUND,
)
from headwater.schemas.history import (
    CancelRun,
    Command,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    TerminateRun,
)
from headwater.schemas.statuses import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action on an instance.

    Attributes:
        name: Last segment of its URL path, and its CLI command.
        command: The command that it sends.
        summary: One line for users, without a full stop.
        effect: Description for users.
        done: Confirmation for users.
        statuses: Statuses in which it is offered to users.
        refusals: Error codes that it may return, besides those for a missing instance.
        repeatable: Whether it may be sent again when its outcome is unknown.
        bulk: Whether it may be sent to many instances at once.
        begins_run: Whether it starts a new run.
    """

    name: str
    command: Command
    summary: str
    effect: str
    done: str
    statuses: frozenset[RunStatus]
    refusals: tuple[str, ...] = ()
    repeatable: bool = True
    bulk: bool = True
    begins_run: bool = False

    @property
    def argument(self) -> Literal["", "reason", "fromStep"]:
        """Name of the text that the caller may pass; "" for none."""
        match self.command:
            case TerminateRun() | CancelRun():
                return "reason"
            case RetryRun():
                return "fromStep"
            case _:
                return ""

    def command_with(self, argument: str | None) -> Command:
        """Return the command with the caller's text, if there is any."""
        if argument is None:
            return self.command
        field = {"reason": "reason", "fromStep": "from_key"}[self.argument]
        return msgspec.structs.replace(self.command, **{field: argument})


_OPEN: Final = frozenset({RunStatus.ACTIVE, RunStatus.WAITING, RunStatus.PAUSED})

PAUSE: Final = Action(
    name="pause",
    command=PauseRun(),
    summary="Pause an instance at its next step boundary",
    effect="Sleeps and waits keep running; events that arrive are kept. An instance that is "
    "already paused stays paused.",
    done="The instance is paused.",
    statuses=_OPEN - {RunStatus.PAUSED},
    refusals=(INSTANCE_TERMINAL,),
)
RESUME: Final = Action(
    name="resume",
    command=ResumeRun(),
    summary="Resume a paused instance",
    effect="An instance that is not paused is left unchanged.",
    done="The instance has resumed.",
    statuses=frozenset({RunStatus.PAUSED}),
)
TERMINATE: Final = Action(
    name="terminate",
    command=TerminateRun(),
    summary="End an instance permanently and at once",
    effect="Its code is not notified, and nothing is rolled back; use cancel for that. Only a "
    "restart brings it back.",
    done="The instance was terminated.",
    statuses=_OPEN,
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
    done="The run is being canceled: its code cleans up first.",
    statuses=_OPEN,
    refusals=(INSTANCE_TERMINAL,),
)
RESTART: Final = Action(
    name="restart",
    command=RestartRun(),
    summary="Start a new run of an instance from the beginning",
    effect="It has the same params, whatever the status of the instance. Earlier runs stay in its "
    "history; events that they received do not count for the new one.",
    done="The next run has started.",
    statuses=frozenset(RunStatus),
    refusals=(INVALID_PARAMS, RECORD_TOO_LARGE),
    repeatable=False,
    bulk=False,
    begins_run=True,
)
RETRY: Final = Action(
    name="retry",
    command=RetryRun(),
    summary="Retry an errored instance in a new run",
    effect="The run keeps received events, and the results of the steps before the failed one, or "
    "before the step that is named. A restart executes all steps again.",
    done="The next run continues from the failed step.",
    statuses=frozenset({RunStatus.ERRORED}),
    refusals=(STEP_NOT_FOUND, INSTANCE_NOT_ERRORED, INVALID_PARAMS, RECORD_TOO_LARGE),
    repeatable=False,
    begins_run=True,
)

ACTIONS: Final = (PAUSE, RESUME, TERMINATE, CANCEL, RESTART, RETRY)
