"""Entries of sign-ins, refused keys, reads of personal data, and users' own operations."""

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.api import audit_routes
from headwater.gateway.api.audit import Auditing
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.api.refused_keys import KEYS_MAX, RefusedKeys, append_refusals
from headwater.projections.audit import AuditFilter
from tests.fakes.audit_log import MemoryAudit
from tests.unit.gateway.issuer import token
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_all_routes import application
from tests.unit.gateway.test_auditing import ADMIN, metadata

OPERATOR = f"admin:{sha256(b'dev-admin-key').hexdigest()[:8]}"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TestClient[Any], MemoryAudit]]:
    audit = MemoryAudit()
    with TestClient(memory_app(audit=audit), raise_server_exceptions=False) as client:
        yield client, audit


@pytest.fixture
def client(served: tuple[TestClient[Any], MemoryAudit]) -> TestClient[Any]:
    served[1].clear()
    served[0].cookies.clear()
    return served[0]


@pytest.fixture
def audit(served: tuple[TestClient[Any], MemoryAudit]) -> MemoryAudit:
    return served[1]


def sign_in(client: TestClient[Any], key: str) -> int:
    answer = client.post("/console/login", data={"key": key}, follow_redirects=False)
    return answer.status_code


def test_a_sign_in_has_an_entry_of_the_operators_key(client: TestClient[Any], audit: MemoryAudit):
    assert sign_in(client, "dev-admin-key") in {302, 303}
    (entry,) = audit.log
    assert (entry.action, entry.result, entry.key_id) == ("console.sign_in", "success", OPERATOR)


def test_without_its_entry_nobody_is_signed_in(client: TestClient[Any], audit: MemoryAudit):
    audit.away = True
    answer = client.post("/console/login", data={"key": "dev-admin-key"}, follow_redirects=False)
    assert_problem(answer, 503, "audit_unavailable")
    assert "set-cookie" not in answer.headers


def test_a_sign_out_has_an_entry_if_there_was_a_session(
    client: TestClient[Any], audit: MemoryAudit
):
    client.post("/console/logout", data={"token": "guessed"}, follow_redirects=False)
    assert audit.log == []
    sign_in(client, "dev-admin-key")
    audit.clear()
    page = client.get("/console").text
    token = page.partition('name="token" value="')[2].partition('"')[0]
    client.post("/console/logout", data={"token": token}, follow_redirects=False)
    results = [(entry.action, entry.key_id) for entry in audit.log]
    assert ("console.sign_out", OPERATOR) in results


PERSONAL = ("/admin/user/bo", "/admin/why/daily_summary/bo/2026-07-01", "/v1/audit")


@pytest.mark.parametrize("path", PERSONAL)
def test_a_read_of_personal_data_has_one_entry_which_names_no_user(
    client: TestClient[Any], audit: MemoryAudit, path: str
):
    client.get(path, headers=ADMIN)
    (entry,) = audit.log
    assert (entry.key_id, "/bo" in entry.resource) == (OPERATOR, False)
    assert ("sha256:" in entry.resource) == ("bo" in path)


def test_entries_are_those_of_the_project_alone(
    client: TestClient[Any], monkeypatch: pytest.MonkeyPatch
):
    requested: list[AuditFilter] = []

    async def newest(_reader: object, filters: AuditFilter, **_: object) -> tuple[list[Any], None]:
        requested.append(filters)
        return [], None

    monkeypatch.setattr(audit_routes, "newest", newest)
    for query in ("", "?projectId=default"):
        assert client.get(f"/v1/audit{query}", headers=ADMIN).status_code == 200
    assert {filters.project_id for filters in requested} == {"default"}
    answer = client.get("/v1/audit?projectId=another", headers=ADMIN)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "projectId"


