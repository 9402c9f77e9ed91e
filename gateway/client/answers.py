"""Answers of the server as data, and the errors of a client.

Refused commands have the same class everywhere in Headwater (`schemas.failures`), so that
`except InstanceNotFoundError` works with a test harness and with a server.
"""

import json
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec

from headwater.gateway.client.requests import HttpAnswer
from headwater.schemas.answers import (
    CommandAccepted,
    CommandsAccepted,
    EventSent,
    InstanceStatus,
    Managed,
)
from headwater.schemas.failures import ClientError
from headwater.schemas.statuses import RunStatus, keep_unknown_values


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


# -- decoding

T = TypeVar("T")

_ACCEPTED: Final = b'{"accepted":'


class StreamItem(msgspec.Struct, Generic[T], frozen=True):
    """Something that happened to an instance that is followed.

    Attributes:
        event: status, step, token, event, log, end, or the name of a graph's workflow event.
        id: Following from this id misses nothing.
        data: StatusOfRun, Step, Token, Event, LogLine or GraphEvent; JSON as it came for an unknown
            event.
    """

    event: str
    id: str
    data: T


def accepted(answer: HttpAnswer) -> list[CommandAccepted]:
    """Return commands that the server accepted but no worker has decided; empty if decided.

    This happens to clients that prefer not to wait, while no worker is running.

    Raises:
        UnexpectedAnswerError: The answer cannot be decoded.
    """
    if answer.status != HTTPStatus.ACCEPTED or not answer.body.startswith(_ACCEPTED):
        return []
    return value_of(answer, CommandsAccepted).accepted


def status_in(answer: HttpAnswer, kind: type[Managed | EventSent]) -> InstanceStatus:
    """Return the status of an instance after a write; `accepted` if it is not decided yet.

    Raises:
        UnexpectedAnswerError: The answer cannot be decoded.
    """
    if not accepted(answer):
        return value_of(answer, kind).status
    with keep_unknown_values():  # No run has this status: only answers do.
        return InstanceStatus(status=RunStatus("accepted"))


def value_of(answer: HttpAnswer, kind: type[T]) -> T:
    """Decode an answer.

    Raises:
        UnexpectedAnswerError: The answer cannot be decoded.
    """
    return read(answer.body, kind, answer.url)


def read(text: str | bytes, kind: type[T], url: str) -> T:
    """Decode JSON that came from `url`.

    Raises:
        UnexpectedAnswerError: The text is no JSON, or not of this type.
    """
    try:
        # Authors' values may hold what msgspec's parser refuses: lone surrogates, large integers.
        with keep_unknown_values():
            return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UnexpectedAnswerError(
            f"expected Headwater at {url}, found something else ({error}); is the base URL whole, "
            "as in https://host/api/workflows?"
        ) from error
