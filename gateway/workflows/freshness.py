"""How far Postgres has come: one poller, for everybody who waits for it.

While nobody waits nothing is asked. Who waits because a caller does is asked for soon and often;
who follows a run can wait longer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from headwater.gateway.workflows.positions import Positions
from headwater.schemas.errors import HeadwaterError, StoreUnavailable

_LOG: Final = logging.getLogger("headwater.gateway")

#: Seconds between two looks, at first and at least: the projector takes a batch in about 5 ms, and
#: all who come within a pause share the next look.
_PAUSE_S: Final = 0.002
#: Each pause is longer than the one before, up to here: what lags, lags for longer.
_PAUSE_GROWTH: Final = 1.5
_PAUSE_MAX_S: Final = 0.05
#: The pause while nobody waits but those who follow runs.
_PATIENT_PAUSE_S: Final = 0.1

#: How long Postgres is given to come back to where it was, after it lost rows that were read from
#: it; after that what it has now is what there is.
_RECOVERY_S: Final = 60.0

#: Whether so many of the positions are applied that a wait is over.
_Enough: TypeAlias = Callable[[Iterable[bool]], bool]


class _Waiter:
    """Somebody who waits until positions are applied: all of them, or one."""

    __slots__ = ("applied", "enough", "patient", "wanted")

    def __init__(self, wanted: Positions, patient: bool, enough: _Enough) -> None:
        self.wanted = wanted
        self.patient = patient
        self.enough = enough
        self.applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Freshness:
    """Knows how far the projection of workflows is, and waits until it is further."""

    def __init__(self, next_offsets: Callable[[], Awaitable[Mapping[int, int]]]) -> None:
        self._ask = next_offsets
        self._next: Mapping[int, int] = {}
        #: The positions before Postgres went back, and when that was noticed.
        self._highest: Mapping[int, int] = {}
        self._lost_at_s: float | None = None
        self._waiters: set[_Waiter] = set()
        self._somebody = asyncio.Event()
        self._hurry = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts in the background."""
        self._poller = asyncio.create_task(self._poll_for_ever(), name="poll positions")

    async def stop(self) -> None:
        """Ends; who waits still is told StoreUnavailable."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        self._fail(StoreUnavailable("expected to wait for Postgres, found that the gateway ends"))

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def applied(self) -> dict[int, int]:
        """The last offset of each partition that was applied when somebody last looked."""
        return {partition: offset - 1 for partition, offset in self._next.items() if offset > 0}

    async def look(self) -> dict[int, int]:
        """The last offset of each partition that is applied now.

        Errors: StoreUnavailable.
        """
        await self._wait({}, patient=False)
        return self.applied()

    def lost(self) -> Positions:
        """Return the positions that Postgres had and does not have any more.

        It has lost rows if it failed over to a standby that lagged, or crashed with commits that
        had not reached the disk. The projector writes them again.
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

    async def reached(self, wanted: Positions, within_s: float, *, patient: bool = False) -> bool:
        """Waits until positions are applied; tells whether they are.

        Errors: StoreUnavailable.
        """
        return await self._within(within_s, wanted, patient, all)

    async def moved(self, since: Positions, within_s: float) -> bool:
        """Waits until more is applied of any partition, as long as it takes; tells whether.

        Errors: StoreUnavailable.
        """
        partitions = since.keys() | self._next.keys()
        behind = {partition: since.get(partition, -1) + 1 for partition in partitions}
        return await self._within(within_s, behind, True, any)

    async def _within(
        self, within_s: float, wanted: Positions, patient: bool, enough: _Enough
    ) -> bool:
        if self._has(wanted, enough):
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._wait(wanted, patient=patient, enough=enough)
        except TimeoutError:
            return False
        return True

    async def _wait(self, wanted: Positions, *, patient: bool, enough: _Enough = all) -> None:
        waiter = _Waiter(wanted, patient, enough)
        self._waiters.add(waiter)
        self._somebody.set()
        if not patient:
            self._hurry.set()
        try:
            await waiter.applied
        finally:
            self._waiters.discard(waiter)

    def _has(self, wanted: Positions, enough: _Enough) -> bool:
        return enough(self._next.get(partition, 0) > at for partition, at in wanted.items())

    async def _poll_for_ever(self) -> None:
        pause_s = _PAUSE_S
        while True:
            if not self._waiters:
                self._somebody.clear()
                await self._somebody.wait()
                # How long those before had to wait says nothing of whoever comes now.
                pause_s = _PAUSE_S
            self._hurry.clear()
            await self._poll()
            if self._waiters and await self._rest(pause_s):
                pause_s = _PAUSE_S
            else:
                pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_MAX_S)

    async def _rest(self, pause_s: float) -> bool:
        """Rests, for less time if somebody comes who is in a hurry; tells whether."""
        # By then those who were told have left.
        await asyncio.sleep(_PAUSE_S)
        if not self._waiters:
            return False
        patient = all(waiter.patient for waiter in self._waiters)
        try:
            async with asyncio.timeout((_PATIENT_PAUSE_S if patient else pause_s) - _PAUSE_S):
                await self._hurry.wait()
        except TimeoutError:
            return False
        return True

    async def _poll(self) -> None:
        try:
            self._next = await self._ask()
        except HeadwaterError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 (they are handed to whoever waits)
            # Whoever waits must hear of it, and the next look may succeed.
            _LOG.exception("looking for the position of workflows failed")
            self._fail(error)
        else:
            self._note_loss()
            for waiter in self._waiters:
                if self._has(waiter.wanted, waiter.enough) and not waiter.applied.done():
                    waiter.applied.set_result(None)

    def _fail(self, error: Exception) -> None:
        for waiter in self._waiters:
            if not waiter.applied.done():
                waiter.applied.set_exception(error)
