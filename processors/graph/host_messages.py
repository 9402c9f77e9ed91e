"""What owners send the hosts of tasks. What these answer is as for steps of code."""

from typing import TypeAlias

import msgspec

from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.requests import Reached, RetryPolicy
from headwater.schemas.history import Json, Limits


class TaskCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt of a task that is to begin.

    Shape:  `reached` names the token by its key, and its node.
    """

    task: str
    reached: Reached
    attempt: int
    input: Json
    policy: RetryPolicy
    idempotency_token: str


class CallTasks(HostMessage, frozen=True):
    """Begin attempts of tasks of a run."""

    workflow: str
    instance_id: str
    run_number: int
    calls: tuple[TaskCall, ...]
    #: What its results are held to; None for the usual limits.
    limits: Limits | None = None


class DropTasks(HostMessage, frozen=True):
    """Attempts are no longer wanted."""

    keys: tuple[str, ...]


ToTaskHost: TypeAlias = CallTasks | DropTasks
