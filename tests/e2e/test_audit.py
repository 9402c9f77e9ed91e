"""Goal: nothing is answered as done without an entry, and whoever changes an entry is found out.

Method: two gateways and a projector are killed while callers deploy graphs and try again until they
are told that it is done; then rows are changed by hand, and `headwater audit verify` names them.
"""

import hashlib
import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import httpx2
import psycopg
import pytest

from headwater.projections.postgres.migrate import migrate
from tests.commands import called
from tests.databases import new_database
from tests.e2e.system import ADMIN, System
from tests.waiting import ANSWERED_WITHIN_S, wait_until

KEY = {"x-api-key": "dev-workflow-key"}
GRAPH = {"initialNodeRef": "start", "nodes": [{"ref": "start", "task": "noop"}]}
GATEWAYS = ("gateway", "gateway2")
CALLERS = 4
EACH = 40
#: A deployment may be repeated, also if it was done.
NO_ENTRY = ("audit_unavailable", "result_not_recorded")
KILLED = ("gateway", "project", "gateway2", "project")


@pytest.fixture(scope="module")
def system(scratch: Path, module_database: str) -> Iterator[System]:
    directory = scratch / "audit"
    directory.mkdir()
    system = System(
        directory,
        module_database,
        HEADWATER_PROJECT="shop",
        HEADWATER_TOPIC_PREFIX="",
        HEADWATER_POSTGRES_SCHEMA="headwater",
    )
    try:
        system.open()
        for part in (*GATEWAYS, "project"):
            system.start(part)
        yield system
    finally:
        system.close()


def deploy(system: System, caller: int) -> list[str]:
    """Deploys graphs until each is answered as done; the ids of the requests that were."""
    done = []
    with httpx2.Client(timeout=ANSWERED_WITHIN_S, headers=KEY) as client:
        for number in range(EACH):
            request_id = f"caller-{caller}-{number:04}"

            def answered(number: int = number, request_id: str = request_id) -> bool:
                gateway = GATEWAYS[(caller + number) % 2]
                with suppress(httpx2.TransportError):
                    answer = client.put(
                        f"{system.url(gateway)}/api/graphs/graph-{caller}",
                        json=GRAPH | {"outputMapping": {"number": str(number)}},
                        headers={"x-request-id": request_id},
                    )
                    unrecorded = not answer.is_success and answer.json()["code"] in NO_ENTRY
                    assert answer.is_success or unrecorded or answer.status_code == 503, answer.text
                    return answer.is_success
                return False

            wait_until(answered, request_id)
            done.append(request_id)
    return done


