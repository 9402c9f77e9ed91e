"""Errors of a client: each message states what happened and what to do about it.

Refused commands have the same class everywhere in Headwater (`schemas.failures`), so that
`except InstanceNotFoundError` works with a test harness and with a server.
"""

from headwater.schemas.failures import ClientError


class ConnectionFailedError(ClientError, ConnectionError):
    """No server answered, and the request had no effect."""


class OutcomeUnknownError(ClientError):
    """A write was sent and may have taken effect; repeating it could apply it twice."""


class UnavailableError(ClientError):
    """The server cannot answer now; a later attempt may succeed."""


class UnexpectedAnswerError(ClientError):
    """The answer is not one of the workflows API, or of an unknown version of it."""


class UnauthorizedError(ClientError):
    """The key is missing or not valid."""
