"""What a client raises of itself: each error says what happened, and what to do about it.

A refusal has the class that it has everywhere in Headwater (`schemas.failures`), so that one
`except InstanceNotFoundError` catches it from a test harness as from a server.
"""

from typing_extensions import override

from headwater.schemas.failures import ClientError


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
