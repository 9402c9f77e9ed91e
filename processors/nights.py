"""Consequences of a night: versions of one sleep on adjacent days, and the sessions of a day.

The sleeps that end on a day, by their own offset, are the parts of the day's row in daily_summary,
naps included. Their ids say when they began and ended and what Terra calls them, so two versions of
a sleep are two parts. The later of two versions replaces the other, whichever arrives first. So the
rows depend on the deliveries alone, and not on their order.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.input_texts import rfc3339
from headwater.processors.row_parts import rejoin
from headwater.processors.sleeps import Sleep, main_of, sleep_of
from headwater.schemas.records import Stamp
from headwater.schemas.row_states import Part, RowState
from headwater.schemas.tables import DAILY_SUMMARY, SLEEP_SESSIONS, Row, Table, Value

#: Returns a row of a table by its key.
Get: TypeAlias = Callable[[Table, tuple[str, ...]], Row | None]
#: Returns the days on which sleeps with an id of Terra's ended, by user, source and that id.
DaysOf: TypeAlias = Callable[[tuple[str, str, str]], Iterable[str]]
#: A row that changes, with its table.
Changed: TypeAlias = tuple[Table, Row]

_DAY: Final = timedelta(days=1)
_DAYS_CACHED: Final = 4_096
_IS_MAIN: Final = SLEEP_SESSIONS.index["is_main"]
_END: Final = SLEEP_SESSIONS.index["end_time"]
_OFFSET: Final = SLEEP_SESSIONS.index["utc_offset_minutes"]


class _Version(NamedTuple):
    """A sleep, and the day whose part it is."""

    day: str
    part: str
    sleep: Sleep
    stamp: Stamp

    @property
    def order(self) -> tuple[tuple[int, int, int, str], int, str]:
        """What orders versions: of those in one delivery, the longer one is the later one."""
        return self.stamp.order, self.sleep.length_ms, self.part


def settle(key: tuple[str, ...], get: Get, days_of: DaysOf) -> list[Changed]:
    """Return the rows that follow from the sleeps of a day: other days, and sessions.

    Sleeps of adjacent days, and those with one id on any days, may be versions of one sleep. A
    replaced sleep loses its session.

    Args:
        key: Key of the day in daily_summary.
        get: Returns rows.
        days_of: Returns the days of sleeps with an id.
    """
    user, source, day = key
    today = _with_parts(get, key, day)
    if today is None:
        return []
    names = dict.fromkeys(_around(day))
    for summary_id in summary_ids(_parts(today)):
        names |= dict.fromkeys(days_of((user, source, summary_id)))
    days = {name: row for name in names if (row := _with_parts(get, key, name))}
    changed: dict[str, Row] = {}
    if len(days) > 1 or len(_parts(days[day])) > 1:
        changed = {name: row for name, row in _replace(day, days).items() if row is not days[name]}
        days.update(changed)
    sessions = [
        session
        for name in dict.fromkeys((day, *changed))
        for session in _sessions(days[name], (user, source), get)
    ]
    return [*((DAILY_SUMMARY, row) for row in changed.values()), *sessions]


def summary_ids(parts: Iterable[str]) -> set[str]:
    """Return Terra's ids of the sleeps of a day, by the ids of their parts."""
    return {name for part in parts if (name := part.split("/", 2)[2])}


def day_of_session(row: Row) -> tuple[str, ...] | None:
    """Return the key of the day on which a session ended; None if it is not known."""
    end, offset = row.values[_END], row.values[_OFFSET]
    if not isinstance(end, str) or not isinstance(offset, int):
        return None
    moment = datetime.fromisoformat(end).astimezone(UTC) + timedelta(minutes=offset)
    return (*row.key[:2], moment.date().isoformat())


@lru_cache(_DAYS_CACHED)
def _around(day: str) -> tuple[str, ...]:
    """Return a day and the adjacent ones; days are plausible, so they exist."""
    center = date.fromisoformat(day)
    return (day, (center - _DAY).isoformat(), (center + _DAY).isoformat())


def _with_parts(get: Get, key: tuple[str, ...], day: str) -> Row | None:
    row = get(DAILY_SUMMARY, (*key[:2], day))
    return row if row is not None and row.state is not None and row.state.parts else None


def _parts(row: Row) -> Mapping[str, Part]:
    return {} if row.state is None else row.state.parts


def _replace(day: str, days: Mapping[str, Row]) -> dict[str, Row]:
    """Return the days, with each sleep of `day` compared to all others."""
    versions = [
        _Version(name, part, sleep_of(part), parts[part].stamp)
        for name, row in days.items()
        for parts in (_parts(row),)
        for part in parts
    ]
    replaced: dict[str, dict[str, Stamp]] = {name: {} for name in days}
    for index, one in enumerate(versions):
        for other in versions[index + 1 :]:
            if day not in (one.day, other.day) or not _are_compared(one, other):
                continue
            if one.sleep.conflicts(other.sleep):
                earlier, later = sorted((one, other), key=lambda version: version.order)
                known = replaced[earlier.day].get(earlier.part, later.stamp)
                replaced[earlier.day][earlier.part] = max(known, later.stamp, key=_order)
    return {name: _with_replaced(row, replaced[name]) for name, row in days.items()}


def _are_compared(one: _Version, other: _Version) -> bool:
    """Return whether two sleeps may be versions of one: a third one may relate their days."""
    has_one_id = one.sleep.summary_id != "" and one.sleep.summary_id == other.sleep.summary_id
    return has_one_id or other.day in _around(one.day)


def _order(stamp: Stamp) -> tuple[int, int, int, str]:
    return stamp.order


def _with_replaced(row: Row, replaced: Mapping[str, Stamp]) -> Row:
    """Return a day with its replaced sleeps marked; the same object if nothing changed."""
    parts = dict(_parts(row))
    for part, stamp in replaced.items():
        known = parts[part].replaced
        if known is None or known.order < stamp.order:
            parts[part] = msgspec.structs.replace(parts[part], replaced=stamp)
    return row if parts == _parts(row) else rejoin(DAILY_SUMMARY, row, parts)


def _sessions(row: Row, prefix: tuple[str, str], get: Get) -> Iterable[Changed]:
    """Yield the sessions of a day that are to be deleted, or become or cease to be the main one."""
    parts = _parts(row)
    main = main_of(parts)
    for part, sleep in parts.items():
        session = get(SLEEP_SESSIONS, (*prefix, rfc3339(sleep_of(part).start_ms)))
        stamp = None if session is None else session.stamps[_END]
        if session is None or stamp is None or stamp.order != sleep.stamp.order:
            continue  # Another version of the session is stored, or none.
        if not sleep.counts:
            nothing = (None,) * len(session.values)
            yield SLEEP_SESSIONS, Row(session.key, nothing, nothing, RowState(deleted=stamp))
        elif session.values[_IS_MAIN] is not (part == main):
            yield SLEEP_SESSIONS, _marked(session, stamp, is_main=part == main)


def _marked(session: Row, stamp: Stamp, *, is_main: bool) -> Row:
    values: list[Value] = list(session.values)
    stamps = list(session.stamps)
    values[_IS_MAIN], stamps[_IS_MAIN] = is_main, stamp
    return Row(session.key, tuple(values), tuple(stamps), session.state)
