"""What owners and code hosts send each other, as far as every engine has it.

A run that a host works on is an activation, with a number that is never used again: a message about
an older one concerns nobody. Many messages travel in one frame.
"""

from typing import Generic, TypeVar

import msgspec

from headwater.processors.runs.requests import Reached, Request, RetryPolicy

R = TypeVar("R", bound=Request)


class HostMessage(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """Base of all messages, in both directions."""

    activation: int


# -- owner to host


class Drop(HostMessage, frozen=True):
    """An attempt took too long: what it still returns is not wanted."""

    key: str


class Ask(HostMessage, frozen=True):
    """Say whether anything moves."""


class Forget(HostMessage, frozen=True):
    """Let a run go, whatever it is doing."""


class Allow(HostMessage, frozen=True):
    """Begin so many attempts of steps from now on, and no more; None for any number.

    Shape:  concerns all runs of the host, whatever the activation is.
    """

    attempts: int | None


class Ping(HostMessage, frozen=True):
    """Answer with `Pong` when all that came before this is done; concerns no activation."""


# -- host to owner


class Requested(HostMessage, Generic[R], frozen=True):
    """The code of a run, or a step of it, asks for something."""

    request: R


class HandBack(HostMessage, frozen=True):
    """The host may begin no more attempts: a run goes on once it is given it again."""


class Pong(HostMessage, frozen=True):
    """All that came before a `Ping` is done."""


class Started(HostMessage, frozen=True):
    """An attempt is under way that may take a while; the owner watches its timeout.

    Shape:  with `rollback` it is one of the step's rollback handler, with the handler's timeout.
    """

    step: Reached
    attempt: int
    policy: RetryPolicy
    rollback: bool = False
