"""When schedules are due: ticks, clocks that are put forward and back, and what was missed."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.cron import (
    CATCH_UP_MAX,
    CatchUp,
    Cron,
    cron_problem,
    due_ticks,
    next_tick,
)

BERLIN = "Europe/Berlin"
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def ticks(cron: Cron, first: str, last: str) -> list[str]:
    """The ticks behind a time and up to another, one after the other, as local times."""
    result, at_ms = [], ms(first)
    while (tick_ms := next_tick(cron, at_ms)) is not None and tick_ms <= ms(last):
        local = datetime.fromtimestamp(tick_ms // 1_000, ZoneInfo(cron.timezone))
        result.append(local.isoformat()[8:])
        at_ms = tick_ms
    return result


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("0 3 * * *", "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z"),
        ("0 3 * * *", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"),
        ("0 3 * * *", "2026-01-01T02:59:59.999Z", "2026-01-01T03:00:00Z"),
        ("*/10 * * * * *", "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:10Z"),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 * * MON", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z"),
    ],
)
def test_the_next_tick_is_behind_a_time(cron: str, after: str, expected: str):
    assert next_tick(Cron(cron, "UTC"), ms(after)) == ms(expected)


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # 02:00 to 03:00 does not exist on the 29th.
        (
            "30 2 * * *",
            ["28T02:30:00+01:00", "29T03:00:00+02:00", "30T02:30:00+02:00"],
        ),
        ("0 3 * * *", ["28T03:00:00+01:00", "29T03:00:00+02:00", "30T03:00:00+02:00"]),
        ("0 2,3 29 * *", ["29T03:00:00+02:00"]),
        ("30 * 29 * *", ["29T00:30:00+01:00", "29T01:30:00+01:00", "29T03:30:00+02:00"]),
    ],
)
def test_what_falls_into_a_skipped_hour_is_due_when_it_was_skipped(cron: str, expected: list[str]):
    result = ticks(Cron(cron, BERLIN), "2026-03-28T00:00:00+01:00", "2026-03-30T23:59:00+02:00")
    assert result[: len(expected)] == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # 02:00 to 03:00 comes twice on the 25th.
        ("30 2 * * *", ["24T02:30:00+02:00", "25T02:30:00+02:00", "26T02:30:00+01:00"]),
        (
            "0 * 25 * *",
            [
                "25T00:00:00+02:00",
                "25T01:00:00+02:00",
                "25T02:00:00+02:00",
                "25T02:00:00+01:00",
                "25T03:00:00+01:00",
            ],
        ),
    ],
)
def test_a_repeated_hour_counts_once_unless_every_hour_does(cron: str, expected: list[str]):
    result = ticks(Cron(cron, BERLIN), "2026-10-23T23:00:00+02:00", "2026-10-26T23:59:00+01:00")
    assert result[: len(expected)] == expected


@pytest.mark.parametrize(
    ("cron", "timezone", "told"),
    [
        ("61 * * * *", "UTC", "found '61 * * * *': Bad minute"),
        ("daily", "UTC", "found 'daily': Wrong number of fields"),
        ("@daily", "UTC", "Wrong number of fields"),
        ("", "UTC", "Wrong number of fields"),
        ("0 0 31 2 *", "UTC", "Bad day-of-month"),
        ("* * */20 * 1L", "UTC", "expected a cron expression that matches a date"),
        ("0 3 * * *", "Mars/Olympus", "found 'Mars/Olympus'"),
        ("0 3 * * *", "../etc/passwd", "found '../etc/passwd'"),
        ("0 3 * * *", "Europe", "found 'Europe'"),
        ("0 3 * * *", "", "found ''"),
        ("0 3 * * *", "a\0b", "expected a time zone"),
    ],
)
def test_what_is_no_cron_expression_or_time_zone_is_named(cron: str, timezone: str, told: str):
    assert told in (cron_problem(Cron(cron, timezone)) or "")


@pytest.mark.parametrize("minute", range(0, 60, 15))
def test_within_the_repeated_hour_the_first_one_is_not_forgotten(minute: int):
    after, tick = ms("2026-10-25T02:00:00+02:00"), ms("2026-10-25T02:30:00+02:00")
    now = ms(f"2026-10-25T02:{minute:02}:00+01:00")
    result = due_ticks(Cron("30 2 * * *", BERLIN), after, now, catch_up=CatchUp.ALL, grace_ms=0)
    assert result.starts == (tick,)


def test_a_good_cron_expression_has_no_fault():
    assert cron_problem(Cron("*/15 9-17 * * MON-FRI", BERLIN)) is None


EVERY_MINUTE = Cron("* * * * *", "UTC")
NOON = ms("2026-01-01T12:00:00Z")


@pytest.mark.parametrize(
    ("catch_up", "after", "late_ms", "starts", "missed"),
    [
        # Three ticks, the last of them now.
        (CatchUp.ALL, 3, 0, [-2, -1, 0], False),
        (CatchUp.LATEST, 3, 0, [-1, 0], True),
        (CatchUp.SKIP, 3, 0, [-1, 0], True),
        # The last of them half a minute ago.
        (CatchUp.LATEST, 3, 30_000, [0], True),
        (CatchUp.SKIP, 3, 30_000, [0], True),
        # Exactly as late as may be, or more.
        (CatchUp.SKIP, 1, 60_000 - 1, [0], False),
        (CatchUp.ALL, 0, 59_999, [], False),
    ],
)
def test_which_ticks_are_started(
    catch_up: CatchUp, after: int, late_ms: int, starts: list[int], missed: bool
):
    result = due_ticks(
        EVERY_MINUTE,
        NOON - after * MINUTE_MS,
        NOON + late_ms,
        catch_up=catch_up,
        grace_ms=MINUTE_MS,
    )
    assert [(tick - NOON) // MINUTE_MS for tick in result.starts] == starts
    assert result.missed is missed


@pytest.mark.parametrize(
    ("catch_up", "starts"), [(CatchUp.ALL, 3), (CatchUp.LATEST, 1), (CatchUp.SKIP, 0)]
)
def test_ticks_that_are_all_too_late(catch_up: CatchUp, starts: int):
    hourly = Cron("0 * * * *", "UTC")
    result = due_ticks(
        hourly,
        NOON - 3 * HOUR_MS,
        NOON + 30 * MINUTE_MS,
        catch_up=catch_up,
        grace_ms=MINUTE_MS,
    )
    assert result.starts == tuple(range(NOON - 2 * HOUR_MS, NOON + 1, HOUR_MS))[3 - starts :]
    assert result.missed is (starts < 3)


def test_only_the_latest_hundred_of_a_long_downtime_are_started():
    result = due_ticks(EVERY_MINUTE, 0, NOON, catch_up=CatchUp.ALL, grace_ms=0)
    assert result.missed
    assert len(result.starts) == CATCH_UP_MAX
    assert result.starts[-1] == NOON


#: Zones with the hours around a change of their clocks: by an hour, by half of one, at midnight,
#: and by a whole day.
CHANGES = [
    (BERLIN, "2026-03-29T01:00:00Z"),
    (BERLIN, "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Asia/Beirut", "2026-03-28T22:00:00Z"),
    ("Asia/Beirut", "2026-10-24T21:00:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
]
MINUTES = {"*": range(60), "*/7": range(0, 60, 7), "0": [0], "15,45": [15, 45], "30": [30]}
HOURS = {"*": range(24), "*/2": range(0, 24, 2), "0": [0], "1-3": [1, 2, 3], "2": [2], "23": [23]}


@cache
def clock(name: str, instants: range) -> list[datetime]:
    """What the clock of a zone shows."""
    zone = ZoneInfo(name)
    return [datetime.fromtimestamp(at // 1_000, zone).replace(tzinfo=None) for at in instants]


def model(name: str, minute: str, hour: str, first_ms: int, last_ms: int) -> list[int]:
    """The ticks of some days, by looking at the clock every minute."""
    instants = range(first_ms, last_ms + 1, MINUTE_MS)
    walls = clock(name, instants)

    def means(wall: datetime) -> bool:
        return wall.minute in MINUTES[minute] and wall.hour in HOURS[hour]

    if "*" in minute[:1] + hour[:1]:
        return [at for at, wall in zip(instants, walls, strict=True) if means(wall)]
    result, highest = set(), walls[0] - timedelta(minutes=1)
    for at, wall in zip(instants, walls, strict=True):
        # All that the clock has come to, or over, since it last showed anything as late.
        while highest < wall:
            highest += timedelta(minutes=1)
            if means(highest):
                result.add(at)
    return sorted(result)


@pytest.mark.parametrize(("name", "change"), CHANGES)
@pytest.mark.parametrize("hour", HOURS)
@pytest.mark.parametrize("minute", MINUTES)
def test_ticks_are_those_of_the_clock(name: str, change: str, minute: str, hour: str):
    first, last = ms(change) - 30 * HOUR_MS, ms(change) + 30 * HOUR_MS
    cron = Cron(f"{minute} {hour} * * *", name)
    expected = model(name, minute, hour, first, last)
    forward, at_ms = [], first - MINUTE_MS
    while (tick := next_tick(cron, at_ms)) is not None and tick <= last:
        forward.append(tick)
        at_ms = tick
    assert forward == expected
    # In pieces, from wherever one begins.
    pieces = [
        tick
        for after in range(first - MINUTE_MS, last, 41 * MINUTE_MS)
        for tick in due_ticks(
            cron, after, min(after + 41 * MINUTE_MS, last), catch_up=CatchUp.ALL, grace_ms=0
        ).starts
    ]
    assert pieces == expected
    for after in range(first, last, 45 * MINUTE_MS):
        following = next((tick for tick in expected if tick > after), None)
        if following is not None:
            assert next_tick(cron, after) == following


@given(
    st.sampled_from(CHANGES),
    st.sampled_from(list(MINUTES)),
    st.sampled_from(list(HOURS)),
    st.integers(-12 * HOUR_MS, 0),
    st.lists(st.integers(1, 99 * MINUTE_MS), min_size=1, max_size=20),
)
def test_a_tick_is_the_same_wherever_one_begins_to_look(
    change: tuple[str, str], minute: str, hour: str, start: int, jumps: list[int]
):
    cron = Cron(f"{minute} {hour} * * *", change[0])
    times = [ms(change[1]) + start]
    for jump in jumps:
        times.append(times[-1] + jump)
    pieces = [
        tick
        for after, now in pairwise(times)
        for tick in due_ticks(cron, after, now, catch_up=CatchUp.ALL, grace_ms=0).starts
    ]
    forward, at_ms = [], times[0]
    while (tick := next_tick(cron, at_ms)) is not None and tick <= times[-1]:
        forward.append(tick)
        at_ms = tick
    assert pieces == forward


def test_time_that_stands_still_has_no_ticks():
    assert due_ticks(EVERY_MINUTE, NOON, NOON, catch_up=CatchUp.ALL, grace_ms=0).starts == ()
    assert next_tick(EVERY_MINUTE, NOON) == NOON + timedelta(minutes=1) // timedelta(milliseconds=1)
    assert datetime.fromtimestamp(NOON // 1_000, UTC).hour == 12
