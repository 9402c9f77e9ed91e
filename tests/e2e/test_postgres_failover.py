"""Goal: a Postgres that crashes or fails over to a standby that lags loses nothing for good.

Kafka holds every fact: what a standby lacks is projected again. A client that was answered for a
write is never told afterwards that there is no such instance.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.projections.postgres.schemas import own_dsn
from tests.e2e.campaigns import OwnPostgresHouse, Reader, never_silent
from tests.e2e.house import opened, under_load

pytestmark = pytest.mark.soak

APP = "tests.e2e.campaign_app"
ROUNDS = 4


@pytest.fixture
def house(scratch: Path, request: pytest.FixtureRequest) -> Iterator[OwnPostgresHouse]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(OwnPostgresHouse(directory)) as house:
        house.start("worker9", "--app", APP)
        yield house


@pytest.mark.parametrize("fault", ["crash", "failover"])
def test_what_postgres_loses_is_projected_again(house: OwnPostgresHouse, fault: str, seed: int):
    draw, reader = random.Random(f"{fault} {seed}"), Reader(house, "nap")
    with under_load(house, seed), never_silent(house), reader.at_work():
        for _ in range(ROUNDS):
            time.sleep(draw.uniform(1.0, 4.0))
            if fault == "crash":
                house.postgres.kill()
                house.postgres.start()
            else:
                house.copy_to_standby()
                time.sleep(draw.uniform(1.0, 4.0))
                house.fail_over()
        time.sleep(2.0)
    house.check()
    assert reader.created
    assert reader.unknown == []

    def all_known() -> bool:
        with psycopg.connect(own_dsn(house.dsn)) as connection:
            rows = connection.execute("select instance_id from workflow_instance").fetchall()
        return {*reader.created} <= {instance for (instance,) in rows}

    house.wait(all_known, "every instance to be projected again")
