"""How a client reads what it is answered."""

import json
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec

from headwater.gateway.client.errors import UnexpectedAnswerError
from headwater.gateway.client.requests import Answered
from headwater.schemas.answers import (
    CommandAccepted,
    CommandsAccepted,
    EventSent,
    InstanceStatus,
    Managed,
)
from headwater.schemas.statuses import RunStatus, keep_unknown_values

T = TypeVar("T")

_ACCEPTED: Final = b'{"accepted":'


class StreamItem(msgspec.Struct, Generic[T], frozen=True):
    """Something that happened while it was followed.

    Shape:  `event` is status, step, event, log or end; `data` the InstanceStatus, Step, Event or
            LogLine, or JSON as it came for an event that we do not know; following from `id` on
            misses nothing.
    """

    event: str
    id: str
    data: T


def accepted(answer: Answered) -> list[CommandAccepted]:
    """What a server has taken and nobody has decided yet; empty where it was decided.

    Shape:  as for those who prefer not to wait, while no worker is there.
    Errors: UnexpectedAnswerError.
    """
    if answer.status != HTTPStatus.ACCEPTED or not answer.body.startswith(_ACCEPTED):
        return []
    return value_of(answer, CommandsAccepted).accepted


def status_in(answer: Answered, kind: type[Managed | EventSent]) -> InstanceStatus:
    """How an instance stands after a write; `accepted` where nobody has decided it yet.

    Errors: UnexpectedAnswerError.
    """
    if not accepted(answer):
        return value_of(answer, kind).status
    with keep_unknown_values():  # No run stands like this: the word is of answers alone.
        return InstanceStatus(status=RunStatus("accepted"))


def value_of(answer: Answered, kind: type[T]) -> T:
    """What an answer says.

    Errors: UnexpectedAnswerError.
    """
    return read(answer.body, kind, answer.url)


def read(text: str | bytes, kind: type[T], url: str) -> T:
    """Reads what came from a URL.

    Errors: UnexpectedAnswerError.
    """
    try:
        # The values of authors may hold what msgspec's parser refuses: lone surrogates, large ints.
        with keep_unknown_values():
            return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UnexpectedAnswerError(
            f"expected an answer of the workflows API from {url}, found something else "
            f"({error}); is the base URL whole, as in https://host/api/workflows?"
        ) from error
