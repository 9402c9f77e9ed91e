"""Refused commands as the errors that callers catch."""

from typing import ClassVar, Final

from headwater.processors.runs.decide import ALREADY_PAUSED, NOT_PAUSED


class CommandRefusedError(Exception):
    """A command was refused and changed nothing; `.code` says why."""

    code: ClassVar[str] = ""


class WorkflowNotFoundError(CommandRefusedError):
    """No workflow of this name is known."""

    code = "WORKFLOW_NOT_FOUND"


class InstanceNotFoundError(CommandRefusedError):
    """There is no such instance."""

    code = "INSTANCE_NOT_FOUND"


class InstanceExistsError(CommandRefusedError):
    """An instance of this id exists already."""

    code = "INSTANCE_ID_ALREADY_EXISTS"


class InstanceTerminalError(CommandRefusedError):
    """The instance has ended."""

    code = "INSTANCE_TERMINAL"


class InstanceNotErroredError(CommandRefusedError):
    """Only an instance that has errored may be retried."""

    code = "INSTANCE_NOT_ERRORED"


class StepNotFoundError(CommandRefusedError):
    """The instance has no such step, or no longer knows how to get there."""

    code = "STEP_NOT_FOUND"


class InvalidInstanceIdError(CommandRefusedError):
    """The id of an instance breaks the rules."""

    code = "INVALID_INSTANCE_ID"


class InvalidEventTypeError(CommandRefusedError):
    """The type of an event breaks the rules."""

    code = "INVALID_EVENT_TYPE"


class WorkflowParamsInvalidError(CommandRefusedError):
    """The params of an instance are not what its workflow takes."""

    code = "WORKFLOW_PARAMS_INVALID"


class EventPayloadInvalidError(CommandRefusedError):
    """The payload of an event is too large."""

    code = "INVALID_EVENT_PAYLOAD"


class MailboxFullError(CommandRefusedError):
    """The instance has received too many events that it never took."""

    code = "MAILBOX_FULL"


_BY_CODE: Final = {
    kind.code: kind
    for kind in (
        WorkflowNotFoundError,
        InstanceNotFoundError,
        InstanceExistsError,
        InstanceTerminalError,
        InstanceNotErroredError,
        StepNotFoundError,
        InvalidInstanceIdError,
        InvalidEventTypeError,
        WorkflowParamsInvalidError,
        EventPayloadInvalidError,
        MailboxFullError,
    )
}
#: What was asked for is so already: callers need not know.
_AS_ASKED: Final = frozenset({"", ALREADY_PAUSED, NOT_PAUSED})


def refusal(code: str, message: str) -> CommandRefusedError | None:
    """The error of an outcome's code, or None for a command that did what was asked."""
    if code in _AS_ASKED:
        return None
    return _BY_CODE.get(code, CommandRefusedError)(message)
