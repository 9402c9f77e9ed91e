"""Messages between owners and hosts: those that all engines share, and those for task hosts.

An activation of a run in a host has a number that is never reused: messages about older activations
are ignored. One frame carries many messages.
"""

from typing import Generic, TypeAlias, TypeVar

import msgspec

from headwater.processors.runs.decisions import Reached, Request, RetryPolicy
from headwater.schemas.history import Json, Limits

R = TypeVar("R", bound=Request)


class HostMessage(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of all messages, in both directions."""

    activation: int


# -- owner to host


class AbandonAttempt(HostMessage, frozen=True):
    """An attempt timed out: its result is ignored."""

    key: str


class PollProgress(HostMessage, frozen=True):
    """Report whether anything progresses."""


class Evict(HostMessage, frozen=True):
    """Release a run, whatever it is doing."""


class AllowAttempts(HostMessage, frozen=True):
    """Limit the number of attempts of steps that may start from now on; None for any number.

    Applies to all runs of the host, whatever the activation is.
    """

    attempts: int | None


class Ping(HostMessage, frozen=True):
    """Reply with `Pong` once all earlier messages are processed; applies to no activation."""


# -- host to owner


class Requested(HostMessage, Generic[R], frozen=True):
    """A request of a run's code or of one of its steps."""

    request: R


class YieldBack(HostMessage, frozen=True):
    """The host may start no further attempts: the run continues after its next activation."""


class Pong(HostMessage, frozen=True):
    """All messages before a `Ping` are processed."""


class AttemptStarted(HostMessage, frozen=True):
    """An attempt that may take long is running; the owner watches its timeout.

    Attributes:
        rollback: Whether it is an attempt of the step's rollback handler, with its timeout.
    """

    step: Reached
    attempt: int
    policy: RetryPolicy
    rollback: bool = False


# -- messages to task hosts, which reply as for steps of code


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
    #: Its trace context, as text.
    trace: str = ""


class DropTasks(HostMessage, frozen=True):
    """Drop attempts that are no longer needed."""

    keys: tuple[str, ...]


ToTaskHost: TypeAlias = CallTasks | DropTasks
