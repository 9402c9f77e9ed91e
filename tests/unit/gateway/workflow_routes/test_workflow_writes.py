"""Requests that change workflows: what is sent, and how its outcome is answered."""

import msgspec
import pytest

from headwater.gateway.api.workflows import WorkflowHooks
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.history import (
    CancelRun,
    Label,
    PauseRun,
    ReplySent,
    RestartRun,
    ResumeRun,
    RetryRun,
    SendEvent,
    SetBranchOutput,
    StartRun,
    TerminateRun,
)
from headwater.streams.workflows.client import Addressed, OutcomeUnknown
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply
from tests.unit.gateway.workflow_routes.workflow_requests import (
    ASYNC,
    KEY,
    ORDER,
    ORDERS,
    WRITES,
    Client,
    ask,
    named,
    service,
)


def test_of_several_in_a_batch_with_one_id_the_first_is_created(commands: MemoryCommands) -> None:
    with service(commands, WorkflowHooks()) as client:
        body = {"instances": [{"id": "b"}, {"id": "a", "params": 1}, {"id": "a", "params": 2}]}
        answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert [instance["id"] for instance in answer.json()["instances"]] == ["b", "a"]
    assert [(item.instance_id, item.command.params) for item in commands.sent] == [
        ("b", "null"),
        ("a", "1"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        (f"{ORDER}/pause", b"", PauseRun()),
        (f"{ORDER}/resume", b"{}", ResumeRun()),
        (f"{ORDER}/terminate", b"", TerminateRun()),
        (f"{ORDER}/terminate", b'{"reason":"sold"}', TerminateRun("sold")),
        (f"{ORDER}/cancel", b"", CancelRun()),
        (f"{ORDER}/cancel", b'{"reason":"sold"}', CancelRun("sold")),
        (f"{ORDER}/restart", b"", RestartRun()),
        (f"{ORDER}/retry", b"", RetryRun()),
        (f"{ORDER}/restart", b'{"deployment":"same"}', RestartRun("same")),
        (f"{ORDER}/retry", b'{"fromStep":"a/b"}', RetryRun("a/b")),
        (f"{ORDER}/retry", b'{"deployment":"dep_1"}', RetryRun(deployment="dep_1")),
        (
            f"{ORDER}/branch-output",
            b'{"group":"g","branch":2,"output":{"a": 1.0},"fork":"0/g"}',
            SetBranchOutput("g", 2, '{"a": 1.0}', "0/g"),
        ),
        (f"{ORDER}/events", b'{"type":"go"}', SendEvent("id-2", "go", "null")),
        (
            f"{ORDER}/events",
            b'{"type":"go","payload":{"a": 1.0},"startIfMissing":{"params":[ ]}}',
            SendEvent("id-2", "go", '{"a": 1.0}', start="[ ]"),
        ),
    ],
    ids=named,
)
def test_a_request_becomes_one_command(
    client: Client, commands: MemoryCommands, path: str, body: bytes, command: msgspec.Struct
) -> None:
    answer = client.post(path, content=body, headers=ASYNC)
    assert answer.status_code == 202
    (sent,) = commands.sent
    assert (sent.workflow, sent.instance_id) == ("order", "order-1")
    if isinstance(command, SendEvent):
        command = msgspec.structs.replace(command, event_id=sent.command.event_id)
        assert sent.command.event_id.startswith("id-")
    assert sent.command == command


@pytest.mark.parametrize(
    "verb", ["pause", "resume", "terminate", "cancel", "restart", "retry", "events"]
)
def test_an_instance_named_batch_is_sent_commands_like_any_other(
    client: Client, commands: MemoryCommands, verb: str
) -> None:
    body = b'{"type":"go"}' if verb == "events" else b""
    assert client.post(f"{ORDERS}/batch/{verb}", content=body, headers=ASYNC).status_code == 202
    (sent,) = commands.sent
    assert (sent.workflow, sent.instance_id) == ("order", "batch")


def test_an_instance_without_an_id_is_given_one(client: Client, commands: MemoryCommands) -> None:
    answer = client.post(ORDERS, content=b'{"params":{"a": 1.0}}', headers=ASYNC)
    (sent,) = commands.sent
    assert sent.command == StartRun('{"a": 1.0}')
    assert answer.json() == {"id": sent.instance_id, "details": {"status": "active"}}
    assert answer.headers["headwater-position"] == "workflow-history/1@7"
    assert answer.headers["preference-applied"] == "respond-async"


