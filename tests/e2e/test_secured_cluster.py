"""Every part, started as an operator would, against brokers that want TLS and a password."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.e2e.deliveries import auth, daily
from tests.e2e.system import PARTITIONS, System
from tests.kafka_security import PASSWORD, USER, Certificates, secured_broker
from tests.waiting import ANSWERED_WITHIN_S

KEYS = {"authorization": "Bearer dev-workflow-key"}


@pytest.fixture
def system(scratch: Path, fresh_database: str) -> Iterator[System]:
    directory = scratch / "secured-system"
    directory.mkdir()
    certificates = Certificates(directory)
    password = directory / "password"
    password.write_text(PASSWORD + "\n")
    system = System(
        directory,
        fresh_database,
        HEADWATER_KAFKA_TLS="true",
        HEADWATER_KAFKA_TLS_CA=certificates.ca,
        HEADWATER_KAFKA_SASL="SCRAM-SHA-512",
        HEADWATER_KAFKA_USER=USER,
        HEADWATER_KAFKA_PASSWORD_FILE=str(password),
    )
    system.broker = secured_broker(directory / "kafka", certificates)
    try:
        system.broker.start()
        system.bootstrap = system.broker.address_of("SASL_TLS")
        yield system
    finally:
        system.close()


def headwater(system: System, *arguments: str, any_end: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        env={
            **os.environ,
            "HEADWATER_KAFKA": system.bootstrap,
            "HEADWATER_POSTGRES": system.dsn,
            **system.settings,
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
def test_a_delivery_becomes_a_row_and_a_workflow_runs(system: System):
    headwater(system, "migrate")
    assert "Made" in headwater(system, "topics", "create", "--partitions", str(PARTITIONS))
    for part in ("gateway", "worker", "project"):
        system.start(part)
    system.start("worker2", "--app", "tests.apps.service")
    system.deliver([auth(7), daily(7, day=1, steps=1_000)])
    system.wait(lambda: rows(system) == [("user_7",)], "the row of the delivery")
    instances = f"{system.url()}/api/workflows/workflows/echo/instances"
    made = {"id": "one", "params": 1}
    # A request whose answer did not come in time may have been taken: then there is an instance.
    system.wait(
        lambda: (
            httpx2.post(instances, json=made, headers=KEYS, timeout=ANSWERED_WITHIN_S).status_code
            in (201, 409)
        ),
        "the workflow to be taken",
    )

    def ended() -> bool:
        answer = httpx2.get(f"{instances}/one", headers=KEYS, timeout=ANSWERED_WITHIN_S)
        return answer.is_success and answer.json()["details"]["status"] == "complete"

    system.wait(ended, "the workflow to end")
    reported = json.loads(
        headwater(system, "doctor", "--url", system.url(), "--json", any_end=True)
    )
    (certificates,) = [
        finding for finding in reported["findings"] if finding["check"] == "certificates"
    ]
    assert f"kafka {system.bootstrap} until " in certificates["found"]


def rows(system: System) -> list[tuple[str]]:
    with psycopg.connect(system.dsn) as connection:
        return connection.execute("select user_id from daily_summary").fetchall()
