"""Schedule requests to Terra: fair order, rate, and delays before repeats."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import IntEnum
from typing import Final, NamedTuple

#: Burst after an idle time, in seconds of the rate.
_BURST_S: Final = 1.0
#: Burst of one party, in requests: all types of data, requested twice.
_PARTY_BURST: Final = 8
#: Share of the rate that one party can use; four parties use all of it.
_PARTY_SHARE: Final = 0.25
#: Concurrent requests of one party, so that slow responses leave connections to others.
_PARTY_CONCURRENT: Final = 4
#: Waiting requests of one party and of all; one takes about 500 bytes and a task.
_PARTY_WAITING_MAX: Final = 64
_WAITING_MAX: Final = 1_000
#: Blocked parties in memory; above it, the oldest one is unblocked.
_BLOCKED_MAX: Final = 10_000
#: Longest time for which a party is blocked, whatever Terra requires.
_BLOCKED_S: Final = 3_600.0


class Lane(IntEnum):
    """Priority of requests; lanes have their own connections."""

    LABS = 0
    DATA = 1


class Party(NamedTuple):
    """The user, connection or account that a request is about; rates apply to it."""

    lane: Lane
    kind: str
    name: str


#: The account as a whole. Blocking it blocks all data, but no lab reports.
ACCOUNT: Final = Party(Lane.DATA, "account", "")

#: Concurrent requests of a lane, which is also its number of connections.
CONCURRENT: Final = {Lane.LABS: 4, Lane.DATA: 16}


class QueueFull(Exception):
    """Too many requests wait already."""


class _Queue:
    """Waiting requests of one party, and the state of its rate limit."""

    __slots__ = ("active", "due_s", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.due_s = float("-inf")
        self.active = 0


class FairQueue:
    """Grants turns to requests, fairly among parties and within the rates.

    Every request belongs to a party: a user, a connection of Terra, or the account as a whole.
    Parties take turns (round-robin) and have their own rate, and a Retry-After of Terra for one
    party does not delay others. Lab reports go first, because a user waits for them. A waiting
    request has no state besides its entry in the queue, so it can be cancelled at any time.

    All times are seconds of any monotonic clock.

    Args:
        rate: Requests a second, of all parties together.
    """

    def __init__(self, rate: float) -> None:
        self._gap_s = 1.0 / rate
        self._burst_s = max(_BURST_S, self._gap_s)
        self._party_gap_s = self._gap_s / _PARTY_SHARE
        #: When the next request is due.
        self._due_s = float("-inf")
        self._active = dict.fromkeys(Lane, 0)
        self._numbers = 0
        self._waiting: dict[int, Party] = {}
        #: Parties with waiting requests, in the order of their turns, by lane.
        self._order: dict[Lane, OrderedDict[Party, None]] = {lane: OrderedDict() for lane in Lane}
        self._queues: OrderedDict[Party, _Queue] = OrderedDict()
        self._blocked: OrderedDict[Party, float] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def remembered(self) -> int:
        """Number of parties in memory."""
        return len(self._queues.keys() | self._blocked.keys())

    def enqueue(self, party: Party) -> int:
        """Add a request that waits for its turn; return its number.

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
        """Yield the numbers of requests that may be sent now; they count as active from then on."""
        self._forget(now_s)
        while (party := self._next(now_s)) is not None:
            yield self._begin(party, now_s)

    def _next(self, now_s: float) -> Party | None:
        if self._due_s > now_s:
            return None
        for lane in Lane:
            if self._active[lane] < CONCURRENT[lane]:
                for party in self._order[lane]:
                    if self._ready_s(party) <= now_s and self._may_send(party):
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
        queue.active += 1
        self._active[party.lane] += 1
        return number

    def end(self, party: Party) -> None:
        """Note that a request has ended."""
        self._queues[party].active -= 1
        self._active[party.lane] -= 1

    def return_turn(self, party: Party) -> None:
        """Return an unused turn."""
        self._due_s -= self._gap_s
        self._queues[party].due_s -= self._gap_of(party)
        self.end(party)

    def cancel(self, number: int) -> None:
        """Remove a waiting request."""
        party = self._waiting.pop(number)
        queue = self._queues[party]
        queue.waiting.remove(number)
        if not queue.waiting:
            del self._order[party.lane][party]

    def block(self, party: Party, until_s: float, now_s: float) -> None:
        """Send no request of a party before `until_s`, as Terra required."""
        until_s = min(until_s, now_s + _BLOCKED_S)
        self._blocked[party] = max(until_s, self._blocked.pop(party, until_s))
        while len(self._blocked) > _BLOCKED_MAX:
            self._blocked.popitem(last=False)

    def blocked_s(self, party: Party, now_s: float) -> float:
        """Return for how many seconds a party is blocked."""
        return max(0.0, self._blocked_until_s(party) - now_s)

    def _blocked_until_s(self, party: Party) -> float:
        own_s = self._blocked.get(party, float("-inf"))
        if party.lane is Lane.LABS:
            return own_s
        return max(own_s, self._blocked.get(ACCOUNT, float("-inf")))

    def _ready_s(self, party: Party) -> float:
        return max(self._queues[party].due_s, self._blocked_until_s(party))

    def _gap_of(self, party: Party) -> float:
        """Return the seconds between requests of a party; the account has the whole rate."""
        return self._gap_s if party == ACCOUNT else self._party_gap_s

    def _may_send(self, party: Party) -> bool:
        return self._queues[party].active < _PARTY_CONCURRENT

    def next_s(self, now_s: float) -> float | None:
        """Return when a turn may be granted; None while that depends on an active request."""
        earliest_s = max(now_s, self._due_s)
        soonest_s: float | None = None
        for lane in Lane:
            if self._active[lane] < CONCURRENT[lane]:
                for party in filter(self._may_send, self._order[lane]):
                    ready_s = self._ready_s(party)
                    if ready_s <= earliest_s:
                        return earliest_s
                    soonest_s = ready_s if soonest_s is None else min(soonest_s, ready_s)
        return soonest_s

    def _forget(self, now_s: float) -> None:
        """Remove parties with a recovered rate limit and without waiting or active requests."""
        while self._blocked and next(iter(self._blocked.values())) <= now_s:
            self._blocked.popitem(last=False)
        for party in [*self._queues]:
            queue = self._queues[party]
            idle = not queue.waiting and not queue.active
            if idle and queue.due_s <= now_s - (_PARTY_BURST - 1) * self._gap_of(party):
                del self._queues[party]


