"""Positions in the history: stated by responses, and awaited by later reads from Postgres.

Format: `workflow-history/3@123`, for all records of partition 3 up to offset 123.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from headwater.gateway.api.problems import Problem
from headwater.schemas.errors import HeadwaterError, StoreUnavailable
from headwater.schemas.topics import WORKFLOW_HISTORY

#: Partition to the last offset that is applied, or required to be.
Positions: TypeAlias = Mapping[int, int]

HEADER: Final = "headwater-position"
PARAMETER: Final = "min_position"

_POSITION: Final = re.compile(rf"{WORKFLOW_HISTORY}/(\d{{1,9}})@(\d{{1,18}})", re.ASCII)
#: Most positions in a header; a longer one would exceed the limits of proxies.
_STATED_MAX: Final = 100
#: Most positions that a request may require: the most partitions of a topic.
_REQUIRED_MAX: Final = 1_000


def format_positions(positions: Positions) -> str:
    """Format positions as a header value; empty if there are too many, or none."""
    if len(positions) > _STATED_MAX:
        return ""
    return ", ".join(
        f"{WORKFLOW_HISTORY}/{partition}@{offset}"
        for partition, offset in sorted(positions.items())
        if offset >= 0
    )


def read_positions(texts: Iterable[str]) -> dict[int, int]:
    """Parse positions separated by commas; of one partition the furthest counts.

    Raises:
        Problem: A text is not a position, or there are too many.
    """
    required: dict[int, int] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        match = _POSITION.fullmatch(part)
        if match is None or len(required) >= _REQUIRED_MAX:
            raise Problem(
                "invalid_parameter",
                f"{PARAMETER}: expected at most {_REQUIRED_MAX} positions such as "
                f"{WORKFLOW_HISTORY}/3@123, separated by commas, found {part[:60]!r}",
                field=PARAMETER,
            )
        partition, offset = int(match[1]), int(match[2])
        required[partition] = max(offset, required.get(partition, -1))
    return required


def furthest(positions: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the furthest offsets by partition."""
    offsets: dict[int, int] = {}
    for partition, offset in positions:
        offsets[partition] = max(offset, offsets.get(partition, -1))
    return offsets


# -- progress of the projection

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds between two polls, at first and at least. The projector applies a batch in about 5 ms;
#: all requests that arrive within a pause share the next poll.
_PAUSE_S: Final = 0.002
#: Growth of the pause, up to a maximum: a projector that lags is likely to lag longer.
_PAUSE_GROWTH: Final = 1.5
_PAUSE_MAX_S: Final = 0.05
#: Pause in seconds while only streams of changes wait.
_PATIENT_PAUSE_S: Final = 0.1

#: Seconds that reads wait for Postgres to recover lost rows; after that they accept its state.
_RECOVERY_S: Final = 60.0

#: Decides from the positions that are applied whether a wait is over: `all` or `any`.
_Enough: TypeAlias = Callable[[Iterable[bool]], bool]


