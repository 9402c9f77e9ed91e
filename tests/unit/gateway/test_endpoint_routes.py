"""Endpoints over HTTP: created, rotated, disabled, deleted, tested and replayed."""

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.processors.notifications import NOTIFY, message_id
from headwater.schemas.history import StartRun
from tests.fakes.api_keys import MemoryApiKeys
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.endpoints import MemoryEndpoints
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_auditing import ADMIN, metadata
from tests.unit.gateway.test_key_matrix import created, key
from tests.unit.gateway.workflow_fakes import MemoryCommands

NOW_MS = 1_782_900_000_000
URL = "https://example.com/hooks"


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Gateway:
    def __init__(self) -> None:
        self.endpoints = MemoryEndpoints()
        self.audit = MemoryAudit()
        self.clock = Clock()
        self.keys: list[bytes] = []
        self.commands = MemoryCommands()
        drawn = iter(range(1, 1_000_000))
        app = memory_app(
            endpoints=self.endpoints,
            audit=self.audit,
            clock=self.clock,
            api_keys=MemoryApiKeys(self.keys),
            draw=lambda size: next(drawn).to_bytes(size),
            workflows=memory_workflows(commands=self.commands),
        )
        self.client = TestClient(app, raise_server_exceptions=False)

    def post(self, path: str, body: Any = None, headers: Any = None) -> Any:  # noqa: ANN401 (JSON)
        return self.client.post(f"/v1/endpoints{path}", json=body or {}, headers=headers or ADMIN)

    def get(self, path: str = "") -> Any:  # noqa: ANN401 (JSON)
        return self.client.get(f"/v1/endpoints{path}", headers=ADMIN)

    def key(self, *more: str) -> tuple[str, dict[str, str]]:
        """Create a key; return its id, and the header with its text."""
        body = {"name": "ci", "scopes": ["endpoints:write", "instances:read", *more]}
        made = self.client.post("/v1/keys", json=body, headers=ADMIN).json()
        return made["id"], {"authorization": f"Bearer {made['key']}"}

    def create(self, **fields: Any) -> Any:  # noqa: ANN401 (JSON)
        answer = self.post("", {"url": URL, "types": ["instance_errored"], **fields})
        assert answer.status_code == 201, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()


@pytest.fixture(scope="module")
def started() -> Iterator[Gateway]:
    gateway = Gateway()
    with gateway.client:
        yield gateway


@pytest.fixture
def gateway(started: Gateway) -> Gateway:
    started.endpoints.__init__()  # type: ignore[misc]
    started.audit.clear()
    return started


def test_the_secret_of_an_endpoint_is_shown_once(gateway: Gateway):
    made = gateway.create(description="on call", workflows=["order"])
    assert made["id"].startswith("ep_")
    assert made["secret"].startswith("whsec_")
    assert made["state"] == "active"
    listed = gateway.get()
    assert made["secret"] not in listed.text
    assert listed.json()["endpoints"] == [{k: v for k, v in made.items() if k != "secret"}]
    assert made["secret"] not in gateway.get(f"/{made['id']}").text
    assert made["secret"] not in str(gateway.audit.log)
    entries = [metadata(entry) for entry in gateway.audit.log]
    assert {entry["endpoint"] for entry in entries} == {made["id"]}


def test_a_rotation_keeps_the_previous_secret_for_some_time(gateway: Gateway):
    made = gateway.create()
    rotated = gateway.post(f"/{made['id']}/rotate", {"overlapSeconds": 60}).json()
    assert rotated["secret"] != made["secret"]
    assert rotated["previousUntil"] == "2026-07-01T10:01:00Z"
    endpoint = gateway.endpoints.fold.by_id[made["id"]]
    assert endpoint.secrets(NOW_MS) == (rotated["secret"], made["secret"])
    assert endpoint.secrets(NOW_MS + 60_000) == (rotated["secret"],)


def test_an_endpoint_is_disabled_and_enabled(gateway: Gateway):
    made = gateway.create()
    disabled = gateway.post(f"/{made['id']}/disable", {"why": "moving"}).json()
    assert (disabled["state"], disabled["why"]) == ("disabled", "moving")
    assert not list(gateway.endpoints.fold.active())
    enabled = gateway.post(f"/{made['id']}/enable").json()
    assert (enabled["state"], enabled["why"]) == ("active", None)
    records = len(gateway.endpoints.records)
    assert gateway.post(f"/{made['id']}/enable").json()["state"] == "active"
    assert len(gateway.endpoints.records) == records, "it was active already"


