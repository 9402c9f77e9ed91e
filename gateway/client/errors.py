"""What a client raises of itself: each error says what happened, and what to do about it.

A refusal has the class that it has everywhere in Headwater (`schemas.failures`), so that one
`except InstanceNotFoundError` catches it from a test harness as from a server.
"""

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