class _Waiter:
    """A request that waits until all positions are applied, or one of them."""

    __slots__ = ("applied", "enough", "patient", "positions")

    def __init__(self, positions: Positions, patient: bool, enough: _Enough) -> None:
        self.positions = positions
        self.patient = patient
        self.enough = enough
        self.applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Freshness:
    """Tracks the applied offsets of the projection, and waits for them.

    One poller serves all requests that wait, and polls only while requests wait: often for requests
    that wait for their own write, less often for streams of changes.
    """

    def __init__(self, next_offsets: Callable[[], Awaitable[Mapping[int, int]]]) -> None:
        self._fetch_next_offsets = next_offsets
        self._next: Mapping[int, int] = {}
        #: Next offsets before Postgres lost rows, and when the loss was noticed.
        self._highest: Mapping[int, int] = {}
        self._lost_at_s: float | None = None
        self._waiters: set[_Waiter] = set()
        self._has_waiters = asyncio.Event()
        self._impatient_arrived = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start polling in the background."""
        self._poller = asyncio.create_task(self._poll_forever(), name="poll positions")

    async def stop(self) -> None:
        """Stop polling; requests that still wait get StoreUnavailable."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        self._fail(
            StoreUnavailable("expected to wait for Postgres, found that the gateway shuts down")
        )

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiters)

    def applied(self) -> dict[int, int]:
        """Return the last applied offsets of the partitions as of the last poll."""
        return {partition: offset - 1 for partition, offset in self._next.items() if offset > 0}

    async def refresh(self) -> dict[int, int]:
        """Poll now; return the last applied offsets of the partitions.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        await self._wait({}, patient=False)
        return self.applied()

    def lost(self) -> Positions:
        """Return the positions that Postgres had applied and has lost.

        It loses rows when it fails over to a standby that lagged, or crashes with commits that had
        not reached the disk. The projector writes them again.
        """
        return {
            partition: offset - 1
            for partition, offset in self._highest.items()
            if self._next.get(partition, 0) < offset
        }

    def _note_loss(self) -> None:
        lost, now_s = self.lost(), asyncio.get_running_loop().time()
        if lost and self._lost_at_s is None:
            self._lost_at_s = now_s
            _LOG.warning(
                "Postgres lost rows of workflows that it had (up to %s); reads wait until the "
                "projector has written them again, at most %.0f s",
                lost,
                _RECOVERY_S,
            )
        if not lost or (self._lost_at_s is not None and now_s - self._lost_at_s > _RECOVERY_S):
            self._highest, self._lost_at_s = dict(self._next), None

    async def wait_until_applied(
        self, positions: Positions, timeout_s: float, *, patient: bool = False
    ) -> bool:
        """Wait until positions are applied; return whether they are.

        Args:
            positions: The positions.
            timeout_s: Most seconds to wait.
            patient: Whether a longer pause between polls is enough.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        return await self._wait_for(timeout_s, positions, patient, all)

    async def wait_until_advanced(self, since: Positions, timeout_s: float) -> bool:
        """Wait until any partition is applied further; return whether one is.

        It is polled as for streams of changes.

        Args:
            since: Positions that are known to be applied.
            timeout_s: Most seconds to wait.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        partitions = since.keys() | self._next.keys()
        following = {partition: since.get(partition, -1) + 1 for partition in partitions}
        return await self._wait_for(timeout_s, following, True, any)

    async def _wait_for(
        self, timeout_s: float, positions: Positions, patient: bool, enough: _Enough
    ) -> bool:
        if self._has(positions, enough):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait(positions, patient=patient, enough=enough)
        except TimeoutError:
            return False
        return True

    async def _wait(self, positions: Positions, *, patient: bool, enough: _Enough = all) -> None:
        waiter = _Waiter(positions, patient, enough)
        self._waiters.add(waiter)
        self._has_waiters.set()
        if not patient:
            self._impatient_arrived.set()
        try:
            await waiter.applied
        finally:
            self._waiters.discard(waiter)

    def _has(self, positions: Positions, enough: _Enough) -> bool:
        return enough(
            self._next.get(partition, 0) > offset for partition, offset in positions.items()
        )

    async def _poll_forever(self) -> None:
        pause_s = _PAUSE_S
        while True:
            if not self._waiters:
                self._has_waiters.clear()
                await self._has_waiters.wait()
                # How long earlier requests waited does not matter to the next one.
                pause_s = _PAUSE_S
            self._impatient_arrived.clear()
            await self._poll()
            if self._waiters and await self._pause(pause_s):
                pause_s = _PAUSE_S
            else:
                pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_MAX_S)

    async def _pause(self, pause_s: float) -> bool:
        """Sleep; return True, and early, if an impatient request arrives."""
        # Requests remove themselves first when their wait is over.
        await asyncio.sleep(_PAUSE_S)
        if not self._waiters:
            return False
        patient = all(waiter.patient for waiter in self._waiters)
        try:
            async with asyncio.timeout((_PATIENT_PAUSE_S if patient else pause_s) - _PAUSE_S):
                await self._impatient_arrived.wait()
        except TimeoutError:
            return False
        return True

    async def _poll(self) -> None:
        try:
            self._next = await self._fetch_next_offsets()
        except HeadwaterError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 (passed on to the waiting requests)
            # The next poll may succeed.
            _LOG.exception("reading the position of the workflow projection failed")
            self._fail(error)
        else:
            self._note_loss()
            for waiter in self._waiters:
                if self._has(waiter.positions, waiter.enough) and not waiter.applied.done():
                    waiter.applied.set_result(None)

    def _fail(self, error: Exception) -> None:
        for waiter in self._waiters:
            if not waiter.applied.done():
                waiter.applied.set_exception(error)
