"""Somebody connects a wearable, and their past arrives, though Terra dies while it sends it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg import conninfo, sql

from headwater.gateway.terra_stand_in.made_data import records_of
from headwater.gateway.terra_stand_in.posting import DIED
from tests.e2e.house import House, opened
from tests.terra import KEYS, StandIn

DAYS = 90
USER = "user_past"


@pytest.fixture(scope="module")
def house(scratch: Path, postgres: str) -> Iterator[House]:
    name = f"terra_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    where = conninfo.conninfo_to_dict(postgres)
    dsn = f"postgresql://{where['user']}@{where['host']}:{where['port']}/{name}"
    directory = scratch / name
    directory.mkdir()
    with opened(House(directory, dsn)) as opened_house:
        yield opened_house


def one(house: House, query: str) -> tuple[object, ...] | None:
    with psycopg.connect(house.dsn) as connection:
        return connection.execute(query).fetchone()


def test_the_past_of_a_connection_arrives_once_though_terra_dies_while_it_is_sent(house: House):
    target = f"{house.url()}/webhooks/terra"
    with StandIn(house.directory, target) as terra:
        house.settings |= {
            "HEADWATER_TERRA_API": f"{terra.url}/v2",
            "HEADWATER_TERRA_DEV_ID": "test",
            "HEADWATER_TERRA_API_KEY": "test",
        }
        house.start("worker2", "--app", "headwater")
        terra.fail("die", after=20)
        begin = f"{terra.url}/v2/auth/generateWidgetSession"
        session = httpx.post(begin, json={"reference_id": USER}, headers=KEYS).json()
        httpx.post(session["url"], data={"provider": "GARMIN"}).raise_for_status()
        house.wait(lambda: terra.process.poll() is not None, "the stand-in to die")
        assert terra.process.returncode == DIED
        terra.start()
        again = httpx.post(session["url"], data={"provider": "GARMIN"})
        again.raise_for_status()
        count = "select count(*) from daily_summary where steps is not null and sleep_minutes > 0"
        house.wait(lambda: one(house, count) == (DAYS + 1,), "every day, and every night")
        ended = "select count(*) from workflow_instance where workflow_name = 'terra-backfill'"
        house.wait(lambda: one(house, f"{ended} and status = 'complete'") == (1,), "its end")
        (user,) = httpx.get(f"{terra.url}/v2/subscriptions", headers=KEYS).json()["users"]
    assert one(house, "select count(*) from workflow_instance where instance_id like '%-0'") == (1,)
    today = datetime.now(UTC).date()
    made = {}
    for back in range(DAYS + 1):
        day = today - timedelta(days=back)
        (record,) = records_of("daily", 1, user["user_id"], "GARMIN", day)
        made[day] = record["distance_data"]["steps"]
    with psycopg.connect(house.dsn) as connection:
        found = connection.execute("select datetime, steps, user_id from daily_summary").fetchall()
    assert {day: steps for day, steps, _ in found} == made
    assert {user_id for _, _, user_id in found} == {USER}
    house.check()
