"""When a schedule is due: the ticks of a cron expression in a time zone.

A tick is a whole second. Cron is read in local time: what falls into the hour that a clock skips is
due when it has skipped, what falls into the hour that it repeats is due once, unless it is due
every hour anyway; as in Debian's cron, whose rules the library follows. So a tick is one instant,
whoever computes it, from wherever they begin.
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
_REPEATED_MAX_MS: Final = 3 * 60 * 60 * 1_000


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


def cron_fault(cron: Cron) -> str | None:
    """Says what is wrong with a cron expression or its time zone, if anything."""
    if _zone(cron.timezone) is None:
        return (
            f"expected a time zone of the IANA database, such as UTC or Europe/Berlin, "
            f"found {cron.timezone!r}"
        )
    try:
        first = next(CronSim(cron.expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as why:
        return (
            "expected a cron expression of five fields (minute hour day-of-month month "
            f"day-of-week), or six with seconds first, found {cron.expression!r}: {why}"
        )
    if first is None:
        return f"expected a cron expression that comes true, found {cron.expression!r}"
    return None


def next_tick(cron: Cron, after_ms: int) -> int | None:
    """The first tick behind a time; None if there is none for decades.

    Shape:  of a cron expression without a fault.
    Units:  Unix milliseconds.
    """
    return next((_ms(tick) for tick in CronSim(cron.expression, _local(cron, after_ms))), None)


def due(cron: Cron, after_ms: int, now_ms: int, *, catch_up: CatchUp, grace_ms: int) -> Due:
    """The ticks behind one time, up to and with another, that are to be started.

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
    # The library gives what is before its start; a tick at this very second has come.
    start = _local(cron, now_ms + _SECOND_MS)
    if start.fold:
        # Going back from within a repeated hour, it would take that for the first of the two.
        start = _local(cron, now_ms + _REPEATED_MAX_MS)
    for tick in CronSim(cron.expression, start, reverse=True):
        if _ms(tick) <= after_ms:
            return
        if _ms(tick) <= now_ms:
            yield _ms(tick)


@lru_cache(maxsize=1_000)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    # What is no name of a file in the database is refused in many ways.
    except (LookupError, ValueError, OSError):
        return None


def _local(cron: Cron, ms: int) -> datetime:
    """A time on the schedule's clock, without the part of a second that has passed."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ms // _SECOND_MS)
    return at.astimezone(_zone(cron.timezone))


def _ms(tick: datetime) -> int:
    return int(tick.timestamp()) * _SECOND_MS
