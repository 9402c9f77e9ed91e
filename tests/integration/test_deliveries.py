"""Goal: an operator finds deliveries, and sees all that is known of one."""

import base64
from typing import Any

import pytest

from headwater.schemas.codec import encode
from headwater.schemas.history import SendEvent, StartRun
from headwater.schemas.records import EffectDecided, RequestAnswered, WebhookReceived
from headwater.schemas.tables import CONNECTIONS
from headwater.schemas.topics import DEAD_LETTERS, EFFECTS, TRACES
from tests.fakes.delivery_log import MemoryLog
from tests.integration.test_gateway_reads import (
    ADMIN,
    Client,
    Write,
    client,
    gateway_on,
    gateways,
    write,
)
from tests.integration.written import (
    RECEIVED_AT_MS,
    Written,
    day,
    duplicate,
    outcome,
    row,
    stamp,
    table_record,
)

__all__ = ["client", "gateways", "write"]


def refused(request_id: str, at_ms: int, code: str = "invalid_signature") -> Written:
    answer = RequestAnswered(
        request_id=request_id, source="terra", code=code, reason="stale", detail="too old",
        event_id="", size=17, peer="127.0.0.1", left_out=3, at_ms=at_ms,
    )  # fmt: skip
    return Written(TRACES, 0, request_id.encode(), encode(answer))


def effect(name: str, command: StartRun | SendEvent) -> Written:
    record = EffectDecided(
        event_id="e1", request_id="req-e1", name=name, workflow="report", instance_id="i-1",
        command=command,
    )  # fmt: skip
    return Written(EFFECTS, 0, b"e1", encode(record))


def dead_letter(offset: int) -> Written:
    headers = {
        "__connect.errors.topic": "webhooks",
        "__connect.errors.stage": "intake",
        "headwater.event_id": "e1",
        "headwater.reason": "why",
        "headwater.dead_at_ms": str(RECEIVED_AT_MS + offset),
    }
    return Written(DEAD_LETTERS, 0, b"e1", b"", [(n, v.encode()) for n, v in headers.items()])


def listed(client: Client, **asked: object) -> list[str]:
    """The ids that a listing has, page by page."""
    result: list[str] = []
    after = None
    while True:
        provided = {"limit": 2, "after": after, **asked}
        parameters = {name: value for name, value in provided.items() if value is not None}
        answer = client.get("/admin/deliveries", params=parameters, headers=ADMIN)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        result += [row["event_id"] or row["request_id"] for row in page["rows"]]
        after = page["cursor"]
        if after is None:
            return result


def test_deliveries_and_refusals_are_found_by_what_is_known_of_them(
    client: Client, write: Write
) -> None:
    at = RECEIVED_AT_MS
    write(
        [
            outcome("e1", received_at_ms=at + 1),
            outcome("e2", received_at_ms=at + 2, status="dead", reason="why", user_id="u2"),
            refused("r3", at + 3),
            outcome("e4", received_at_ms=at + 4, source="other", type="sleep"),
            refused("r5", at + 5, code="duplicate"),
            outcome("e6", received_at_ms=at + 4),
        ]
    )
    assert listed(client) == ["e6", "e4", "r3", "e2", "e1"]
    for requested, expected in (
        ({"status": "refused"}, ["r3"]),
        ({"reason": "invalid_signature:stale"}, ["r3"]),
        ({"status": "dead"}, ["e2"]),
        ({"reason": "why"}, ["e2"]),
        ({"user_id": "u2"}, ["e2"]),
        ({"source": "other"}, ["e4"]),
        ({"type": "sleep"}, ["e4"]),
        ({"type": "sleep", "source": "terra"}, []),
        ({"since": "2026-01-01T00:00:00.003Z"}, ["e6", "e4", "r3"]),
        ({"until": "2026-01-01T00:00:00.003Z"}, ["e2", "e1"]),
    ):
        assert listed(client, **requested) == expected, requested