def test_labels_are_sent_by_name_with_whatever_creates(
    client: Client, commands: MemoryCommands
) -> None:
    labels = {"team": "blue", "region": "eu"}
    sent = (Label("region", "eu"), Label("team", "blue"))
    for path, body in (
        (ORDERS, {"labels": labels}),
        (f"{ORDERS}/batch", {"instances": [{"id": "a", "labels": labels}]}),
        (f"{ORDER}/events", {"type": "go", "startIfMissing": {"labels": labels}}),
    ):
        commands.sent.clear()
        answer = client.post(path, json=body, headers=ASYNC)
        assert commands.sent[0].command.labels == sent
        made = answer.json()
        listed = made if path == ORDERS else made.get("instances", [{"labels": labels}])[0]
        assert listed["labels"] == labels


def sent_under(
    client: Client, commands: MemoryCommands, path: str, key: str, body: str
) -> Addressed:
    commands.sent.clear()
    answer = client.post(path, content=body, headers={**ASYNC, "idempotency-key": key})
    assert answer.status_code == 202, answer.text
    (sent,) = commands.sent
    return sent


def test_a_key_makes_the_id_of_an_instance_that_has_none(
    client: Client, commands: MemoryCommands
) -> None:
    first, again, other, named = (
        sent_under(client, commands, ORDERS, key, body)
        for key, body in (("k", "{}"), ("k", "{}"), ("l", "{}"), ("k", '{"id":"order-1"}'))
    )
    assert first == again
    assert first.instance_id != other.instance_id
    assert named.instance_id == "order-1"
    assert named.command == first.command


@pytest.mark.parametrize("path", [ORDERS, f"{ORDER}/events"])
def test_under_a_key_the_same_values_are_the_same_however_they_are_written(
    client: Client, commands: MemoryCommands, path: str
) -> None:
    field = "params" if path == ORDERS else "payload"
    kind = "" if path == ORDERS else '"type":"go",'
    once = [
        sent_under(client, commands, path, "k", f'{{{kind}"{field}":{text}}}').command.once
        for text in ('{"a":1,"b":[2]}', '{ "b": [2], "a": 1 }', '{"a":1,"b":[3]}')
    ]
    assert once[0] == once[1]
    assert once[0].key == once[2].key == "k"
    assert once[0].digest != once[2].digest


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (ORDERS, ('{"labels":{"a":"b"}}', '{"labels":{"a":"c"}}', '{"params":1}', "{}")),
        (
            f"{ORDER}/events",
            (
                '{"type":"go"}',
                '{"type":"no"}',
                '{"type":"go","startIfMissing":{}}',
                '{"type":"go","startIfMissing":{"params":1}}',
                '{"type":"go","startIfMissing":{"labels":{"a":"b"}}}',
            ),
        ),
    ],
)
def test_under_a_key_all_that_is_asked_tells_requests_apart(
    client: Client, commands: MemoryCommands, path: str, bodies: tuple[str, ...]
) -> None:
    digests = [sent_under(client, commands, path, "k", body).command.once.digest for body in bodies]
    assert len(set(digests)) == len(bodies)


def test_what_was_done_before_is_answered_as_it_was(
    client: Client, commands: MemoryCommands
) -> None:
    for path, body, code in (
        (ORDERS, b"{}", "INSTANCE_CREATED_BEFORE"),
        (f"{ORDERS}/batch", b'{"instances":[{"id":"a"}]}', "INSTANCE_CREATED_BEFORE"),
        (f"{ORDER}/events", b'{"type":"go"}', "EVENT_ALREADY_RECEIVED"),
    ):
        before = client.post(path, content=body, headers={**ASYNC, "idempotency-key": "k"})
        assert "idempotent-replayed" not in before.headers
        commands.answer = lambda _, code=code: reply(code=code)
        again = client.post(path, content=body, headers={**ASYNC, "idempotency-key": "k"})
        assert (again.status_code, again.json()) == (before.status_code, before.json())
        assert again.headers["idempotent-replayed"] == "true"
        commands.answer = lambda _: reply()


@pytest.mark.parametrize("key", ["a b", "x" * 256, "ü".encode()])
def test_a_key_that_nobody_can_mean_is_refused(client: Client, key: str) -> None:
    answer = client.post(ORDERS, content=b"{}", headers={**ASYNC, "idempotency-key": key})
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "Idempotency-Key"


def test_a_batch_leaves_out_what_exists(client: Client, commands: MemoryCommands) -> None:
    def outcome(sent: Addressed) -> ReplySent:
        number = int(sent.instance_id)
        exists = "INSTANCE_ID_ALREADY_EXISTS" if number % 2 else ""
        return reply(code=exists, partition=number % 3, position=number)

    commands.answer = outcome
    body = {"instances": [{"id": str(number)} for number in range(6)]}
    answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert [one["id"] for one in answer.json()["instances"]] == ["0", "2", "4"]
    positions = "workflow-history/0@3, workflow-history/1@4, workflow-history/2@5"
    assert answer.headers["headwater-position"] == positions


