"""Whose request to Terra is sent next: decisions without a clock.

Every request belongs to a party: a user of ours, a connection of Terra's, or Terra's account as a
whole. Parties take turns, each has a rate of its own, and a party that Terra has told to wait holds
nobody else. Lab reports go first: a person waits for them. A request that waits holds nothing, so
one that is cancelled leaves nothing behind.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

#: Requests that are sent at once after a rest, in seconds of the rate.
_BURST_S: Final = 1.0
#: Requests of one party that are sent at once after a rest: all types of data, asked for twice.
_PARTY_BURST: Final = 8
#: Of the rate, what one party can have. Four parties at once fill it.
_PARTY_SHARE: Final = 0.25
#: Requests of one party under way: one that Terra answers slowly leaves connections to others.
_PARTY_FLIGHTS: Final = 4
#: Requests that wait, of one party and of all; each is some 500 bytes and a task.
_PARTY_WAITING_MAX: Final = 64
_WAITING_MAX: Final = 1_000
#: Parties that Terra has told to wait, at most; beyond, the oldest of them may be asked again.
_HELD_MAX: Final = 10_000
#: A party is not held for longer, whatever Terra says.
_HELD_S: Final = 3_600.0


class Lane(IntEnum):
    """What is sent first, and over which connections."""

    LABS = 0
    DATA = 1


class Party(NamedTuple):
    """Whom a request is about."""

    lane: Lane
    kind: str
    name: str


#: Terra's account as a whole. Holding it holds all data, but no lab reports.
ACCOUNT: Final = Party(Lane.DATA, "account", "")

#: Requests of a lane under way, which is how many connections it has.
FLIGHTS: Final = {Lane.LABS: 4, Lane.DATA: 16}


class QueueFull(Exception):
    """Too many requests wait already."""


class _Queue:
    """Requests of one party that wait, and what it may send."""

    __slots__ = ("due_s", "flights", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.due_s = float("-inf")
        self.flights = 0


class Turns:
    """Grants turns.

    Args:
        rate: Requests a second, of all parties together.

    All times are seconds of any steady clock.
    """

    def __init__(self, rate: float) -> None:
        self._gap_s = 1.0 / rate
        self._burst_s = max(_BURST_S, self._gap_s)
        self._party_gap_s = self._gap_s / _PARTY_SHARE
        #: When the request after all that were sent is due.
        self._due_s = float("-inf")
        self._flights = dict.fromkeys(Lane, 0)
        self._numbers = 0
        self._waiting: dict[int, Party] = {}
        #: Parties with requests that wait, in the order of their turns, by lane.
        self._order: dict[Lane, OrderedDict[Party, None]] = {lane: OrderedDict() for lane in Lane}
        self._queues: OrderedDict[Party, _Queue] = OrderedDict()
        self._held: OrderedDict[Party, float] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def remembered(self) -> int:
        """Of how many parties something is remembered."""
        return len(self._queues.keys() | self._held.keys())

    def enqueue(self, party: Party) -> int:
        """Have a request wait for its turn; return its number.

        Raises:
            QueueFull: Too many requests wait.
        """
        queue = self._queues.setdefault(party, _Queue())
        if len(queue.waiting) >= _PARTY_WAITING_MAX or len(self._waiting) >= _WAITING_MAX:
            raise QueueFull
        self._numbers += 1
        queue.waiting.append(self._numbers)
        self._waiting[self._numbers] = party
        self._order[party.lane].setdefault(party)
        return self._numbers

    def grant(self, now_s: float) -> Iterator[int]:
        """Yield the numbers of requests whose turn it is now; each is under way from then on."""
        self._forget(now_s)
        while (party := self._next(now_s)) is not None:
            yield self._begin(party, now_s)

    def _next(self, now_s: float) -> Party | None:
        if self._due_s > now_s:
            return None
        for lane in Lane:
            if self._flights[lane] < FLIGHTS[lane]:
                for party in self._order[lane]:
                    if self._ready_s(party) <= now_s and self._has_room(party):
                        return party
        return None

    def _begin(self, party: Party, now_s: float) -> int:
        queue, order = self._queues[party], self._order[party.lane]
        number = queue.waiting.popleft()
        del self._waiting[number]
        order.move_to_end(party)
        if not queue.waiting:
            del order[party]
        self._due_s = max(self._due_s, now_s - self._burst_s + self._gap_s) + self._gap_s
        gap_s = self._gap_of(party)
        queue.due_s = max(queue.due_s, now_s - (_PARTY_BURST - 1) * gap_s) + gap_s
        queue.flights += 1
        self._flights[party.lane] += 1
        return number

    def end(self, party: Party) -> None:
        """Note that a request is no longer under way."""
        self._queues[party].flights -= 1
        self._flights[party.lane] -= 1

    def give_back(self, party: Party) -> None:
        """Note that a request that had its turn was not sent."""
        self._due_s -= self._gap_s
        self._queues[party].due_s -= self._gap_of(party)
        self.end(party)

    def cancel(self, number: int) -> None:
        """Take back a request that waits."""
        party = self._waiting.pop(number)
        queue = self._queues[party]
        queue.waiting.remove(number)
        if not queue.waiting:
            del self._order[party.lane][party]

    def hold(self, party: Party, until_s: float, now_s: float) -> None:
        """Let no request of a party be sent before a moment: Terra has asked for it."""
        until_s = min(until_s, now_s + _HELD_S)
        self._held[party] = max(until_s, self._held.pop(party, until_s))
        while len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    def held_s(self, party: Party, now_s: float) -> float:
        """Return for how many seconds a party is held."""
        return max(0.0, self._held_until_s(party) - now_s)

    def _held_until_s(self, party: Party) -> float:
        own_s = self._held.get(party, float("-inf"))
        if party.lane is Lane.LABS:
            return own_s
        return max(own_s, self._held.get(ACCOUNT, float("-inf")))

    def _ready_s(self, party: Party) -> float:
        return max(self._queues[party].due_s, self._held_until_s(party))

    def _gap_of(self, party: Party) -> float:
        """Seconds between requests of a party; the account's are for all users."""
        return self._gap_s if party == ACCOUNT else self._party_gap_s

    def _has_room(self, party: Party) -> bool:
        return self._queues[party].flights < _PARTY_FLIGHTS

    def next_s(self, now_s: float) -> float | None:
        """Return when a turn may be granted; None while that depends on a request under way."""
        earliest_s = max(now_s, self._due_s)
        soonest_s: float | None = None
        for lane in Lane:
            if self._flights[lane] < FLIGHTS[lane]:
                for party in filter(self._has_room, self._order[lane]):
                    ready_s = self._ready_s(party)
                    if ready_s <= earliest_s:
                        return earliest_s
                    soonest_s = ready_s if soonest_s is None else min(soonest_s, ready_s)
        return soonest_s

    def _forget(self, now_s: float) -> None:
        """Forget parties that are as new: nothing waits or is under way, and no pause is left."""
        while self._held and next(iter(self._held.values())) <= now_s:
            self._held.popitem(last=False)
        for party in [*self._queues]:
            queue = self._queues[party]
            idle = not queue.waiting and not queue.flights
            if idle and queue.due_s <= now_s - (_PARTY_BURST - 1) * self._gap_of(party):
                del self._queues[party]
