"""A user connects a wearable, imports, uploads a lab report; whatever Terra does, it all arrives.

One system for all of it: gateway, pipeline, projector and the system's own workflows, beside the
stand-in for Terra.
"""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import httpx2
import psycopg
import pytest
from psycopg import conninfo, sql

from headwater.gateway.client.requests import path
from headwater.gateway.local.terra_stand_in.deliveries import records_of
from headwater.gateway.local.terra_stand_in.posting import DIED
from tests.commands import called
from tests.e2e.system import ADMIN, System, free_port, opened
from tests.terra import KEYS, StandIn
from tests.unit.gateway.issuer import AUDIENCE, ISSUER, key_set, token
from tests.waiting import ANSWERED_WITHIN_S

DAYS = 90
USER = "user_past"
PORT = free_port()


REPORT = ("report.pdf", b"%PDF-1.7 a report", "application/pdf")


@pytest.fixture(scope="module")
def terra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    target = f"http://127.0.0.1:{PORT}/webhooks/terra"
    with StandIn(tmp_path_factory.mktemp("terra"), target) as terra:
        yield terra


@pytest.fixture(scope="module")
def system(scratch: Path, postgres: str, terra: StandIn) -> Iterator[System]:
    name = f"terra_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = conninfo.make_conninfo(postgres, dbname=name)
    directory = scratch / name
    directory.mkdir()
    jwks = directory / "jwks.json"
    jwks.write_bytes(key_set())
    system = System(
        directory,
        dsn,
        HEADWATER_TERRA_API=f"{terra.url}/v2",
        HEADWATER_TERRA_DEV_ID="test",
        HEADWATER_TERRA_API_KEY="test",
        HEADWATER_JWKS=str(jwks),
        HEADWATER_JWT_ISSUER=ISSUER,
        HEADWATER_JWT_AUDIENCE=AUDIENCE,
        HEADWATER_BLOBS=str(directory / "blobs"),
    )
    system.ports["gateway"] = PORT
    with opened(system):
        system.start("worker2", "--app", "headwater")
        yield system


def bearer(user: str = USER) -> str:
    return token(sub=user, exp=int(time.time()) + 600)


@pytest.fixture
def user(system: System) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {bearer()}"}
    with httpx2.Client(base_url=system.url(), headers=headers, timeout=ANSWERED_WITHIN_S) as client:
        yield client


def one(system: System, query: LiteralString, *given: str) -> tuple[object, ...] | None:
    with psycopg.connect(system.dsn) as connection:
        return connection.execute(query, given or None).fetchone()


def ended(system: System, workflow: str) -> int:
    query = "select 1 from workflow_instance where status = 'complete' and workflow_name = %s"
    with psycopg.connect(system.dsn) as connection:
        return len(connection.execute(query, (workflow,)).fetchall())


def doctor(system: System, user_id: str) -> dict[str, str]:
    """What `headwater doctor user` finds, by step."""
    options = ["--token", bearer(user_id), "--url", system.url(), "--json"]
    done = called("doctor", "user", user_id, *options)
    assert done.stdout, done.stderr
    reported = json.loads(done.stdout)
    assert done.returncode == (0 if reported["well"] else 1)
    return {finding["check"]: finding["state"] for finding in reported["findings"]}


def test_the_past_of_a_connection_arrives_once_though_terra_dies_while_it_is_sent(
    system: System, terra: StandIn, user: httpx2.Client
):
    terra.fail("die", after=20)
    begun = user.post("/v1/connect", json={"providers": ["GARMIN"]})
    assert begun.status_code == 200, begun.text
    url = begun.json()["url"]
    httpx2.post(url, data={"provider": "GARMIN"}, timeout=ANSWERED_WITHIN_S).raise_for_status()
    system.wait(lambda: terra.process.poll() is not None, "the stand-in to die")
    assert terra.process.returncode == DIED
    terra.start()
    httpx2.post(url, data={"provider": "GARMIN"}, timeout=ANSWERED_WITHIN_S).raise_for_status()
    count = "select count(*) from daily_summary where steps is not null and sleep_minutes > 0"
    system.wait(lambda: one(system, count) == (DAYS + 1,), "every day, and every night")
    system.wait(lambda: ended(system, "terra-backfill") == 1, "its end")
    (person,) = httpx2.get(
        f"{terra.url}/v2/subscriptions", headers=KEYS, timeout=ANSWERED_WITHIN_S
    ).json()["users"]
    assert one(system, "select count(*) from workflow_instance where instance_id like '%-0'") == (
        1,
    )
    today = datetime.now(UTC).date()
    made = {}
    for back in range(DAYS + 1):
        day = today - timedelta(days=back)
        (record,) = records_of("daily", 1, person["user_id"], "GARMIN", day)
        made[day] = record["distance_data"]["steps"]
    with psycopg.connect(system.dsn) as connection:
        result = connection.execute("select datetime, steps, user_id from daily_summary").fetchall()
    assert {day: steps for day, steps, _ in result} == made
    assert {user_id for _, _, user_id in result} == {USER}


