"""Messages from owners to task hosts. Hosts answer as they do for steps of code."""

from typing import TypeAlias

import msgspec

from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.requests import Reached, RetryPolicy
from headwater.schemas.history import Json, Limits


class TaskCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt of a task to start.

    Attributes:
        reached: Key of the token, and its node.
    """

    task: str
    reached: Reached
    attempt: int
    input: Json
    policy: RetryPolicy
    idempotency_token: str


class CallTasks(HostMessage, frozen=True):
    """Start attempts of tasks of a run."""

    workflow: str
    instance_id: str
    run_number: int
    calls: tuple[TaskCall, ...]
    #: Limits of its results; None for the defaults.
    limits: Limits | None = None


class DropTasks(HostMessage, frozen=True):
    """Drop attempts that are no longer needed."""

    keys: tuple[str, ...]


ToTaskHost: TypeAlias = CallTasks | DropTasks
