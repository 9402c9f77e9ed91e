"""When a schedule is due: the ticks of a cron expression in a time zone.

A tick is a whole second. An expression is read on the clock of its zone, and where that is put
forward or back, Debian's cron is followed. Minutes or hours that begin with * are due whenever the
clock shows them: not in an hour that it skips, twice in one that it repeats. All others are due
once: when it has skipped them, or the first time that it shows them. So a tick is one instant,
whoever computes it, from wherever they begin.

The library finds the times of an expression on a clock that is never put forward or back. Which
instants those are is decided here (ADR 0019 says why not there): between two changes of a zone's
clock its difference from UTC is constant.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

#: Ticks that are started at once. Whoever comes back after a year does not mean to run it all.
CATCH_UP_MAX: Final = 100

_SECOND_MS: Final = 1_000
#: Longer than any time that a clock repeats.
_REPEATED_MAX_S: Final = 6 * 60 * 60
#: A clock does not change twice within a day.
_DAY_S: Final = 24 * 60 * 60
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001, of a clock on a wall


class CatchUp(StrEnum):
    """What becomes of the ticks that nobody was there for."""

    ALL = "all"
    LATEST = "latest"
    SKIP = "skip"


class Cron(msgspec.Struct, frozen=True):
    """A cron expression of five fields, or six with seconds first, in a time zone."""

    expression: str
    timezone: str


class Due(msgspec.Struct, frozen=True):
    """The ticks to start, oldest first, and whether there were others that are passed over."""

    starts: tuple[int, ...]
    missed: bool


def cron_problem(cron: Cron) -> str | None:
    """Says what is wrong with a cron expression or its time zone, if anything."""
    if _zone(cron.timezone) is None:
        return (
            f"expected a time zone of the IANA database, such as UTC or Europe/Berlin, "
            f"found {cron.timezone!r}"
        )
    try:
        first = next(CronSim(cron.expression, _EPOCH), None)
    except CronSimError as why:
        return (
            "expected a cron expression of five fields (minute hour day-of-month month "
            f"day-of-week), or six with seconds first, found {cron.expression!r}: {why}"
        )
    if first is None:
        return f"expected a cron expression that comes true, found {cron.expression!r}"
    return None


def next_tick(cron: Cron, after_ms: int) -> int | None:
    """The first tick after a time; None if there is none for decades.

    Shape:  of a cron expression without a fault.
    Units:  Unix milliseconds.
    """
    clock = _Clock(cron)
    ticks = clock.once_forward if clock.is_fixed else clock.shown_forward
    return next((tick * _SECOND_MS for tick in ticks(after_ms // _SECOND_MS)), None)


def due(cron: Cron, after_ms: int, now_ms: int, *, catch_up: CatchUp, grace_ms: int) -> Due:
    """The ticks after one time, up to and with another, that are to be started.

    Shape:  those not older than `grace_ms` are on time and always started. Of the others `all`
            starts all, `skip` none, and `latest` the latest if none is on time. At most
            CATCH_UP_MAX, the latest ones. Of a cron expression without a fault.
    Units:  Unix milliseconds.
    """
    found = list(islice(_back(cron, after_ms, now_ms), CATCH_UP_MAX + 1))
    if catch_up is CatchUp.ALL:
        starts = found[:CATCH_UP_MAX]
    else:
        starts = [tick for tick in found[:CATCH_UP_MAX] if tick >= now_ms - grace_ms]
        if catch_up is CatchUp.LATEST and not starts:
            starts = found[:1]
    return Due(tuple(reversed(starts)), missed=len(found) > len(starts))


def _back(cron: Cron, after_ms: int, now_ms: int) -> Iterator[int]:
    """The ticks between two times, latest first."""
    clock = _Clock(cron)
    ticks = clock.once_back if clock.is_fixed else clock.shown_back
    for tick in ticks(now_ms // _SECOND_MS):
        if tick * _SECOND_MS <= after_ms:
            return
        yield tick * _SECOND_MS


@lru_cache(maxsize=1_000)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    # What is no name of a file in the database is refused in many ways.
    except (LookupError, ValueError, OSError):
        return None


class _Clock:
    """The clock on the wall of a schedule. All times are Unix seconds, but for `wall`."""

    def __init__(self, cron: Cron) -> None:
        self._expression = cron.expression
        self._zone = _zone(cron.timezone) or UTC
        minute, hour = cron.expression.split()[-5:-3]
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self._zone).utcoffset()
        return int(offset.total_seconds()) if offset is not None else 0

    def _walls(self, wall: int, *, reverse: bool = False) -> Iterator[int]:
        """The times on the wall that the expression means, after one or before it."""
        start = _EPOCH + timedelta(seconds=wall)
        for found in CronSim(self._expression, start, reverse=reverse):
            yield (found - _EPOCH) // timedelta(seconds=1)

    def _change(self, first: int, last: int) -> int | None:
        """The first instant after one, up to another, at which the difference is another."""
        offset = self._offset(first)
        while first < last:
            until = min(first + _DAY_S, last)
            if self._offset(until) != offset:
                while until - first > 1:
                    middle = (first + until) // 2
                    if self._offset(middle) == offset:
                        first = middle
                    else:
                        until = middle
                return until
            first = until
        return None

    def _last_change(self, first: int, last: int) -> int | None:
        """The last such instant."""
        while last > first:
            before = max(last - _DAY_S, first)
            found = self._change(before, last)
            if found is not None:
                return found
            last = before
        return None

    # -- times that count whenever they are shown

    def shown_forward(self, after: int) -> Iterator[int]:
        """The ticks after an instant."""
        since, offset = after, self._offset(after)
        while True:
            for wall in self._walls(after + offset):
                change = self._change(since, wall - offset)
                if change is not None:
                    after, since, offset = change - 1, change, self._offset(change)
                    break
                after = since = wall - offset
                yield after
            else:
                return

    def shown_back(self, now: int) -> Iterator[int]:
        """The ticks up to and with an instant, latest first."""
        end, until, offset = now + 1, now, self._offset(now)
        while True:
            for wall in self._walls(end + offset, reverse=True):
                change = self._last_change(wall - offset, until)
                if change is not None:
                    end, until, offset = change, change - 1, self._offset(change - 1)
                    break
                end = until = wall - offset
                yield end
            else:
                return

    # -- times that count once

    def once_forward(self, after: int) -> Iterator[int]:
        """The ticks after an instant."""
        for wall in self._walls(after + self._offset(after) - _REPEATED_MAX_S):
            tick = self._first(wall)
            if tick > after:
                yield tick
                after = tick

    def once_back(self, now: int) -> Iterator[int]:
        """The ticks up to and with an instant, latest first."""
        end = now + 1
        for wall in self._walls(now + self._offset(now) + _REPEATED_MAX_S, reverse=True):
            tick = self._first(wall)
            if tick < end:
                yield tick
                end = tick

    def _first(self, wall: int) -> int:
        """When the clock first shows a time, or has skipped it."""
        local = (_EPOCH + timedelta(seconds=wall)).replace(tzinfo=self._zone)
        first = int(local.timestamp())
        if first + self._offset(first) == wall:
            return first
        # By the difference from before the change; by that from after it, it is before it.
        skipped = self._change(int(local.replace(fold=1).timestamp()), first)
        return first if skipped is None else skipped
