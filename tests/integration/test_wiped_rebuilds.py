"""A wipe takes a user's rows out of the rebuilds that Postgres keeps, and no other user's."""

import json

import psycopg
import pytest

from headwater.projections.postgres.writes import UPSERTS
from headwater.schemas.codec import encode_row
from headwater.schemas.tables import CONNECTIONS, Row, Stamp

STAMP = Stamp(rank=0, sent_at_ms=1, updated_at_ms=1, event_id="e", partition=0, offset=0, version=1)


def connection_of(subject: str, user: str) -> bytes:
    """A row whose key does not say whose it is."""
    at = CONNECTIONS.index["user_id"]
    values = tuple(user if n == at else None for n in range(len(CONNECTIONS.columns)))
    stamps = tuple(STAMP if n == at else None for n in range(len(CONNECTIONS.columns)))
    return encode_row(CONNECTIONS, Row((subject,), values, stamps))


@pytest.mark.parametrize("user", ["user_1", "u" * 70, 'a "quoted" ü'])
def test_rows_and_examples_of_the_user_go_and_those_of_others_stay(module_migrated: str, user: str):
    other = user + "2"
    kept = [
        (0, b'["%b","garmin"]' % other.encode(), b"x", None),
        (1, b'["t-1"]', None, connection_of("t-1", other)),
    ]
    removed = [
        (2, json.dumps([user, "garmin"], ensure_ascii=False).encode(), b"x", None),
        (3, b'["t-2"]', connection_of("t-2", user), None),
        (4, b'["t-3"]', None, connection_of("t-3", user)),
    ]
    examples = [
        {"kind": "removed", "key": {"user_id": item}, "columns": {"steps": [1, None]}}
        for item in (user, other)
    ]
    wipe = {
        "user_sha256": "d",
        "partition": 0,
        "wipe_id": "w",
        "names": [user],
        "found": {},
        "ordered_at_ms": 1,
        "done_at_ms": 0,
    }
    with psycopg.connect(module_migrated) as connection:
        connection.execute("delete from rebuilds")
        connection.execute(
            "insert into rebuilds (id, projection, version, dry_run, state, examples) "
            "values ('r', 'daily_summary', 2, false, 'switched', %s)",
            [json.dumps(examples)],
        )
        for row in kept + removed:
            connection.execute("insert into rebuild_rows values ('r', %s, 0, %s, %s, %s)", row)
        connection.execute(UPSERTS["wipes"], {"rows": json.dumps([wipe])})
        rows = connection.execute("select number from rebuild_rows order by number").fetchall()
        shown = connection.execute("select examples from rebuilds where id = 'r'").fetchone()
        connection.execute("delete from rebuilds")
        connection.execute("delete from wipes")
    assert rows == [(0,), (1,)]
    assert shown == (examples[1:],)
