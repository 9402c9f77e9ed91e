"""A day keeps a bounded number of sleeps, and never loses its night to versions of a nap."""

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.input_texts import rfc3339
from headwater.processors.nights import settle
from headwater.processors.row_parts import PARTS_MAX
from headwater.processors.sleeps import Sleep
from headwater.schemas.records import Stamp
from headwater.schemas.tables import DAILY_SUMMARY, Row

HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_750_032_000_000


def asleep(number: int, begin_h: float, hours: float) -> RowUpdate:
    start = MIDNIGHT_MS + int(begin_h * HOUR_MS)
    sleep = Sleep(start, start + int(hours * HOUR_MS), "")
    key = ("u", "s", rfc3339(sleep.end_ms)[:10])
    stamp = Stamp(0, 1_000 + number, 0, f"{number:032d}", 0, number)
    return RowUpdate(DAILY_SUMMARY, key, {}, stamp, {sleep.part: {"sleep_minutes": hours * 60}})


def test_versions_of_a_nap_do_not_displace_the_night() -> None:
    rows: dict[tuple[str, ...], Row] = {}
    deliveries = [asleep(0, 0, 7)]
    deliveries += [asleep(n, 14, 4 + n / 100) for n in range(1, 2 * PARTS_MAX[DAILY_SUMMARY])]
    for delivery in deliveries:
        rows[delivery.key] = merge(rows.get(delivery.key), delivery)
        for _, row in settle(delivery.key, lambda _, key: rows.get(key), lambda _: ()):
            rows[row.key] = row
    (row,) = rows.values()
    assert row.values[DAILY_SUMMARY.index["sleep_minutes"]] == 420
    assert row.state is not None
    assert len(row.state.parts) == PARTS_MAX[DAILY_SUMMARY]


def test_a_third_sleep_does_not_make_versions_of_sleeps_whose_days_are_apart() -> None:
    start, long = MIDNIGHT_MS + 22 * HOUR_MS, 30 * HOUR_MS
    sleeps = [Sleep(start, start + 60_000, "a"), Sleep(start, start + long, ""),
              Sleep(start, start + long, "a")]  # fmt: skip
    rows: dict[tuple[str, ...], Row] = {}
    days: dict[tuple[str, str, str], list[str]] = {}
    for number, sleep in zip((2, 3, 1), sleeps, strict=True):
        key = ("u", "s", rfc3339(sleep.end_ms)[:10])
        days.setdefault(("u", "s", sleep.summary_id), []).append(key[2])
        stamp = Stamp(0, number, 0, f"{number}", 0, number)
        part = {sleep.part: {"sleep_minutes": 1.0}}
        rows[key] = merge(rows.get(key), RowUpdate(DAILY_SUMMARY, key, {}, stamp, part))
        for _, row in settle(key, lambda _, key: rows.get(key), lambda one: days.get(one, [])):
            rows[row.key] = row
    replaced = {
        part: known.replaced is not None
        for row in rows.values()
        if row.state is not None
        for part, known in row.state.parts.items()
    }
    assert replaced == dict(
        zip((sleep.part for sleep in sleeps), (False, False, True), strict=True)
    )
