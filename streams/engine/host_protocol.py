"""What an owner and a code host say to each other.

A run that a host has in hand is an activation, with a number that is never used again: what is said
of an older one concerns nobody. Many messages travel in one frame.
"""

from typing import TypeAlias

import msgspec

from headwater.processors.replay.commands import CodeCommand, Reached, RetryPolicy
from headwater.processors.replay.state import CodeRun, Entry
from headwater.schemas.history import Failure, Json


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of all messages."""


# -- owner to host


class Activate(Message, frozen=True):
    """Take a run in hand: replay its code against these entries."""

    activation: int
    workflow: str
    instance_id: str
    run_number: int
    params: Json
    seed: str
    started_at_ms: int
    #: The latest event that it holds.
    seen: int
    #: The latest event that the code had seen when it logged last, and its lines since then.
    logged_at: int
    lines: int
    entries: dict[str, Entry]
    #: How many entries it may have.
    entries_max: int
    rollback: Failure | None = None


class Resolved(Message, frozen=True):
    """An entry has its result, and it is durable."""

    activation: int
    key: str
    sequence: int
    attempts: int = 0
    result: Json | None = None
    failure: Failure | None = None
    #: Whether it can be rolled back.
    rollback: bool = False


class Advanced(Message, frozen=True):
    """A loop's commit is durable."""

    activation: int
    key: str
    sequence: int


class HandlerDone(Message, frozen=True):
    """That an entry is rolled back, or that its handler is given up, is durable."""

    activation: int
    key: str
    sequence: int


class Again(Message, frozen=True):
    """Try steps again: the numbers of their attempts, by key."""

    activation: int
    attempts: dict[str, int]
    sequence: int


class HandlerAgain(Message, frozen=True):
    """Try the rollback handler of a step again."""

    activation: int
    key: str
    attempt: int


class Drop(Message, frozen=True):
    """An attempt took too long: what it still returns is not wanted."""

    activation: int
    key: str


class Ask(Message, frozen=True):
    """Say whether anything moves."""

    activation: int


class Forget(Message, frozen=True):
    """Let a run go, whatever it is doing."""

    activation: int


ToHost: TypeAlias = (
    Activate | Resolved | Advanced | HandlerDone | Again | HandlerAgain | Drop | Ask | Forget
)

# -- host to owner


class Said(Message, frozen=True):
    """The code of a run asks for something."""

    activation: int
    asked: CodeCommand


class Started(Message, frozen=True):
    """An attempt is under way that may take a while; the owner watches its timeout.

    Shape:  with `rollback` it is one of the step's rollback handler, which has no timeout.
    """

    activation: int
    step: Reached
    attempt: int
    policy: RetryPolicy
    rollback: bool = False


FromHost: TypeAlias = Said | Started


def activate(activation: int, run: CodeRun, entries_max: int) -> Activate:
    """The activation of a run as it stands: a copy, because it is sent when it is durable."""
    return Activate(
        activation,
        run.workflow,
        run.instance_id,
        run.run_number,
        run.params,
        run.seed,
        run.started_at_ms,
        max(run.resolved, run.retried),
        run.logged_at,
        run.lines,
        {key: _copy(entry) for key, entry in run.entries.items()},
        entries_max,
        run.rollback,
    )


def _copy(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, commits=dict(entry.commits))