def rows(system: System, query: LiteralString, *given: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(system.dsn) as connection:
        return connection.execute(query, given).fetchall()


def change(system: System, statement: LiteralString, *given: object) -> None:
    with psycopg.connect(system.dsn) as connection:
        connection.execute(statement, given)


def entries(system: System) -> set[str]:
    """The requests that have an entry of success in Postgres."""
    result = rows(
        system,
        "select metadata_json::json ->> 'correlationId' from audit_logs where result = 'success'",
    )
    return {correlation for (correlation,) in result}


def headwater(system: System, *arguments: str, dsn: str = "") -> subprocess.CompletedProcess[str]:
    return called(
        *("audit", *arguments),
        HEADWATER_KAFKA=system.bootstrap,
        HEADWATER_POSTGRES=dsn or system.dsn,
        HEADWATER_URL=system.url(),
    )


def verified(system: System, *arguments: str) -> dict[str, Any]:
    ended = headwater(system, "verify", "--json", *arguments)
    result: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == (1 if result["findings"] else 0), ended.stderr
    return result


def test_what_was_answered_as_done_has_its_entry_whoever_was_killed(system: System):
    with ThreadPoolExecutor(CALLERS) as pool:
        calling = [pool.submit(deploy, system, caller) for caller in range(CALLERS)]
        for killed, part in enumerate(KILLED, 1):
            # Somebody waits for an answer whenever a gateway dies.
            wait_until(lambda n=killed: len(entries(system)) > n * EACH // 2, "entries")  # type: ignore[misc]
            system.kill(part)
            system.start(part)
        done = {request for item in calling for request in item.result()}
    assert len(done) == CALLERS * EACH
    wait_until(lambda: done <= entries(system), "all entries in Postgres")
    result = verified(system)
    assert result["findings"] == []
    assert result["entries"] >= len(done)
    assert rows(system, "select distinct project_id from audit_logs") == [("shop",)]


def test_a_row_that_was_changed_is_named(system: System):
    head = verified(system)["head"]
    (offset, name) = rows(system, 'select "offset", id from audit_logs where "offset" = 7')[0]
    (resource,) = rows(system, "select resource from audit_logs where id = %s", name)[0]
    change(system, "update audit_logs set resource = '/api/graphs/another' where id = %s", name)
    assert verified(system)["findings"] == [
        {
            "offset": offset,
            "what": f"resource of the row {name} was changed: {resource!r} is now "
            "'/api/graphs/another'",
        }
    ]
    change(system, "update audit_logs set resource = %s where id = %s", resource, name)
    assert verified(system)["head"] == head


def test_rows_that_are_missing_or_were_added_are_named(system: System):
    before = verified(system)
    assert before["findings"] == []
    with psycopg.connect(system.dsn) as connection:
        connection.execute('create table aside as select * from audit_logs where "offset" = 9')
        connection.execute('delete from audit_logs where "offset" = 9')
        connection.execute(
            'insert into audit_logs (id, action, resource, result, created_at, "offset", hash)'
            " values ('made-up', 'users.wipe', '/', 'success', now(), 1000000000, '')"
        )
    (name,) = rows(system, "select id from aside")[0]
    assert verified(system)["findings"] == [
        {"offset": 9, "what": f"the row {name} is missing"},
        {"offset": 1000000000, "what": "the row made-up is not in the log"},
    ]
    with psycopg.connect(system.dsn) as connection:
        connection.execute("delete from audit_logs where id = 'made-up'")
        connection.execute("insert into audit_logs select * from aside")
        connection.execute("drop table aside")
    assert verified(system) == before


def test_hashes_that_were_made_again_do_not_hide_a_change(system: System):
    with psycopg.connect(system.dsn) as connection:
        connection.execute("create table aside as select * from audit_logs")
        connection.execute("update audit_logs set result = 'failure' where \"offset\" = 3")
        # As somebody would who knows how they are made; any will do for those that follow.
        connection.execute('update audit_logs set hash = sha256(hash) where "offset" >= 3')
    findings = verified(system)["findings"]
    assert [finding["offset"] for finding in findings] == [3, 3]
    assert "result of the row" in findings[0]["what"]
    assert "hashes of rows differ from those of the log" in findings[1]["what"]
    with psycopg.connect(system.dsn) as connection:
        connection.execute("truncate audit_logs")
        connection.execute("insert into audit_logs select * from aside")
        connection.execute("drop table aside")


def test_a_head_that_was_kept_tells_whether_the_log_is_what_it_was(system: System):
    head = verified(system)["head"]
    offset, _, digits = head.partition(":")
    assert verified(system, "--anchor", head)["findings"] == []
    (result,) = verified(system, "--anchor", f"{offset}:{'0' * 64}")["findings"]
    assert result["offset"] == int(offset)
    assert digits in result["what"]
    (result,) = verified(system, "--anchor", f"999999:{digits}")["findings"]
    assert result["what"] == "the anchor is of an entry that the log does not have"


def test_rows_made_again_have_the_same_hashes(system: System):
    ours = rows(system, 'select id, hash from audit_logs order by "offset"')
    with new_database(system.dsn) as another:
        migrate(another, lambda _: None)
        system.postgres_of["project2"] = another
        system.stop("project")
        system.start("project2")
        try:

            def again() -> list[tuple[Any, ...]]:
                with psycopg.connect(another) as connection:
                    return connection.execute(
                        'select id, hash from audit_logs order by "offset"'
                    ).fetchall()

            wait_until(lambda: len(again()) >= len(ours), "the rows")
            assert again()[: len(ours)] == ours
        finally:
            system.kill("project2")
            system.start("project")


def test_an_export_can_be_verified_by_whoever_has_it(system: System):
    ended = headwater(system, "export")
    before = bytes(32)
    for line in ended.stdout.splitlines():
        entry = json.loads(line)
        digest = entry.pop("hash")
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(before + text.encode()).digest()
        assert before.hex() == digest
    assert verified(system)["head"].endswith(before.hex())


def test_entries_are_listed_and_filtered(system: System):
    with httpx2.Client(base_url=system.url(), headers=ADMIN, timeout=ANSWERED_WITHIN_S) as client:
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
    listed = headwater(system, "list", "--limit", "3", "--json")
    assert len(json.loads(listed.stdout)["entries"]) == 3


def leave(system: System, number: int) -> None:
    """Deploys a version of a graph, and is gone before the answer comes."""
    body = json.dumps(GRAPH | {"outputMapping": {"left": str(number)}}).encode()
    head = (
        "PUT /api/graphs/left HTTP/1.1\r\nhost: localhost\r\nx-api-key: dev-workflow-key\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", system.ports["gateway"])) as leaving:
        leaving.sendall(head.encode() + body)
        leaving.settimeout(0.001 * (number + 1))
        with suppress(TimeoutError):
            leaving.recv(1)


def test_what_was_done_for_who_left_has_its_entry(system: System):
    for number in range(20):
        leave(system, number)

    def done() -> tuple[int, int]:
        (versions,) = rows(system, "select count(*) from graph_definition where name = 'left'")[0]
        (reported,) = rows(
            system,
            "select count(*) from audit_logs where resource = '/api/graphs/left'"
            " and result = 'success'",
        )[0]
        return versions, reported

    wait_until(lambda: done()[0] > 1 and len(set(done())) == 1, "an entry for each version")


def keyed(system: System, gateway: str, method: str, path: str, key: str = "", **body: Any) -> Any:  # noqa: ANN401 (an answer)
    headers = {"authorization": f"Bearer {key}"} if key else ADMIN
    sent = {"json": body} if body else {}
    url = f"{system.url(gateway)}{path}"
    return httpx2.request(method, url, headers=headers, timeout=ANSWERED_WITHIN_S, **sent)


def test_keys_are_accepted_and_revoked_by_all_gateways_also_by_those_that_start_later(
    system: System,
):
    made = keyed(system, "gateway", "POST", "/v1/keys", name="ci", role="operator").json()
    text, path = made["key"], f"/v1/keys/{made['id']}"
    assert keyed(system, "gateway2", "GET", "/v1/audit", text).is_success
    rotated = keyed(system, "gateway2", "POST", f"{path}/rotate", overlapSeconds=600).json()
    for key in (text, rotated["key"]):
        assert keyed(system, "gateway", "GET", "/v1/audit", key).is_success
    system.kill("gateway")
    system.start("gateway")
    wait_until(lambda: keyed(system, "gateway", "GET", "/v1/audit", text).is_success, "its keys")

    def used() -> bool:
        return bool(rows(system, "select from api_keys where last_used_at is not null"))

    wait_until(used, "the last use")
    assert rows(system, "select name, role, revoked_at from api_keys") == [("ci", "operator", None)]
    keyed(system, "gateway2", "POST", f"{path}/revoke")
    for gateway in GATEWAYS:
        for key in (text, rotated["key"]):
            wait_until(
                lambda g=gateway, k=key: keyed(system, g, "GET", "/v1/audit", k).status_code == 401,  # type: ignore[misc]
                "its revocation",
            )
    wait_until(
        lambda: rows(system, "select revoked_at is not null from api_keys") == [(True,)],
        "the row of the revocation",
    )
    verified_ids = rows(system, "select distinct key_id from audit_logs where key_id like 'key%%'")
    assert verified_ids == [(made["id"],)]


def test_a_callback_that_went_astray_is_seen(system: System):
    def validated() -> subprocess.CompletedProcess[str]:
        return called("validate-ownership", "--strict", HEADWATER_URL=system.url())

    before = validated()
    assert before.returncode == 0, before.stderr
    # Of two gateways, either may be the one that is asked.
    astray = httpx2.post(
        f"{system.url('gateway2')}/.well-known/workflow/v1/flow",
        json={"runId": "r"},
        timeout=ANSWERED_WITHIN_S,
    )
    assert (astray.status_code, astray.json()["code"]) == (409, "remote_execution")
    result = httpx2.get(
        f"{system.url()}/v1/diagnostics/ownership", headers=ADMIN, timeout=ANSWERED_WITHIN_S
    ).json()
    last = result.pop("lastUnexpectedHitAt")
    assert last
    assert result == {
        "remoteModeEnabled": True,
        "strictMode": True,
        "targetWorld": "headwater/world-remote",
        "expectedTargetWorld": "headwater/world-remote",
        "status": "fail",
        "lifetimeUnexpectedHits": 1,
        "unexpectedHitsLast15m": 1,
    }
    after = validated()
    assert after.returncode == 1
    assert "fail" in after.stdout


def test_without_kafka_nothing_is_answered_as_done(system: System):
    with httpx2.Client(base_url=system.url(), headers=ADMIN, timeout=ANSWERED_WITHIN_S) as client:
        assert client.post("/admin/drain", json={}).status_code == 200
        system.broker.stop()
        refused = client.post("/admin/drain", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "audit_unavailable")
        # What has failed anyway is answered as it is.
        failed = client.post("/admin/dlq/replay", json={})
        assert (failed.status_code, failed.json()["code"]) == (400, "invalid_parameter")
        system.broker.start()
        wait_until(lambda: client.post("/admin/drain", json={}).is_success, "Kafka to be back")
