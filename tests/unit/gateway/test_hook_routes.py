"""Calls of hooks over HTTP: one event, nothing for another URL, no token in the audit log."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from litestar.testing import TestClient

from headwater.gateway.api import authentication
from headwater.gateway.settings.settings import Settings
from headwater.processors.hooks import HookSigner, HookTarget, sign
from headwater.schemas.history import ReplySent, SendEvent
from headwater.streams.workflows.client import OutcomeUnknown
from tests.fakes.audit_log import MemoryAudit
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply

NEW, OLD = "k" * 40, "o" * 40
EXPIRES_MS = 60_000


class Served(NamedTuple):
    client: TestClient[Any]
    commands: MemoryCommands
    audit: MemoryAudit
    now: list[int]


@pytest.fixture
def served() -> Iterator[Served]:
    commands, audit, now = MemoryCommands(), MemoryAudit(), [0]
    workflows = memory_workflows(commands=commands, clock=lambda: now[0])
    app = memory_app(
        Settings.model_validate({"hook_keys": f"{NEW},{OLD}"}),
        workflows=workflows,
        audit=audit,
        clock=lambda: now[0],
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Served(client, commands, audit, now)


def path(key: str = NEW, project: str = "default") -> str:
    origin = HookSigner(key, project, "").origin("order", "o-1")
    return f"{origin.url}{sign(origin.key, HookTarget('order', 'o-1', 'hook-1', EXPIRES_MS))}"


@pytest.mark.parametrize("key", [NEW, OLD])
def test_a_call_sends_one_event(served: Served, key: str):
    for body, payload in ((b'{"ok": true}', '{"ok": true}'), (b"", "null")):
        served.commands.sent.clear()
        answer = served.client.post(path(key), content=body)
        assert (answer.status_code, answer.json()) == (200, {"accepted": True}), answer.text
        (sent,) = served.commands.sent
        assert (sent.workflow, sent.instance_id) == ("order", "o-1")
        assert isinstance(sent.command, SendEvent)
        assert (sent.command.type, sent.command.payload) == ("hook-1", payload)
        assert sent.command.once is not None
        assert sent.command.once.key == "hook hook-1"


def test_a_repeated_call_gets_the_same_response(served: Served):
    served.commands.answer = lambda _: reply(code="EVENT_ALREADY_RECEIVED", status="complete")
    answer = served.client.post(path(), json={"ok": False})
    assert (answer.status_code, answer.json()) == (200, {"accepted": True})


def test_while_no_worker_runs_a_call_is_stored(served: Served):
    def nobody(_: object) -> ReplySent:
        raise OutcomeUnknown("expected a worker", ["c-1"], has_worker=False)

    served.commands.answer = nobody
    assert served.client.post(path()).json() == {"accepted": True}


def test_what_is_no_hook_is_refused_and_its_address_is_blocked(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authentication, "_FREE", 10)
    for url in (f"{path()}x", path("x" * 40), path(project="acme"), "/v1/hooks/x"):
        assert_problem(served.client.post(url), 404, "hook_not_found")
    assert served.client.get(path()).status_code == 405
    answers = [served.client.post("/v1/hooks/x") for _ in range(20)]
    assert_problem(answers[-1], 429, "too_many_requests")
    assert not served.commands.sent


def test_a_hook_that_has_expired_or_of_a_run_that_has_ended_is_gone(served: Served):
    served.commands.answer = lambda _: reply(code="INSTANCE_TERMINAL")
    assert_problem(served.client.post(path()), 410, "hook_expired")
    served.commands.sent.clear()
    served.now[0] = EXPIRES_MS
    assert_problem(served.client.post(path()), 410, "hook_expired")
    assert not served.commands.sent


def test_calls_are_audited_without_the_token_and_limited(served: Served):
    url = path()
    answers = [served.client.post(url) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429]
    served.now[0] += 60_000 - 1
    token = url.rpartition("/")[2]
    entries = served.audit.entries
    assert {entry.action for entry in entries} == {"hooks.receive"}
    assert not any(token in entry.resource or token in entry.metadata for entry in entries)
    assert '"runId":"o-1"' in entries[0].metadata
    # Entries are kept indefinitely: calls above the limit, and after the end, have none.
    assert len(entries) == 10
    served.now[0] = EXPIRES_MS
    assert_problem(served.client.post(url), 410, "hook_expired")
    assert len(served.audit.entries) == 10


def test_no_log_has_the_token(served: Served, caplog: pytest.LogCaptureFixture):
    def broken(_: object) -> ReplySent:
        raise RuntimeError("made up")

    served.commands.answer = broken
    url = path()
    assert served.client.put(url).status_code == 405
    served.client.post(url)
    # The client of the test logs URLs, too.
    ours = [record for record in caplog.records if record.name.startswith("headwater")]
    said = [record.getMessage() for record in ours]
    assert any("/v1/hooks/(token) failed" in line for line in said)
    assert not any(url[:40] in line for line in said)


@pytest.mark.parametrize("body", [b"{", b'{"a":1,"a":2}', b"NaN"])
def test_a_body_that_is_no_json_is_refused(served: Served, body: bytes):
    assert_problem(served.client.post(path(), content=body), 400, "invalid_body")
    assert not served.commands.sent
