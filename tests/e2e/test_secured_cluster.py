"""Every part, started as an operator would, against brokers that want TLS and a password."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.e2e.deliveries import auth, daily
from tests.e2e.house import PARTITIONS, House
from tests.kafka_security import PASSWORD, USER, Certificates, secured_broker
from tests.waiting import ANSWERED_WITHIN_S

KEYS = {"authorization": "Bearer dev-workflow-key"}


@pytest.fixture
def house(scratch: Path, fresh_database: str) -> Iterator[House]:
    directory = scratch / "secured-house"
    directory.mkdir()
    certificates = Certificates(directory)
    password = directory / "password"
    password.write_text(PASSWORD + "\n")
    house = House(
        directory,
        fresh_database,
        HEADWATER_KAFKA_TLS="true",
        HEADWATER_KAFKA_TLS_CA=certificates.ca,
        HEADWATER_KAFKA_SASL="SCRAM-SHA-512",
        HEADWATER_KAFKA_USER=USER,
        HEADWATER_KAFKA_PASSWORD_FILE=str(password),
    )
    house.broker = secured_broker(directory / "kafka", certificates)
    try:
        house.broker.start()
        house.bootstrap = house.broker.address_of("SASL_TLS")
        yield house
    finally:
        house.close()


def headwater(house: House, *arguments: str, any_end: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        env={
            **os.environ,
            "HEADWATER_KAFKA": house.bootstrap,
            "HEADWATER_POSTGRES": house.dsn,
            **house.settings,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if any_end:
        return done.stdout
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.soak
def test_a_delivery_becomes_a_row_and_a_workflow_runs(house: House):
    headwater(house, "migrate")
    assert "Made" in headwater(house, "topics", "create", "--partitions", str(PARTITIONS))
    for part in ("gateway", "worker", "project"):
        house.start(part)
    house.start("worker2", "--app", "tests.apps.service")
    house.deliver([auth(7), daily(7, day=1, steps=1_000)])
    house.wait(lambda: rows(house) == [("user_7",)], "the row of the delivery")
    instances = f"{house.url()}/api/workflows/workflows/echo/instances"
    made = {"id": "one", "params": 1}
    # A request whose answer did not come in time may have been taken: then there is an instance.
    house.wait(
        lambda: (
            httpx.post(instances, json=made, headers=KEYS, timeout=ANSWERED_WITHIN_S).status_code
            in (201, 409)
        ),
        "the workflow to be taken",
    )

    def ended() -> bool:
        answer = httpx.get(f"{instances}/one", headers=KEYS, timeout=ANSWERED_WITHIN_S)
        return answer.is_success and answer.json()["details"]["status"] == "complete"

    house.wait(ended, "the workflow to end")
    told = json.loads(headwater(house, "doctor", "--url", house.url(), "--json", any_end=True))
    (certificates,) = [each for each in told["findings"] if each["check"] == "certificates"]
    assert f"kafka {house.bootstrap} until " in certificates["found"]


def rows(house: House) -> list[tuple[str]]:
    with psycopg.connect(house.dsn) as connection:
        return connection.execute("select user_id from daily_summary").fetchall()
