"""What a client raises: each error says what happened, and what to do about it.

A refusal has the class that the same refusal has everywhere in Headwater, so that one
`except InstanceNotFoundError` catches it from a test harness as from a server.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from typing_extensions import override

from headwater.streams.authoring import refusals


class ClientError(Exception):
    """Base of what a client raises.

    Shape:  `.code` is that of the problem document, "" without one; `.status` the HTTP status, None
            if nobody answered; `.detail` what is wrong, `.field` in which parameter or member;
            `.repeated` says that an earlier attempt of the same request may have been taken;
            `.position` is where in the log the refusal lies, as the server states it.
    """

    code: ClassVar[str] = ""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "",
        status: int | None = None,
        field: str | None = None,
        repeated: bool = False,
        position: str = "",
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.field = field
        self.repeated = repeated
        self.position = position
        if code:
            # Most classes have a code of their own; a code that we do not know is the instance's.
            vars(self)["code"] = code


class ConnectionFailedError(ClientError, ConnectionError):
    """Nobody answered, and nothing was taken."""


class OutcomeUnknownError(ClientError):
    """A write was sent and may have been taken; to repeat it could do it twice."""


class UnavailableError(ClientError):
    """The server cannot answer for now; a later attempt may succeed."""


class UnexpectedAnswerError(ClientError):
    """Something answered that is not the API of workflows, or not a version that we know."""


class UnauthorizedError(ClientError):
    """The key is missing or not valid."""


class RefusedError(ClientError, refusals.CommandRefusedError):
    """The server refused the request, and nothing has changed."""


class WorkflowNotFoundError(refusals.WorkflowNotFoundError, RefusedError):
    """No workflow of this name is known."""


class InstanceNotFoundError(refusals.InstanceNotFoundError, RefusedError):
    """There is no such instance."""


class InstanceExistsError(refusals.InstanceExistsError, RefusedError):
    """An instance of this id exists already."""


class InstanceTerminalError(refusals.InstanceTerminalError, RefusedError):
    """The instance has ended."""


class InstanceNotErroredError(refusals.InstanceNotErroredError, RefusedError):
    """Only an instance that has errored may be retried."""


class StepNotFoundError(refusals.StepNotFoundError, RefusedError):
    """The instance has no such step, or no longer knows how to get there."""


class InvalidInstanceIdError(refusals.InvalidInstanceIdError, RefusedError):
    """The id of an instance breaks the rules."""


class InvalidEventTypeError(refusals.InvalidEventTypeError, RefusedError):
    """The type of an event breaks the rules."""


class WorkflowParamsInvalidError(refusals.WorkflowParamsInvalidError, RefusedError):
    """The params of an instance are not what its workflow takes."""


class EventPayloadInvalidError(refusals.EventPayloadInvalidError, RefusedError):
    """The payload of an event is too large."""


class MailboxFullError(refusals.MailboxFullError, RefusedError):
    """The instance has received too many events that it never took."""


class InstanceFailedError(Exception):
    """An instance whose result was asked for has ended without one.

    Shape:  `.outcome` is errored or terminated; `.error` has `.name` and `.message`, or is None.
    """

    def __init__(self, instance: str, outcome: str, name: str = "", message: str = "") -> None:
        super().__init__(instance, outcome, name, message)
        self.instance = instance
        self.outcome = outcome
        self.name = name
        self.message = message

    @override
    def __str__(self) -> str:
        why = f": {self.name}: {self.message}" if self.name else ""
        return f"expected {self.instance} to complete, found it {self.outcome}{why}"


_KINDS: Final[tuple[type[RefusedError], ...]] = (
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
_BY_CODE: Final[Mapping[str, type[RefusedError]]] = {kind.code: kind for kind in _KINDS}


def refused(code: str, detail: str, **more: Any) -> RefusedError:  # noqa: ANN401 (as there)
    """The error of a refusal, by its code; the rest as ClientError has it."""
    return _BY_CODE.get(code, RefusedError)(detail, code=code, **more)