# -- repeats

#: Retryable statuses: timeouts, rate limits, and temporary errors of a server or a proxy.
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BASE_S: Final = 0.5
_LONGEST_S: Final = 20.0


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _RETRYABLE or status > 504


def backoff_s(repeats: int, drawn: float) -> float:
    """Return the pause before a repeat: 50 to 100 percent of 0.5·2^repeats seconds, at most 20.

    Args:
        repeats: Number of the repeat, from 0.
        drawn: Random number, 0 <= drawn < 1.
    """
    longest = min(_LONGEST_S, _BASE_S * 2.0**repeats)
    return longest * (0.5 + 0.5 * drawn)


def retry_after_s(header: str, now_s: float) -> float | None:
    """Parse Retry-After, seconds or a date (RFC 9110), into seconds; None if it is invalid."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())


# -- waiting requests


class RequestScheduler:
    """Delays requests until the queue grants their turns.

    Args:
        queue: Decides which requests may be sent.
        clock: Returns seconds of a monotonic clock.
        speedup: How many times faster than the event loop's clock that clock runs.
    """

    def __init__(self, queue: FairQueue, clock: Callable[[], float], speedup: float = 1.0) -> None:
        self._queue = queue
        self._clock = clock
        self._speedup = speedup
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, party: Party) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the request is in progress.

        A caller that is cancelled while it waits takes no turn; one that is cancelled after the
        turn was granted returns it.

        Raises:
            QueueFull: Too many requests wait.
        """
        await self._wait(party)
        try:
            yield
        finally:
            self._queue.end(party)
            self._serve()

    async def _wait(self, party: Party) -> None:
        number = self._queue.enqueue(party)
        granted = asyncio.get_running_loop().create_future()
        self._granted[number] = granted
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if self._granted.pop(number, None) is not None:
                self._queue.cancel(number)
            else:
                self._queue.return_turn(party)
            self._serve()
            raise

    def _serve(self) -> None:
        """Grant turns, and set a timer for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        for number in self._queue.grant(now_s):
            granted = self._granted.pop(number)
            if not granted.done():
                granted.set_result(None)
        next_s = self._queue.next_s(now_s)
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later((next_s - now_s) / self._speedup, self._serve)
