"""Actions on instances: pause, resume, terminate, cancel, restart and retry.

API, client, command line, test harness and console have the actions of `ACTIONS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from headwater.schemas.failures import (
    DEPLOYMENT_NOT_FOUND,
    INSTANCE_NOT_ERRORED,
    INSTANCE_TERMINAL,
    INVALID_PARAMS,
    MIGRATION_REFUSED,
    NO_ACTIVE_DEPLOYMENT,
    RECORD_TOO_LARGE,
    STEP_NOT_FOUND,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import (
    CancelRun,
    Command,
    MoveRun,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    TerminateRun,
)
from headwater.schemas.statuses import RunStatus

#: Fields of commands by the names of a caller's texts.
_FIELDS: Final[Mapping[type, Mapping[str, str]]] = {
    TerminateRun: {"reason": "reason"},
    CancelRun: {"reason": "reason"},
    RestartRun: {"deployment": "deployment"},
    MoveRun: {"deployment": "deployment"},
    RetryRun: {"fromStep": "from_key", "deployment": "deployment"},
}


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
    def arguments(self) -> tuple[str, ...]:
        """Names of the texts that the caller may pass."""
        return tuple(_FIELDS.get(type(self.command), ()))

    def command_with(self, arguments: Mapping[str, str | None]) -> Command:
        """Return the command with the caller's texts; None stands for the default."""
        fields = _FIELDS.get(type(self.command), {})
        changes = {fields[name]: text for name, text in arguments.items() if text is not None}
        return msgspec.structs.replace(self.command, **changes)


#: Why a run cannot use the code of a deployment.
_CODE_REFUSALS: Final = (DEPLOYMENT_NOT_FOUND, WORKFLOW_NOT_FOUND, MIGRATION_REFUSED)
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
    effect="It has the same params, whatever the status of the instance, and begins on the active "
    "deployment if that has its workflow. Earlier runs stay in its history; events that they "
    "received do not count for the new one.",
    done="The next run has started.",
    statuses=frozenset(RunStatus),
    refusals=(INVALID_PARAMS, RECORD_TOO_LARGE, *_CODE_REFUSALS),
    repeatable=False,
    bulk=False,
    begins_run=True,
)
RETRY: Final = Action(
    name="retry",
    command=RetryRun(),
    summary="Retry an errored instance in a new run",
    effect="The run keeps received events, and the results of the steps before the failed one, or "
    "before the step that is named, and stays on its deployment. A restart executes all steps "
    "again.",
    done="The next run continues from the failed step.",
    statuses=frozenset({RunStatus.ERRORED}),
    refusals=(
        *(STEP_NOT_FOUND, INSTANCE_NOT_ERRORED, INVALID_PARAMS, RECORD_TOO_LARGE),
        *(*_CODE_REFUSALS, NO_ACTIVE_DEPLOYMENT),
    ),
    repeatable=False,
    begins_run=True,
)
MOVE: Final = Action(
    name="move",
    command=MoveRun(""),
    summary="Move a run to other code",
    effect="The run continues on a deployment, or on the code of --app, when it is next activated: "
    "at once if it waits, otherwise when it waits next. Its history stays, so the code must do "
    "the same steps as before. It is refused if the workflow is not there, or has another "
    "definition.",
    done="The run was moved.",
    statuses=_OPEN,
    refusals=(INSTANCE_TERMINAL, *_CODE_REFUSALS, NO_ACTIVE_DEPLOYMENT),
)

#: Actions with the same routes, commands and buttons. A move has its own.
ACTIONS: Final = (PAUSE, RESUME, TERMINATE, CANCEL, RESTART, RETRY)
