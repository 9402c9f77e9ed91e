"""What a client is answered: instances, their steps, events and log lines.

Names are those of the author's API; on the wire they are in camelCase. Fields that a server does
not send have their defaults, and fields that we do not know are passed over, so that a client and a
server of different releases understand each other.
"""

import json
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from headwater.gateway.client.errors import UnexpectedAnswerError

T = TypeVar("T")

#: What an instance is when it has ended.
ENDED: Final = frozenset({"complete", "errored", "terminated"})


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is answered."""


class Failure(Answer, frozen=True):
    """An error of an author's code."""

    name: str
    message: str = ""


class InstanceStatus(Answer, frozen=True):
    """How an instance stands: active, waiting, paused, complete, errored or terminated."""

    status: str
    error: Failure | None = None
    output: Any = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen, unless somebody restarts it."""
        return self.status in ENDED


class CurrentStep(Answer, frozen=True):
    """What a run stands at."""

    step_key: str
    name: str
    type: str
    status: str
    attempts: int = 0
    max_attempts: int | None = None
    timeout_ms: int | None = None
    next_retry_at: datetime | None = None
    wake_at: datetime | None = None
    wait_event_type: str | list[str] | None = None
    error: Failure | None = None


class Step(CurrentStep, frozen=True):
    """An entry of a run's history."""

    run_number: int = 0
    result: Any = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    rolled_back_at: datetime | None = None


class Event(Answer, frozen=True):
    """An event that a run has received."""

    type: str
    id: str = ""
    run_number: int = 0
    payload: Any = None
    created_at: datetime | None = None
    delivered_at: datetime | None = None
    consumed_by_step_key: str | None = None


class LogLine(Answer, frozen=True):
    """A line that a run, or the engine (category system), has written."""

    level: str
    message: str
    category: str = ""
    id: str = ""
    run_number: int = 0
    step_key: str | None = None
    attempt: int | None = None
    data: Any = None
    is_replay: bool = False
    created_at: datetime | None = None


class Parent(Answer, frozen=True):
    """The step of another instance that started this one."""

    workflow_name: str
    instance_id: str
    run_number: int = 0
    step_key: str = ""


class InstanceMeta(Answer, frozen=True):
    """What there is to know of an instance beside how it stands."""

    workflow_name: str
    run_number: int = 0
    params: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    current_step: CurrentStep | None = None
    parent: Parent | None = None


class Listed(Answer, frozen=True):
    """An instance in a listing."""

    id: str
    details: InstanceStatus


class Described(Listed, frozen=True):
    """An instance, whole."""

    meta: InstanceMeta


class Page(Answer, frozen=True):
    """Instances, the newest first; `cursor` goes on behind them."""

    instances: list[Listed]
    cursor: str | None = None
    has_next_page: bool = False


class HistoryPage(Answer, frozen=True):
    """A part of a run's history, as the server cuts it."""

    run_number: int
    steps: list[Step]
    events: list[Event]
    logs: list[LogLine] = []
    steps_cursor: str | None = None
    events_cursor: str | None = None
    logs_cursor: str | None = None
    steps_has_next_page: bool = False
    events_has_next_page: bool = False
    logs_has_next_page: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a run, whole."""

    run_number: int
    steps: list[Step]
    events: list[Event]
    logs: list[LogLine]


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
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UnexpectedAnswerError(
            f"expected an answer of the workflows API from {where}, found something else "
            f"({error}); is the base URL whole, as in https://host/api/workflows?"
        ) from error
