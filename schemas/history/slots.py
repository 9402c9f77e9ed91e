"""Events of slots: one instance per concurrency limit counts them.

A ticket identifies the requesting run: the instance, the number and the seed of the run, so that a
run of an instance that was deleted and created again has another ticket.
"""

from typing import TypeAlias

from headwater.schemas.history.values import Json, Tagged


class OfSlots(Tagged, frozen=True):
    """Base of the events of an instance that counts slots."""


class SlotsLimited(OfSlots, frozen=True):
    """The number of slots from now on."""

    #: Number of slots; null for any number.
    limit: int | None = None


class SlotQueued(OfSlots, frozen=True):
    """A run waits for a slot."""

    #: Ticket of the run.
    ticket: str
    #: Its number in the queue, in the order of arrival.
    number: int
    #: The key of the limit, JSON text; null for a limit without one.
    key: Json | None = None


class SlotsGiven(OfSlots, frozen=True):
    """Slots were granted to the runs that have waited longest."""

    #: Granted to all that have waited up to this number.
    through: int


class SlotReturned(OfSlots, frozen=True):
    """A run no longer needs its slot, or has left the queue."""

    #: The run's number in the queue.
    number: int


#: The events of an instance that counts slots.
SlotEvent: TypeAlias = SlotsLimited | SlotQueued | SlotsGiven | SlotReturned