def refusals(audit: MemoryAudit, *keys: str) -> RefusedKeys:
    """What was refused, by a fake clock that advances a second each time."""
    seconds = count()
    result = RefusedKeys(lambda _scope: "203.0.113.7", lambda: next(seconds) * 1000)
    scope: Any = {"path": "/admin/user/bo", "path_params": {"user_id": "bo"}, "headers": []}
    for key in keys:
        result.record(scope, key)
    return result


def appended(audit: MemoryAudit, refused: RefusedKeys) -> None:
    ids = count()
    auditing = Auditing(
        audit,
        project="shop",
        peer_of=lambda _scope: "",
        metrics=Metrics(),
        clock=lambda: 0,
        new_id=lambda: f"entry-{next(ids)}",
    )
    asyncio.run(append_refusals(refused, auditing))


def test_refused_keys_have_one_entry_each_with_their_number():
    audit = MemoryAudit()
    refused = refusals(audit, "admin:00000001", "admin:00000001", "read:00000002")
    appended(audit, refused)
    first, second = audit.log
    assert (first.action, first.result, first.key_id) == (
        "keys.refuse", "failure", "admin:00000001"
    )  # fmt: skip
    assert (metadata(first)["count"], first.at_ms, metadata(first)["untilMs"]) == (2, 0, 1000)
    assert (first.ip, "bo" in first.resource.split("/")) == ("203.0.113.7", False)
    assert (second.key_id, metadata(second)["count"]) == ("read:00000002", 1)
    appended(audit, refused)
    assert len(audit.log) == 2


def test_guesses_do_not_fill_the_log():
    audit = MemoryAudit()
    appended(audit, refusals(audit, *(f"admin:{number:08}" for number in range(1000))))
    assert len(audit.log) == KEYS_MAX + 1
    others = next(entry for entry in audit.log if entry.key_id == "admin:others")
    assert metadata(others)["count"] == 1000 - KEYS_MAX


def test_refusals_that_are_not_stored_are_logged(caplog: pytest.LogCaptureFixture):
    audit = MemoryAudit(away=True)
    appended(audit, refusals(audit, "admin:00000001"))
    assert "no audit entry for 1 requests with the refused key admin:00000001" in caplog.text


def test_wrong_keys_of_routes_and_of_the_console_are_recorded():
    audit = MemoryAudit()
    with TestClient(memory_app(audit=audit), raise_server_exceptions=False) as client:
        client.get("/admin/projections", headers={"x-admin-key": "guessed"})
        client.post("/api/jobs/activate", json={}, headers={"x-api-key": "guessed"})
        sign_in(client, "guessed")
        assert audit.log == []
    # Appended when the gateway stops; otherwise every minute.
    digits = sha256(b"guessed").hexdigest()[:8]
    result = {entry.key_id: metadata(entry)["count"] for entry in audit.log}
    assert result == {f"admin:{digits}": 2, f"workflow:{digits}": 1}


def test_users_operations_have_entries_that_do_not_name_them(tmp_path: Path):
    audit = MemoryAudit()
    user = {"authorization": f"Bearer {token(sub='user_bo')}"}
    with TestClient(application(tmp_path, audit=audit), raise_server_exceptions=False) as client:
        client.post("/v1/connect", json={}, headers=user)
        client.post("/v1/import", json={"days": 3}, headers=user)
        client.delete("/v1/connections/terra-1", headers=user)
        client.post("/v1/labs/upload", headers=user)
        client.post("/v1/connect", json={})
    key_id = f"user:{sha256(b'user_bo').hexdigest()[:8]}"
    assert {entry.key_id for entry in audit.log} == {key_id}
    assert [entry.action for entry in audit.entries] == [
        "users.connect",
        "users.import",
        "users.disconnect",
        "users.upload_lab_report",
    ]
    assert [entry.action for entry in audit.attempts] == [entry.action for entry in audit.entries]
    disconnect = audit.entries[2].resource
    assert disconnect == f"/v1/connections/sha256:{sha256(b'terra-1').hexdigest()}"
