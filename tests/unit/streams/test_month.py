"""A month of people with odd wearables, in memory: rows are those of a plain program, in any order.

`tests/e2e/test_month.py` sends the same to a whole system.
"""

import json
import random
from datetime import date, datetime
from typing import Any

import pytest

from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import TABLES, Table, Value
from tests.conftest import SEEDS
from tests.e2e.month import Month, Sent, moment_of
from tests.e2e.month_reference import Tables, reference
from tests.fakes.terra_intake import NOW_MS, TerraIntake, fact, of_body, taken

#: What the reference does not speak of.
LEFT_OUT = {"raw", "last_deactivated_at", "terra_response"}


def received(sent: Sent) -> WebhookReceived:
    if sent.fact is not None:
        return fact(sent.fact)
    return of_body(json.dumps(sent.body).encode(), ordered_ms=sent.at_ms)


def rows(intake: TerraIntake, table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows as Postgres has them, without nulls."""
    result = {}
    for key, row in intake.rows(table).items():
        columns = dict(zip(table.columns, zip(row.values, row.stamps, strict=True), strict=True))
        named = {
            column.name: converted(column.sql, value)
            for column, (value, _) in columns.items()
            if value is not None and column.name not in LEFT_OUT
        }
        for time in table.times:
            stamp = row.stamps[table.index[time.column]]
            if time.name == "parsed_at" and stamp and named.get(time.column) == time.value:
                named[time.name] = moment_of(stamp.sent_at_ms)
        typed = tuple(converted(c.sql, part) for c, part in zip(table.key, key, strict=True))
        result[typed] = named
    return result


def converted(sql: str, value: Value) -> Any:  # noqa: ANN401
    if not isinstance(value, str):
        return value
    if sql == "timestamptz":
        return datetime.fromisoformat(value)
    return date.fromisoformat(value) if sql == "date" else value


def differences(intake: TerraIntake, expected: Tables) -> list[object]:
    found: list[object] = []
    for table in TABLES:
        result, target = rows(intake, table), expected.get(table.name)
        if target is not None:
            keys = [
                key for key in result.keys() | target.keys() if result.get(key) != target.get(key)
            ]
            found += [(table.name, key, result.get(key), target.get(key)) for key in keys]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_month_comes_to_what_a_plain_program_says_in_any_order(seed: int):
    expected = check(seed, people=4, days=20)
    sessions = expected["sleep_sessions"].values()
    assert {session["is_main"] for session in sessions} == {True, False}


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_month_comes_to_what_a_plain_program_says_in_any_order(seed: int):
    check(seed, people=1_000, days=30)


def check(seed: int, *, people: int, days: int) -> Tables:
    month = Month(seed, people=people, days=days, now_ms=NOW_MS, name="m")
    expected = reference(month.people, month.sent)
    draw = random.Random(seed)
    posted = [received(item) for item in month.sent]
    again = draw.sample(posted, len(posted) // 10)
    # Lab reports are looked up: what is known of uploads comes first here, as waits have a clock.
    facts = [item for item in posted if item.source == "headwater"]
    auths = [item for item in posted if item.type == "auth"]
    rest = [item for item in (*posted, *again) if item.source != "headwater"]
    draw.shuffle(rest)
    deliveries = [*facts, *auths, *rest]
    units = set(draw.sample(range(len(deliveries)), len(deliveries) // 20))
    intake = taken(deliveries, units=units)
    assert differences(intake, expected)[:3] == []
    return expected