def test_a_batch_of_which_some_are_refused_says_which_were_created(
    client: Client, commands: MemoryCommands
) -> None:
    commands.answer = lambda sent: reply(
        code="" if sent.instance_id == "a" else "WORKFLOW_NOT_FOUND", message="no such code here"
    )
    body = {"instances": [{"id": "a"}, {"id": "b"}]}
    answer = client.post(f"{ORDERS}/batch", json=body, headers=ASYNC)
    assert assert_problem(answer, 404, "WORKFLOW_NOT_FOUND")["created"] == ["a"]


@pytest.mark.parametrize("code", ["ALREADY_CANCELLED", "ALREADY_PAUSED", "NOT_PAUSED"])
def test_what_is_so_already_is_done(client: Client, commands: MemoryCommands, code: str) -> None:
    commands.answer = lambda _: reply(code=code, status="paused")
    answer = client.post(f"{ORDER}/pause", headers=ASYNC)
    assert (answer.status_code, answer.json()) == (
        202,
        {"ok": True, "status": {"status": "paused"}},
    )


def test_a_new_run_says_its_number(client: Client, commands: MemoryCommands) -> None:
    commands.answer = lambda _: reply(run_number=3)
    for verb in ("restart", "retry"):
        answer = client.post(f"{ORDER}/{verb}", headers=ASYNC)
        assert answer.json() == {"ok": True, "status": {"status": "active"}, "runNumber": 3}


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_a_refusal_is_a_problem_that_says_where_it_is_recorded(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    commands.answer = lambda _: reply(code="INSTANCE_TERMINAL", message="it has ended")
    answer = ask(client, route, **ASYNC)
    assert assert_problem(answer, 409, "INSTANCE_TERMINAL")["detail"] == "it has ended"
    assert answer.headers["headwater-position"] == "workflow-history/1@7"


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_without_a_worker_what_need_not_be_waited_for_is_accepted(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    def nobody(_: Addressed) -> ReplySent:
        raise OutcomeUnknown("expected a worker", ["c-1"], has_worker=False)

    commands.answer = nobody
    answer = ask(client, route, **ASYNC)
    assert answer.status_code == 202, answer.text
    assert answer.headers["preference-applied"] == "respond-async"
    (accepted,) = answer.json()["accepted"]
    sent = commands.sent[0]
    assert accepted == {
        "workflowName": sent.workflow,
        "id": sent.instance_id,
        "commandId": "c-1",
    }
    assert "headwater worker --app" in answer.json()["detail"]
    assert_problem(ask(client, route, **KEY), 503, "outcome_unknown")


@pytest.mark.parametrize("route", WRITES, ids=named)
def test_without_kafka_or_a_worker_writes_say_what_may_still_happen(
    client: Client, commands: MemoryCommands, route: tuple[str, str, bytes]
) -> None:
    def fails(error: Exception) -> None:
        def outcome(_: Addressed) -> ReplySent:
            raise error

        commands.answer = outcome

    fails(OutcomeUnknown("no reply; it may still be executed"))
    answer = ask(client, route, **KEY)
    problem = assert_problem(answer, 503, "outcome_unknown")
    assert "may still be executed" in problem["detail"]
    assert answer.headers["retry-after"]
    fails(BrokerUnavailable("no acknowledgement"))
    problem = assert_problem(ask(client, route, **KEY), 503, "broker_unavailable")
    assert "may still be executed" in problem["detail"]
    fails(Overloaded("expected at most 1 bytes on their way, found 2"))
    answer = ask(client, route, **KEY)
    assert_problem(answer, 503, "overloaded")
    assert answer.headers["retry-after"]
    commands.ready = False
    problem = assert_problem(ask(client, route, **KEY), 503, "broker_unavailable")
    assert "nothing was sent" in problem["detail"]


def test_without_postgres_writes_are_answered_and_reads_are_not(client: Client) -> None:
    answer = client.post(f"{ORDER}/pause", headers=KEY)
    assert (answer.status_code, answer.json()["ok"]) == (202, True)
    assert "preference-applied" not in answer.headers
    answer = client.get(f"{ORDER}?min_position=workflow-history/0@1", headers=KEY)
    assert_problem(answer, 503, "store_unavailable")
    assert answer.headers["retry-after"]
