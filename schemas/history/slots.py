"""Events of slots: how a limit of concurrency is counted, by one instance for each limit.

A ticket names who asks: the instance, its run, and the seed of that, so that a run of an instance
that was deleted and created anew has another.
"""

from typing import TypeAlias

from headwater.schemas.history.values import Json, Tagged


class OfSlots(Tagged, frozen=True):
    """Base of the events of an instance that counts slots."""


class SlotsLimited(OfSlots, frozen=True):
    """There are as many slots from now on."""

    #: How many; null for any number.
    limit: int | None = None


class SlotQueued(OfSlots, frozen=True):
    """A run waits for a slot."""

    #: Whose place it is.
    ticket: str
    #: Its number, in the order of arrival.
    number: int
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class SlotsGiven(OfSlots, frozen=True):
    """Whoever has waited longest has a slot."""

    #: All who have waited with this number, or one before it.
    through: int


class SlotReturned(OfSlots, frozen=True):
    """A run needs its slot no longer, or does not wait for one any more."""

    #: The number of its place.
    number: int


#: The events of an instance that counts slots.
SlotEvent: TypeAlias = SlotsLimited | SlotQueued | SlotsGiven | SlotReturned
