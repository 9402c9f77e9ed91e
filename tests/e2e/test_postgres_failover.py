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

from headwater.projections.postgres.connections import own_dsn
from tests.e2e.campaigns import OwnPostgresSystem, Reader, never_silent
from tests.e2e.system import opened, under_load

pytestmark = pytest.mark.soak

APP = "tests.e2e.campaign_app"
ROUNDS = 4


@pytest.fixture
def system(scratch: Path, request: pytest.FixtureRequest) -> Iterator[OwnPostgresSystem]:
    directory = scratch / request.node.name.replace("[", "-").strip("]")
    directory.mkdir()
    with opened(OwnPostgresSystem(directory)) as system:
        system.start("worker9", "--app", APP)
        yield system


@pytest.mark.parametrize("fault", ["crash", "failover"])
def test_what_postgres_loses_is_projected_again(system: OwnPostgresSystem, fault: str, seed: int):
    draw, reader = random.Random(f"{fault} {seed}"), Reader(system, "nap")
    with under_load(system, seed), never_silent(system), reader.at_work():
        for _ in range(ROUNDS):
            time.sleep(draw.uniform(1.0, 4.0))
            if fault == "crash":
                system.postgres.kill()
                system.postgres.start()
            else:
                system.copy_to_standby()
                time.sleep(draw.uniform(1.0, 4.0))
                system.fail_over()
        time.sleep(2.0)
    system.check()
    assert reader.created
    assert reader.unknown == []

    def all_known() -> bool:
        with psycopg.connect(own_dsn(system.dsn)) as connection:
            rows = connection.execute("select instance_id from workflow_instance").fetchall()
        return {*reader.created} <= {instance for (instance,) in rows}

    system.wait(all_known, "every instance to be projected again")