def test_a_deleted_endpoint_leaves_no_secret(gateway: Gateway):
    made = gateway.create()
    answer = gateway.client.delete(f"/v1/endpoints/{made['id']}", headers=ADMIN)
    assert answer.json() == {"id": made["id"]}
    assert gateway.endpoints.erased == [made["id"]]
    assert_problem(gateway.get(f"/{made['id']}"), 404, "not_found")
    for action in ("rotate", "disable", "enable", "test"):
        assert_problem(gateway.post(f"/{made['id']}/{action}"), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://169.254.169.254/"}, "url"),
        ({"types": []}, "types"),
        ({"types": ["instance_exploded"]}, "types[0]"),
        ({"tables": ["nothing"]}, "tables"),
        ({"workflows": [""]}, "workflows[0]"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_endpoint_that_makes_no_sense_is_refused(
    gateway: Gateway, body: dict[str, Any], field: str
):
    answer = gateway.post("", {"url": URL, "types": ["instance_errored"], **body})
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == field
    assert not gateway.endpoints.records


def test_a_key_can_only_subscribe_to_what_it_may_read(gateway: Gateway):
    gateway.keys.append(created(7, ("endpoints:write", "instances:read")))
    headers = {"authorization": f"Bearer {key(7)}"}
    body = {"url": URL, "types": ["instance_errored", "row_changed"]}
    problem = assert_problem(gateway.post("", body, headers), 403, "insufficient_scope")
    assert problem["needed"] == ["rows:read"]
    answer = gateway.post("", {**body, "types": ["instance_errored"]}, headers)
    assert answer.status_code == 201


def test_a_test_is_one_attempt(gateway: Gateway):
    made = gateway.create()
    answer = gateway.post(f"/{made['id']}/test")
    assert answer.status_code == 202, answer.text
    started = answer.json()
    sent = gateway.commands.sent[-1]
    assert (sent.workflow, sent.instance_id) == (NOTIFY, started["id"])
    assert isinstance(sent.command, StartRun)
    assert '"retries_ms":[]' in sent.command.params
    assert started["messageId"] == message_id(started["id"])


def test_while_kafka_is_away_nothing_is_changed(gateway: Gateway):
    made = gateway.create()
    gateway.endpoints.away = True
    assert_problem(gateway.post(f"/{made['id']}/rotate"), 503, "broker_unavailable")
    assert_problem(gateway.get(), 503, "broker_unavailable")


def test_a_disabled_endpoint_is_not_replayed(gateway: Gateway):
    made = gateway.create()
    gateway.post(f"/{made['id']}/disable")
    order = {"since": "2026-07-01T00:00:00Z"}
    answer = gateway.post(f"/{made['id']}/replays", order)
    assert_problem(answer, 409, "endpoint_disabled")


@pytest.mark.parametrize(
    "order",
    [
        {"since": "2026-07-02T00:00:00Z"},
        {"since": "2026-06-02T00:00:00Z", "until": "2026-06-01T00:00:00Z"},
        {"since": "yesterday"},
        {},
    ],
)
def test_a_replay_needs_a_time_in_the_past(gateway: Gateway, order: dict[str, str]):
    made = gateway.create()
    answer = gateway.post(f"/{made['id']}/replays", order)
    assert_problem(answer, 400, "invalid_parameter")


def test_a_key_changes_only_endpoints_whose_data_it_may_read(gateway: Gateway):
    made = gateway.create(types=["instance_errored", "row_changed"])
    gateway.post(f"/{made['id']}/disable")
    (_, narrow), (_, wide) = gateway.key(), gateway.key("rows:read")
    order = {"since": "2026-06-01T00:00:00Z"}
    records = len(gateway.endpoints.records)
    for action, body in (("rotate", {}), ("enable", {}), ("replays", order)):
        answer = gateway.post(f"/{made['id']}/{action}", body, narrow)
        assert assert_problem(answer, 403, "insufficient_scope")["needed"] == ["rows:read"]
    assert len(gateway.endpoints.records) == records
    answer = gateway.post(f"/{made['id']}/deliveries/ep_1-1/replay", {}, narrow)
    assert assert_problem(answer, 403, "insufficient_scope")["needed"] == ["rows:read"]
    assert gateway.post(f"/{made['id']}/disable", {}, narrow).status_code == 200
    for action in ("rotate", "enable"):
        assert gateway.post(f"/{made['id']}/{action}", {}, wide).status_code == 200


def test_a_revoked_key_leaves_no_endpoint_that_sends(gateway: Gateway):
    parent, header = gateway.key("keys:write")
    body = {"name": "ci", "scopes": ["endpoints:write", "instances:read"]}
    child = gateway.client.post("/v1/keys", json=body, headers=header).json()
    of_child = {"authorization": f"Bearer {child['key']}"}
    endpoint = {"url": URL, "types": ["instance_errored"]}
    mine, disabled = (gateway.post("", endpoint, header).json()["id"] for _ in range(2))
    childs = gateway.post("", endpoint, of_child).json()["id"]
    others, rotated = (gateway.create()["id"] for _ in range(2))
    gateway.post(f"/{disabled}/disable")
    gateway.post(f"/{rotated}/rotate", {}, of_child)
    gateway.endpoints.away = True
    url = f"/v1/keys/{parent}/revoke"
    assert_problem(gateway.client.post(url, headers=ADMIN), 503, "broker_unavailable")
    gateway.endpoints.away = False
    revoked = gateway.client.post(url, headers=ADMIN).json()
    assert revoked["state"] == "revoked"
    assert revoked["disabledEndpoints"] == [mine, childs]
    assert revoked["rotatedEndpoints"] == [rotated]
    assert metadata(gateway.audit.log[-1])["disabledEndpoints"] == [mine, childs]
    assert [one.id for one in gateway.endpoints.fold.active()] == [others, rotated]
    assert gateway.get(f"/{mine}").json()["why"] == f"{parent} was revoked"
