"""Compute when a schedule is due: the ticks of a cron expression in a time zone.

A tick is a whole second. An expression refers to the local time of its zone; changes of the zone's
offset are handled as in Debian's cron. Minutes or hours that begin with * are due whenever the
clock shows them: not in an hour that is skipped, twice in one that is repeated. All others are due
once: when the time was skipped, or when it occurs for the first time. So a tick is one instant,
regardless of where and from which start it is computed.

The library computes the times of an expression for a clock without changes. This module maps them
to instants (ADR 0019 explains why): between two changes of a zone its offset from UTC is constant.
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

#: Ticks that are started together. After a year of downtime not all of them are useful.
CATCH_UP_MAX: Final = 100

_SECOND_MS: Final = 1_000
#: Longer than any time that is repeated at a change.
_REPEATED_MAX_S: Final = 6 * 60 * 60
#: A zone does not change twice within a day.
_DAY_S: Final = 24 * 60 * 60
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001, local time


class CatchUp(StrEnum):
    """What happens to ticks that were missed because no process was running."""

    ALL = "all"
    LATEST = "latest"
    SKIP = "skip"


class Cron(msgspec.Struct, frozen=True):
    """A cron expression of five fields, or six with seconds first, in a time zone."""

    expression: str
    timezone: str


class Due(msgspec.Struct, frozen=True):
    """The ticks to start, oldest first, and whether others are skipped."""

    starts: tuple[int, ...]
    missed: bool


def cron_problem(cron: Cron) -> str | None:
    """Return what is wrong with a cron expression or its time zone, or None."""
    if _zone(cron.timezone) is None:
        return (
            f"expected a time zone of the IANA database, such as UTC or Europe/Berlin, "
            f"found {cron.timezone!r}"
        )
    try:
        first = next(CronSim(cron.expression, _EPOCH), None)
    except CronSimError as error:
        return (
            "expected a cron expression of five fields (minute hour day-of-month month "
            f"day-of-week), or six with seconds first, found {cron.expression!r}: {error}"
        )
    if first is None:
        return f"expected a cron expression that matches a date, found {cron.expression!r}"
    return None


def next_tick(cron: Cron, after_ms: int) -> int | None:
    """Return the first tick after a time; None if there is none for decades.

    Args:
        cron: A valid cron expression.
        after_ms: The time, in Unix milliseconds.

    Returns:
        The tick in Unix milliseconds.
    """
    clock = _Clock(cron)
    ticks = clock.fixed_forward if clock.is_fixed else clock.wildcard_forward
    return next((tick * _SECOND_MS for tick in ticks(after_ms // _SECOND_MS)), None)


def due_ticks(cron: Cron, after_ms: int, now_ms: int, *, catch_up: CatchUp, grace_ms: int) -> Due:
    """Return the ticks to start in an interval.

    Ticks that are at most `grace_ms` old are on time and always started. Of older ones `all` starts
    all, `skip` none, and `latest` the latest if none is on time. At most the CATCH_UP_MAX latest
    ticks are started.

    Args:
        cron: A valid cron expression.
        after_ms: Start of the interval, exclusive, in Unix milliseconds.
        now_ms: End of the interval, inclusive, in Unix milliseconds.
        catch_up: What happens to ticks that are not on time.
        grace_ms: How late a tick may be to be on time.
    """
    ticks = list(islice(_back(cron, after_ms, now_ms), CATCH_UP_MAX + 1))
    if catch_up is CatchUp.ALL:
        starts = ticks[:CATCH_UP_MAX]
    else:
        starts = [tick for tick in ticks[:CATCH_UP_MAX] if tick >= now_ms - grace_ms]
        if catch_up is CatchUp.LATEST and not starts:
            starts = ticks[:1]
    return Due(tuple(reversed(starts)), missed=len(ticks) > len(starts))


def _back(cron: Cron, after_ms: int, now_ms: int) -> Iterator[int]:
    """Yield the ticks between two times, latest first."""
    clock = _Clock(cron)
    ticks = clock.fixed_back if clock.is_fixed else clock.wildcard_back
    for tick in ticks(now_ms // _SECOND_MS):
        if tick * _SECOND_MS <= after_ms:
            return
        yield tick * _SECOND_MS


@lru_cache(maxsize=1_000)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    # The database rejects invalid file names with various errors.
    except (LookupError, ValueError, OSError):
        return None


class _Clock:
    """The local clock of a schedule. All times are Unix seconds, except `local` times."""

    def __init__(self, cron: Cron) -> None:
        self._expression = cron.expression
        self._zone = _zone(cron.timezone) or UTC
        minute, hour = cron.expression.split()[-5:-3]
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self._zone).utcoffset()
        return int(offset.total_seconds()) if offset is not None else 0

    def _local_times(self, local: int, *, reverse: bool = False) -> Iterator[int]:
        """Yield the local times of the expression after a local time, or before it."""
        start = _EPOCH + timedelta(seconds=local)
        for time in CronSim(self._expression, start, reverse=reverse):
            yield (time - _EPOCH) // timedelta(seconds=1)

    def _change(self, first: int, last: int) -> int | None:
        """Return the first instant in (first, last] with a different offset, or None."""
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
        """Return the last instant in (first, last] at which the offset changes, or None."""
        while last > first:
            before = max(last - _DAY_S, first)
            change = self._change(before, last)
            if change is not None:
                return change
            last = before
        return None

    # -- expressions with wildcards: due whenever the clock shows them

    def wildcard_forward(self, after: int) -> Iterator[int]:
        """Yield the ticks after an instant."""
        since, offset = after, self._offset(after)
        while True:
            for local in self._local_times(after + offset):
                change = self._change(since, local - offset)
                if change is not None:
                    after, since, offset = change - 1, change, self._offset(change)
                    break
                after = since = local - offset
                yield after
            else:
                return

    def wildcard_back(self, now: int) -> Iterator[int]:
        """Yield the ticks up to an instant, inclusive, latest first."""
        end, until, offset = now + 1, now, self._offset(now)
        while True:
            for local in self._local_times(end + offset, reverse=True):
                change = self._last_change(local - offset, until)
                if change is not None:
                    end, until, offset = change, change - 1, self._offset(change - 1)
                    break
                end = until = local - offset
                yield end
            else:
                return

    # -- fixed times: due once

    def fixed_forward(self, after: int) -> Iterator[int]:
        """Yield the ticks after an instant."""
        for local in self._local_times(after + self._offset(after) - _REPEATED_MAX_S):
            tick = self._first(local)
            if tick > after:
                yield tick
                after = tick

    def fixed_back(self, now: int) -> Iterator[int]:
        """Yield the ticks up to an instant, inclusive, latest first."""
        end = now + 1
        for local in self._local_times(now + self._offset(now) + _REPEATED_MAX_S, reverse=True):
            tick = self._first(local)
            if tick < end:
                yield tick
                end = tick

    def _first(self, local: int) -> int:
        """Return the instant at which the clock first shows a local time, or has skipped it."""
        zoned = (_EPOCH + timedelta(seconds=local)).replace(tzinfo=self._zone)
        first = int(zoned.timestamp())
        if first + self._offset(first) == local:
            return first
        # Skipped: `first` uses the offset before the change; with the one after it, it is earlier.
        skipped = self._change(int(zoned.replace(fold=1).timestamp()), first)
        return first if skipped is None else skipped