@pytest.mark.parametrize("asked", [{"since": "once"}, {"until": "2026-01-01T00:00:00"}])
def test_a_moment_that_is_none_is_named(client: Client, asked: dict[str, str]) -> None:
    answer = client.get("/admin/deliveries", params=asked, headers=ADMIN)
    assert (answer.status_code, answer.json()["field"]) == (400, next(iter(asked)))
    assert client.get("/admin/deliveries?after=x", headers=ADMIN).status_code == 400


def test_a_delivery_has_its_journeys_and_all_that_came_of_it(client: Client, write: Write) -> None:
    link = row(CONNECTIONS, ("t1",), stamp("e1"), user_id="user_1", active=True)
    write(
        [
            outcome("e1", status="dead", reason="why", position="webhooks/3@17"),
            dead_letter(1),
            dead_letter(2),
            outcome("e1", position="webhooks/3@99", at_ms=RECEIVED_AT_MS + 9_000),
            outcome("e2"),
            duplicate("copy"),
            day("user_1", "2026-01-01", steps=1, strain=2.5),
            day("user_2", "2026-01-01", steps=1),
            table_record(CONNECTIONS, link),
            effect("nightly", StartRun("{}")),
            effect("tell", SendEvent("ev", "told", "{}")),
        ]
    )
    for named in ("e1", "req-e1", "copy"):
        answer = client.get(f"/admin/deliveries/{named}", headers=ADMIN)
        assert answer.status_code == 200, answer.text
        result = answer.json()["delivery"]
        assert result["outcome"]["event_id"] == "e1"
    assert [(journey["status"], journey["position"]) for journey in result["journeys"]] == [
        ("dead", "webhooks/3@17"),
        ("processed", "webhooks/3@99"),
    ]
    assert [hop["stage"] for hop in result["journeys"][0]["hops"]] == ["admitted", "dead"]
    assert result["copies"][0]["request_id"] == "copy"
    assert [(e["name"], e["instance_id"], e["event_type"]) for e in result["effects"]] == [
        ("nightly", "i-1", None),
        ("tell", "i-1", "told"),
    ]
    rows = {item["table"]: item for item in result["rows"]}
    assert rows["daily_summary"]["key"] == {
        "user_id": "user_1",
        "source": "garmin",
        "datetime": "2026-01-01",
    }
    assert sorted(rows["daily_summary"]["columns"]) == ["steps", "strain"]
    assert rows["terra_connections"]["key"] == {"terra_user_id": "t1"}
    assert len(result["rows"]) == 2
    assert [letter["reason"] for letter in result["dead_letters"]] == ["why"]


def test_a_refused_request_says_why(client: Client, write: Write) -> None:
    write([refused("r3", RECEIVED_AT_MS)])
    result = client.get("/admin/deliveries/r3", headers=ADMIN).json()
    assert result.keys() == {"refusal"}
    assert (result["refusal"]["reason"], result["refusal"]["left_out"]) == ("stale", 3)
    assert client.get("/admin/deliveries/nobody", headers=ADMIN).status_code == 404
    assert client.get("/admin/deliveries/3@9", headers=ADMIN).status_code == 404


def test_a_delivery_is_found_by_its_place_and_has_its_body(migrated: str, write: Write) -> None:
    log = MemoryLog()
    log.deliveries.append(
        WebhookReceived(
            event_id="e1", request_id="req-e1", source="terra", type="daily", subject="t1",
            sent_at_ms=0, updated_at_ms=0, received_at_ms=0, body=b'{"a":  1}',
        )
    )  # fmt: skip
    with gateway_on(migrated, log) as client:
        write([outcome("e1", offset=0)])
        result: dict[str, Any] = client.get("/admin/deliveries/3@0", headers=ADMIN).json()
        assert result["delivery"]["outcome"]["event_id"] == "e1"
        assert "body" not in result
        result = client.get("/admin/deliveries/e1?body=true", headers=ADMIN).json()
        assert base64.b64decode(result["body"]) == b'{"a":  1}'
