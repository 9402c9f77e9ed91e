"""How a client reads what it is answered."""

import json
from typing import Generic, TypeVar

import msgspec

from headwater.gateway.client.errors import UnexpectedAnswerError
from headwater.schemas.statuses import newer_kept

T = TypeVar("T")


class StreamItem(msgspec.Struct, Generic[T], frozen=True):
    """Something that happened while it was followed.

    Shape:  `event` is status, step, event, log or end; `data` the InstanceStatus, Step, Event or
            LogLine, or JSON as it came for an event that we do not know; following from `id` on
            misses nothing.
    """

    event: str
    id: str
    data: T


def read(text: str | bytes, kind: type[T], where: str) -> T:
    """Reads an answer.

    Errors: UnexpectedAnswerError.
    """
    try:
        # The values of authors may hold what msgspec's parser refuses: lone surrogates, large ints.
        with newer_kept():
            return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UnexpectedAnswerError(
            f"expected an answer of the workflows API from {where}, found something else "
            f"({error}); is the base URL whole, as in https://host/api/workflows?"
        ) from error
