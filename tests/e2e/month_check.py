"""Sends a month through a system, and compares Postgres with the reference, row by row."""

from typing import Any

import psycopg
from psycopg import sql

from headwater.schemas.tables import TABLES, Table
from headwater.streams.clock import now_ms
from tests.e2e.month import Month, post_shuffled
from tests.e2e.month_reference import reference
from tests.e2e.system import System

#: What the reference does not speak of.
_LEFT_OUT = {"raw", "last_deactivated_at", "terra_response"}


def check_month(
    system: System, *, seed: int, people: int, days: int, name: str, gateways: tuple[str, ...]
) -> None:
    month = Month(seed, people=people, days=days, now_ms=now_ms(), name=name)
    expected = reference(month.people, month.sent)
    posted, reported = seed + 1, [item.fact for item in month.sent if item.fact is not None]
    # Reports that come before what is known of their uploads wait for it.
    post_shuffled(system, month.sent[: len(month.sent) // 2], posted, gateways)
    system.tell(*reported)
    post_shuffled(system, month.sent[len(month.sent) // 2 :], posted, gateways)
    users = [person.user for person in month.people]
    tables = [table for table in TABLES if table.name in expected]
    patience_s = 120 + len(month.sent) / 100

    def done() -> bool:
        if any(_count(system, table, users) != len(expected[table.name]) for table in tables):
            return False
        return all(_rows(system, table, users) == expected[table.name] for table in tables)

    try:
        system.wait(done, f"the month of seed {seed}", patience_s)
    except AssertionError:
        for table in tables:
            result, target = _rows(system, table, users), expected[table.name]
            for key in target.keys() | result.keys():
                assert result.get(key) == target.get(key), f"seed {seed}: {table.name} {key}"
        raise


def _count(system: System, table: Table, users: list[str]) -> int:
    query = sql.SQL("select count(*) from {} where user_id = any(%s)")
    with psycopg.connect(system.dsn) as connection:
        result = connection.execute(query.format(sql.Identifier(table.name)), [users]).fetchone()
    assert result is not None
    return int(result[0])


def _rows(system: System, table: Table, users: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of some users, without their nulls."""
    times = [time.name for time in table.times if time.name == "parsed_at"]
    columns = [name for name in table.column_names if name not in _LEFT_OUT] + times
    query = sql.SQL("select {} from {} where user_id = any(%s)").format(
        sql.SQL(", ").join(map(sql.Identifier, (*table.key_names, *columns))),
        sql.Identifier(table.name),
    )
    width = len(table.key)
    with psycopg.connect(system.dsn) as connection:
        rows = connection.execute(query, [users]).fetchall()
    return {
        row[:width]: {
            name: value
            for name, value in zip(columns, row[width:], strict=True)
            if value is not None
        }
        for row in rows
    }
