"""Goal: nothing is answered as done without an entry, and whoever changes an entry is found out.

Method: two gateways and a projector are killed while callers deploy graphs and try again until they
are told that it is done; then rows are changed by hand, and `headwater audit verify` names them.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
import pytest

from headwater.projections.postgres.migrate import migrate
from tests.databases import new_database
from tests.e2e.house import ADMIN, House
from tests.waiting import ANSWERED_WITHIN_S, wait_until

KEY = {"x-api-key": "dev-workflow-key"}
GRAPH = {"initialNodeRef": "start", "nodes": [{"ref": "start", "task": "noop"}]}
GATEWAYS = ("gateway", "gateway2")
CALLERS = 4
EACH = 40
KILLED = ("gateway", "project", "gateway2", "project")


@pytest.fixture(scope="module")
def house(scratch: Path, module_database: str) -> Iterator[House]:
    directory = scratch / "audit"
    directory.mkdir()
    house = House(directory, module_database, HEADWATER_PROJECT="shop")
    try:
        house.open()
        for part in (*GATEWAYS, "project"):
            house.start(part)
        yield house
    finally:
        house.close()


def deploy(house: House, caller: int) -> list[str]:
    """Deploys graphs until each is answered as done; the ids of the requests that were."""
    done = []
    with httpx.Client(timeout=ANSWERED_WITHIN_S, headers=KEY) as client:
        for number in range(EACH):
            request_id = f"caller-{caller}-{number:04}"

            def answered(number: int = number, request_id: str = request_id) -> bool:
                gateway = GATEWAYS[(caller + number) % 2]
                with suppress(httpx.TransportError):
                    answer = client.put(
                        f"{house.url(gateway)}/api/graphs/graph-{caller}",
                        json=GRAPH | {"outputMapping": {"number": str(number)}},
                        headers={"x-request-id": request_id},
                    )
                    assert answer.is_success or answer.status_code == 503, answer.text
                    return answer.is_success
                return False

            wait_until(answered, request_id)
            done.append(request_id)
    return done


def rows(house: House, query: LiteralString, *given: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(house.dsn) as connection:
        return connection.execute(query, given).fetchall()


def change(house: House, statement: LiteralString, *given: object) -> None:
    with psycopg.connect(house.dsn) as connection:
        connection.execute(statement, given)


def entries(house: House) -> set[str]:
    """The requests that have an entry of success in Postgres."""
    found = rows(
        house,
        "select metadata_json::json ->> 'correlationId' from audit_logs where result = 'success'",
    )
    return {correlation for (correlation,) in found}


def headwater(house: House, *arguments: str, dsn: str = "") -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "HEADWATER_KAFKA": house.bootstrap,
        "HEADWATER_POSTGRES": dsn or house.dsn,
        "HEADWATER_URL": house.url(),
    }
    argv = [sys.executable, "-m", "headwater", "audit", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)


def verified(house: House, *arguments: str) -> dict[str, Any]:
    ended = headwater(house, "verify", "--json", *arguments)
    found: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == (1 if found["findings"] else 0), ended.stderr
    return found


def test_what_was_answered_as_done_has_its_entry_whoever_was_killed(house: House):
    with ThreadPoolExecutor(CALLERS) as pool:
        calling = [pool.submit(deploy, house, caller) for caller in range(CALLERS)]
        for killed, part in enumerate(KILLED, 1):
            # Somebody waits for an answer whenever a gateway dies.
            wait_until(lambda n=killed: len(entries(house)) > n * EACH // 2, "entries")  # type: ignore[misc]
            house.kill(part)
            house.start(part)
        done = {request for each in calling for request in each.result()}
    assert len(done) == CALLERS * EACH
    wait_until(lambda: done <= entries(house), "all entries in Postgres")
    found = verified(house)
    assert found["findings"] == []
    assert found["entries"] >= len(done)
    assert rows(house, "select distinct project_id from audit_logs") == [("shop",)]


def test_a_row_that_was_changed_is_named(house: House):
    head = verified(house)["head"]
    (offset, name) = rows(house, 'select "offset", id from audit_logs where "offset" = 7')[0]
    (resource,) = rows(house, "select resource from audit_logs where id = %s", name)[0]
    change(house, "update audit_logs set resource = '/api/graphs/another' where id = %s", name)
    assert verified(house)["findings"] == [
        {
            "offset": offset,
            "what": f"resource of the row {name} was changed: {resource!r} is now "
            "'/api/graphs/another'",
        }
    ]
    change(house, "update audit_logs set resource = %s where id = %s", resource, name)
    assert verified(house)["head"] == head


def test_rows_that_are_missing_or_were_added_are_named(house: House):
    before = verified(house)
    assert before["findings"] == []
    with psycopg.connect(house.dsn) as connection:
        connection.execute('create table aside as select * from audit_logs where "offset" = 9')
        connection.execute('delete from audit_logs where "offset" = 9')
        connection.execute(
            'insert into audit_logs (id, action, resource, result, created_at, "offset", hash)'
            " values ('made-up', 'users.wipe', '/', 'success', now(), 1000000000, '')"
        )
    (name,) = rows(house, "select id from aside")[0]
    assert verified(house)["findings"] == [
        {"offset": 9, "what": f"the row {name} is missing"},
        {"offset": 1000000000, "what": "the row made-up is not in the log"},
    ]
    with psycopg.connect(house.dsn) as connection:
        connection.execute("delete from audit_logs where id = 'made-up'")
        connection.execute("insert into audit_logs select * from aside")
        connection.execute("drop table aside")
    assert verified(house) == before


def test_hashes_that_were_made_again_do_not_hide_a_change(house: House):
    with psycopg.connect(house.dsn) as connection:
        connection.execute("create table aside as select * from audit_logs")
        connection.execute("update audit_logs set result = 'failure' where \"offset\" = 3")
        # As somebody would who knows how they are made; any will do for those that follow.
        connection.execute('update audit_logs set hash = sha256(hash) where "offset" >= 3')
    findings = verified(house)["findings"]
    assert [each["offset"] for each in findings] == [3, 3]
    assert "result of the row" in findings[0]["what"]
    assert "hashes of rows differ from those of the log" in findings[1]["what"]
    with psycopg.connect(house.dsn) as connection:
        connection.execute("truncate audit_logs")
        connection.execute("insert into audit_logs select * from aside")
        connection.execute("drop table aside")


def test_a_head_that_was_kept_tells_whether_the_log_is_what_it_was(house: House):
    head = verified(house)["head"]
    offset, _, digits = head.partition(":")
    assert verified(house, "--anchor", head)["findings"] == []
    (found,) = verified(house, "--anchor", f"{offset}:{'0' * 64}")["findings"]
    assert found["offset"] == int(offset)
    assert digits in found["what"]
    (found,) = verified(house, "--anchor", f"999999:{digits}")["findings"]
    assert found["what"] == "the anchor is of an entry that the log does not have"


def test_rows_made_again_have_the_same_hashes(house: House):
    ours = rows(house, 'select id, hash from audit_logs order by "offset"')
    with new_database(house.dsn) as another:
        migrate(another, lambda _: None)
        house.postgres_of["project2"] = another
        house.stop("project")
        house.start("project2")
        try:

            def again() -> list[tuple[Any, ...]]:
                with psycopg.connect(another) as connection:
                    return connection.execute(
                        'select id, hash from audit_logs order by "offset"'
                    ).fetchall()

            wait_until(lambda: len(again()) >= len(ours), "the rows")
            assert again()[: len(ours)] == ours
        finally:
            house.kill("project2")
            house.start("project")


def test_an_export_can_be_verified_by_whoever_has_it(house: House):
    ended = headwater(house, "export")
    before = bytes(32)
    for line in ended.stdout.splitlines():
        entry = json.loads(line)
        digest = entry.pop("hash")
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(before + text.encode()).digest()
        assert before.hex() == digest
    assert verified(house)["head"].endswith(before.hex())


def test_entries_are_listed_and_filtered(house: House):
    with httpx.Client(base_url=house.url(), headers=ADMIN, timeout=ANSWERED_WITHIN_S) as client:
        first = client.get("/v1/audit", params={"limit": 2, "result": "success"}).json()
        assert first["hasMore"]
        newest = first["entries"][0]
        assert newest["action"] == "graphs.deploy"
        assert newest["metadata"]["lane"] == "public"
        more = client.get("/v1/audit", params={"limit": 2, "cursor": first["cursor"]}).json()
        assert more["entries"][0]["offset"] < first["entries"][-1]["offset"]
        none = client.get("/v1/audit", params={"action": "users.wipe"}).json()
        assert none == {"entries": [], "cursor": None, "hasMore": False}
        key = newest["keyId"]
        late = client.get("/v1/audit", params={"keyId": key, "until": newest["createdAt"]}).json()
        assert newest not in late["entries"]
        assert late["entries"]
        assert client.get("/v1/audit", params={"cursor": "?"}).json()["code"] == "invalid_cursor"
    listed = headwater(house, "list", "--limit", "3", "--json")
    assert len(json.loads(listed.stdout)["entries"]) == 3


def leave(house: House, number: int) -> None:
    """Deploys a version of a graph, and is gone before the answer comes."""
    body = json.dumps(GRAPH | {"outputMapping": {"left": str(number)}}).encode()
    head = (
        "PUT /api/graphs/left HTTP/1.1\r\nhost: localhost\r\nx-api-key: dev-workflow-key\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", house.ports["gateway"])) as leaving:
        leaving.sendall(head.encode() + body)
        leaving.settimeout(0.001 * (number + 1))
        with suppress(TimeoutError):
            leaving.recv(1)


def test_what_was_done_for_who_left_has_its_entry(house: House):
    for number in range(20):
        leave(house, number)

    def done() -> tuple[int, int]:
        (versions,) = rows(house, "select count(*) from graph_definition where name = 'left'")[0]
        (told,) = rows(
            house,
            "select count(*) from audit_logs where resource = '/api/graphs/left'"
            " and result = 'success'",
        )[0]
        return versions, told

    wait_until(lambda: done()[0] > 1 and len(set(done())) == 1, "an entry for each version")


def test_a_callback_that_went_astray_is_seen(house: House):
    command = [sys.executable, "-m", "headwater", "validate-ownership", "--strict"]
    env = os.environ | {"HEADWATER_URL": house.url()}
    before = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert before.returncode == 0, before.stderr
    # Of two gateways, either may be the one that is asked.
    astray = httpx.post(
        f"{house.url('gateway2')}/.well-known/workflow/v1/flow",
        json={"runId": "r"},
        timeout=ANSWERED_WITHIN_S,
    )
    assert (astray.status_code, astray.json()["code"]) == (409, "remote_execution")
    found = httpx.get(
        f"{house.url()}/v1/diagnostics/ownership", headers=ADMIN, timeout=ANSWERED_WITHIN_S
    ).json()
    last = found.pop("lastUnexpectedHitAt")
    assert last
    assert found == {
        "remoteModeEnabled": True,
        "strictMode": True,
        "targetWorld": "headwater/world-remote",
        "expectedTargetWorld": "headwater/world-remote",
        "status": "fail",
        "lifetimeUnexpectedHits": 1,
        "unexpectedHitsLast15m": 1,
    }
    after = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert after.returncode == 1
    assert "fail" in after.stdout


def test_without_kafka_nothing_is_answered_as_done(house: House):
    with httpx.Client(base_url=house.url(), headers=ADMIN, timeout=ANSWERED_WITHIN_S) as client:
        assert client.post("/admin/drain", json={}).status_code == 200
        house.broker.stop()
        refused = client.post("/admin/drain", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
        # What has failed anyway is answered as it is.
        failed = client.post("/admin/dlq/replay", json={})
        assert (failed.status_code, failed.json()["code"]) == (400, "invalid_parameter")
        house.broker.start()
        wait_until(lambda: client.post("/admin/drain", json={}).is_success, "Kafka to be back")