def test_a_user_sees_what_is_connected_and_imports_more_of_it(
    system: System, terra: StandIn, user: httpx2.Client
):
    me = user.get("/v1/me").json()
    assert (me["user_id"], me["reconciled"]) == (USER, True)
    assert [connection["active"] for connection in me["connections"]] == [True]
    answer = user.post("/v1/import", json={"days": 2})
    assert answer.status_code == 202, answer.text
    assert (answer.json()["requests"], answer.json()["connections"]) == (4, 1)
    system.wait(lambda: ended(system, "terra-import") == 1, "the import to end")
    system.wait(lambda: terra.look()["waiting"] == 0, "everything to be posted")


def test_a_lab_report_that_is_uploaded_twice_is_read_once_and_becomes_biomarkers(
    system: System, terra: StandIn, user: httpx2.Client
):
    def upload() -> dict[str, str]:
        headers = {"idempotency-key": "first"}
        answer = user.post("/v1/labs/upload", files={"file": REPORT}, headers=headers)
        assert answer.status_code == 200, answer.text
        result: dict[str, str] = answer.json()
        return result

    actual = upload()
    assert actual["terra_status"] == "submitted"
    upload_id = actual["upload_id"]
    status: LiteralString = "select terra_status from lab_uploads where id = %s"
    system.wait(lambda: one(system, status, upload_id) == ("parsed",), "the report to be read")
    read: LiteralString = "select count(*) > 3 from biomarkers_raw where upload_id = %s"
    system.wait(lambda: one(system, read, upload_id) == (True,), "its results")
    assert upload() == actual
    labs = "select count(*), min(status) from workflow_instance where workflow_name = 'terra-lab'"
    # It waits for the day in which the report has to come.
    system.wait(lambda: one(system, labs) == (1, "waiting"), "the wait for its report")
    assert terra.look()["counts"]["lab reports"] == 1
    assert one(system, "select count(*) from lab_uploads") == (1,)


def test_the_doctor_looks_at_a_user_by_asking_terra_as_well(system: System):
    system.wait(lambda: set(doctor(system, USER).values()) == {"ok"}, "what was done to be told")
    stranger = doctor(system, "user_nobody")
    assert stranger["1 active connection"] == "problem"
    system.check()


def test_an_operator_acts_for_a_user_and_a_user_disconnects(
    system: System, terra: StandIn, user: httpx2.Client
):
    for options in (["import", USER, "--days", "1"], ["reconcile", USER]):
        done = called("user", *options, "--url", system.url(), "--json")
        assert done.returncode == 0, done.stderr
    system.wait(lambda: ended(system, "terra-import") == 2, "the operator's import")
    system.wait(lambda: ended(system, "terra-reconcile-user") == 1, "the reconcile")
    (connection,) = user.get("/v1/me").json()["connections"]
    answer = user.delete(f"/v1/connections/{connection['terra_user_id']}")
    assert answer.status_code == 202, answer.text
    assert user.delete("/v1/connections/of-another").status_code == 404
    active: LiteralString = "select active, deactivated_at is null from terra_connections"
    system.wait(lambda: one(system, active) == (False, False), "the end of the connection")
    assert not terra.has(USER)
    assert user.get("/v1/me").json()["connections"][0]["active"] is False
    system.wait(lambda: terra.look()["waiting"] == 0, "the deauth to be posted")
    assert doctor(system, USER)["1 active connection"] == "warning"


def test_a_user_who_was_wiped_uploads_the_same_file_with_the_same_key_and_it_is_read(
    system: System, terra: StandIn, user: httpx2.Client
):
    system.wipe(USER)
    assert one(system, "select count(*) from lab_uploads") == (0,)
    command = called("user", "wipe", USER, "--yes", "--json", "--url", system.url())
    assert command.returncode == 0, command.stderr
    again = json.loads(command.stdout)
    assert (again["done"], again["deleted"]["lab_uploads"]) == (True, 0)
    nothing = system.url() + "/admin/user" + path(USER, "wipe", "never-ordered")
    unknown = httpx2.get(nothing, headers=ADMIN, timeout=ANSWERED_WITHIN_S)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    headers = {"idempotency-key": "first"}
    answer = user.post("/v1/labs/upload", files={"file": REPORT}, headers=headers)
    assert (answer.status_code, answer.json()["terra_status"]) == (200, "submitted"), answer.text
    system.wait(
        lambda: one(system, "select terra_status from lab_uploads") == ("parsed",), "the report"
    )
    assert terra.look()["counts"]["lab reports"] == 2
    system.wait(
        lambda: one(system, "select count(*) > 3 from biomarkers_raw") == (True,), "results"
    )
