"""The webhook route through the real application: what is taken, what is refused, and how."""

import json
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.local.demo_day import Delivery, demo_deliveries, terra_signature
from headwater.schemas.errors import Overloaded
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog
from tests.unit.gateway.conftest import Clock, Post, posting, started
from tests.unit.gateway.problem_contract import assert_problem

BODY = b'{"type":"daily","user":{"user_id":"terra-1","reference_id":"user_1"},"data":[]}'


def test_a_signed_delivery_is_appended_as_it_came_and_answered_ok(
    post: Post, log: MemoryLog, clock: Clock
) -> None:
    answer = post(BODY)
    assert answer.status_code == 200
    (delivery,) = log.deliveries
    assert answer.json() == {
        "ok": True,
        "raw_event_id": delivery.event_id,
        "type": "daily",
        "request_id": "request-1",
    }
    assert delivery.body == BODY
    assert (delivery.source, delivery.type) == ("terra", "daily")
    assert (delivery.subject, delivery.reference) == ("terra-1", "user_1")
    assert delivery.received_at_ms == clock()
    assert delivery.sent_at_ms == clock() // 1000 * 1000
    assert delivery.request_id == "request-1"


def test_the_same_bytes_again_are_a_duplicate_and_say_so(post: Post, log: MemoryLog) -> None:
    first, second = post(BODY).json(), post(BODY).json()
    assert second == {
        "ok": True,
        "duplicate": True,
        "raw_event_id": first["raw_event_id"],
        "type": "daily",
        "request_id": "request-2",
    }
    assert len(log.deliveries) == 1


def test_an_event_of_a_connection_is_another_one_with_another_signature_or_time_of_terra(
    client: TestClient[Any], log: MemoryLog, clock: Clock
) -> None:
    body = BODY.replace(b"daily", b"auth")

    def posted(at_s: int, ordered_ms: int | None = None) -> str:
        headers = {"terra-signature": terra_signature("current", body, clock() // 1000 + at_s)}
        if ordered_ms is not None:
            headers["x-terra-ordering-timestamp"] = str(ordered_ms)
        return str(client.post("/terra", content=body, headers=headers).json()["raw_event_id"])

    now_ms = clock()
    assert posted(0) == posted(0) != posted(1)
    assert posted(2, now_ms) == posted(3, now_ms) != posted(3, now_ms - 1)
    assert len(log.deliveries) == 4


@pytest.mark.parametrize("path", ["/webhooks/terra", "/webhook/terra", "/webhook", "/terra", "/"])
def test_every_path_of_terra_takes_deliveries(post: Post, log: MemoryLog, path: str) -> None:
    assert post(BODY, path).status_code == 200
    assert len(log.deliveries) == 1


@pytest.mark.parametrize("secret", ["current", "previous"])
def test_every_configured_secret_may_have_signed(
    client: TestClient[Any], log: MemoryLog, clock: Clock, secret: str
) -> None:
    signature = terra_signature(secret, BODY, clock() // 1000)
    answer = client.post("/terra", content=BODY, headers={"terra-signature": signature})
    assert answer.status_code == 200


@pytest.mark.parametrize("name", ["x-terra-signature", "X-Terra-Signature", "TERRA-SIGNATURE"])
def test_the_signature_of_terra_has_two_names_in_any_case(
    client: TestClient[Any], log: MemoryLog, clock: Clock, name: str
) -> None:
    signature = terra_signature("current", BODY, clock() // 1000)
    assert client.post("/terra", content=BODY, headers={name: signature}).status_code == 200
    forged = client.post("/terra", content=BODY + b" ", headers={name: signature})
    assert assert_problem(forged, 401, "invalid_signature")["reason"] == "signature_mismatch"


@pytest.mark.parametrize("demo", demo_deliveries(), ids=lambda one: one.name)
def test_every_delivery_of_the_demo_day_is_taken(post: Post, demo: Delivery) -> None:
    assert post(demo.body).json()["type"] == json.loads(demo.body)["type"]


NOW_S = 1_782_900_000
GOOD = terra_signature("current", BODY, NOW_S)

REFUSALS = [
    (None, "missing_header"),
    ("", "malformed_header"),
    ("nonsense", "malformed_header"),
    (GOOD.partition(",")[0], "malformed_header"),
    (GOOD.partition(",")[2], "malformed_header"),
    (GOOD.replace("t=", "t=yesterday"), "bad_timestamp"),
    (terra_signature("current", BODY, NOW_S - 301), "stale"),
    (terra_signature("current", BODY, NOW_S + 301), "stale"),
    (GOOD[:-2], "length_mismatch"),
    (terra_signature("another", BODY, NOW_S), "signature_mismatch"),
    (terra_signature("current", BODY + b" ", NOW_S), "signature_mismatch"),
    (GOOD.replace(str(NOW_S), str(NOW_S + 1)), "signature_mismatch"),
]


@pytest.mark.parametrize(("signature", "reason"), REFUSALS)
def test_a_signature_that_does_not_hold_is_refused_with_its_reason(
    client: TestClient[Any], log: MemoryLog, signature: str | None, reason: str
) -> None:
    headers = {} if signature is None else {"terra-signature": signature}
    answer = client.post("/webhooks/terra", content=BODY, headers=headers)
    problem = assert_problem(answer, 401, "invalid_signature")
    assert problem["reason"] == reason
    assert not log.deliveries


def test_nothing_is_read_into_a_body_that_nobody_signed(client: TestClient[Any]) -> None:
    assert_problem(client.post("/terra", content=b""), 401, "invalid_signature")
    assert_problem(client.post("/terra", content=b"{"), 401, "invalid_signature")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"not json",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"type":7}',
        b'{"type":"daily\\u0000","user":{}}',
        b'{"type":"daily","user":{"user_id":"' + b"x" * 5000 + b'"}}',
        b"\xff\xfe",
        b'{"type":"d\xff"}',
        b"[" * 50_000,
    ],
)
def test_a_signed_body_that_cannot_be_read_is_kept_and_answered_ok(
    post: Post, log: MemoryLog, body: bytes
) -> None:
    answer = post(body)
    assert (answer.status_code, answer.json()["type"]) == (200, "unreadable")
    (kept,) = log.deliveries
    assert (kept.body, kept.type, kept.subject) == (body, "unreadable", "")
    assert post(body).json()["duplicate"] is True


@pytest.mark.parametrize(
    ("more", "routed"),
    [
        (b'"user":{"user_id":"t","scopes":["a"],"reference_id":"user_1"}', ("t", "user_1")),
        (b'"user":{"user_id":"t","reference_id":5}', ("t", None)),
        (b'"user":{"user_id":"t","last_webhook_update":7}', ("t", None)),
        (b'"user":{"user_id":9,"reference_id":"user_1"}', ("", "user_1")),
        (b'"user":"someone"', ("", None)),
        (b'"user":{"user_id":"t"},"status":200', ("t", None)),
    ],
)
def test_a_field_of_another_type_counts_as_absent(
    post: Post, log: MemoryLog, more: bytes, routed: tuple[str, str | None]
) -> None:
    assert post(b'{"type":"daily",%b}' % more).json()["type"] == "daily"
    (kept,) = log.deliveries
    assert (kept.subject, kept.reference) == routed


def test_an_unreadable_delivery_keeps_the_headers_by_which_it_is_routed_later(
    client: TestClient[Any], post: Post, log: MemoryLog, clock: Clock
) -> None:
    signature = terra_signature("current", b"{", clock() // 1000)
    named = {"terra-signature": signature, "x-terra-ordering-timestamp": "5", "x-other": "1"}
    assert client.post("/terra", content=b"{", headers=named).status_code == 200
    post(BODY)
    assert [kept.headers for kept in log.deliveries] == [("x-terra-ordering-timestamp", "5"), ()]


def test_a_body_above_the_limit_is_refused_and_one_at_the_limit_is_not(
    post: Post, log: MemoryLog
) -> None:
    start, end = b'{"type":"daily","pad":"', b'"}'
    pad = b"x" * (100_000 - len(start) - len(end))
    assert post(start + pad + end).status_code == 200
    assert_problem(post(start + pad + b"x" + end), 413, "body_too_large")
    assert len(log.deliveries) == 1


def test_a_broker_that_does_not_answer_is_503_with_a_time_to_come_back(
    post: Post, log: MemoryLog
) -> None:
    log.away = True
    answer = post(BODY)
    assert_problem(answer, 503, "broker_unavailable")
    assert int(answer.headers["retry-after"]) > 0


def test_a_gateway_with_too_much_under_way_is_503_with_a_time_to_come_back(
    post: Post, log: MemoryLog
) -> None:
    log.fault = Overloaded("expected at most 1 bytes on their way, found 2")
    answer = post(BODY)
    assert_problem(answer, 503, "overloaded")
    assert int(answer.headers["retry-after"]) > 0


def test_a_bug_of_ours_is_a_500_with_the_requests_id_and_no_traceback(
    post: Post, log: MemoryLog
) -> None:
    log.fault = RuntimeError("secret detail")
    answer = post(BODY)
    assert_problem(answer, 500, "internal_error")
    assert "secret detail" not in answer.text


def test_other_methods_are_told_which_one_is_taken(client: TestClient[Any]) -> None:
    answer = client.get("/webhooks/terra")
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_an_unknown_source_is_told_which_ones_there_are(post: Post) -> None:
    problem = assert_problem(post(BODY, "/webhooks/nobody"), 404, "unknown_source")
    assert "terra" in problem["detail"]


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        ("01JZ2Y0W8M3V9Q6T5R4E3W2Q1A", True),
        ("3f2c8d1e-7a90-4b6f-9e2d-1c5a8b7f6e4d", True),
        ("short", False),
        ("x" * 65, False),
        ("with space", False),
        ('"quoted"', False),
    ],
)
def test_a_usable_request_id_of_the_caller_is_kept(
    post: Post, log: MemoryLog, offered: str, taken: bool
) -> None:
    answer = post(BODY, x_request_id=offered)
    expected = offered if taken else "request-1"
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == expected
    assert log.deliveries[0].request_id == expected


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/webhooks/terra", "invalid_signature"),
        ("PUT", "/webhooks/terra", "method_not_allowed"),
        ("POST", "/webhooks/tera", "unknown_source"),
        ("POST", "/hooks/terra", "not_found"),
        ("POST", "/console/login", "unauthorized"),
    ],
)
def test_a_refusal_is_recorded_under_an_id_that_its_sender_has_not_chosen(
    client: TestClient[Any], answers: MemoryAnswers, method: str, path: str, code: str
) -> None:
    known = "01JZ2Y0W8M3V9Q6T5R4E3W2Q1A"
    answer = client.request(method, path, content=BODY, headers={"x-request-id": known})
    (reported,) = answers.recorded
    assert reported.code == code
    assert reported.request_id == answer.headers["x-request-id"] != known
    assert reported.claimed_request_id == known
    if "json" in answer.headers["content-type"]:
        problem = answer.json()
        assert (problem["request_id"], problem["claimed_request_id"]) == (
            reported.request_id,
            known,
        )


def test_a_signed_delivery_that_is_refused_has_another_id_and_names_its_senders(
    post: Post, log: MemoryLog, answers: MemoryAnswers
) -> None:
    log.away = True
    problem = post(BODY, x_request_id="chosen-by-the-sender").json()
    assert problem["claimed_request_id"] == "chosen-by-the-sender"
    assert problem["request_id"] == answers.recorded[0].request_id == "request-1"


def test_a_copy_has_a_record_that_names_the_first(
    post: Post, log: MemoryLog, answers: MemoryAnswers, clock: Clock
) -> None:
    post(BODY)
    assert not answers.recorded
    post(BODY)
    (reported,) = answers.recorded
    assert (reported.request_id, reported.code) == ("request-2", "duplicate")
    assert reported.event_id == log.deliveries[0].event_id
    assert (reported.source, reported.size, reported.at_ms) == ("terra", len(BODY), clock())


def test_a_refusal_has_a_record_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    # Lines are rationed, so nobody may have been refused before.
    with started() as fresh:
        post = posting(fresh.client, fresh.clock)
        fresh.client.post("/terra", content=BODY)
        post(b"x" * 100_001)
    recorded = fresh.answers.recorded
    assert [(reported.code, reported.reason) for reported in recorded] == [
        ("invalid_signature", "missing_header"),
        ("body_too_large", ""),
    ]
    assert [reported.request_id for reported in recorded] == ["request-1", "request-2"]
    assert (
        "refused source=terra code=invalid_signature reason=missing_header peer=unknown bytes=79 "
        "request_id=request-1 left_out=0: expected the header terra-signature, found none"
    ) in caplog.messages


def test_an_answer_that_is_our_own_fault_has_a_record_too(
    post: Post, log: MemoryLog, answers: MemoryAnswers
) -> None:
    log.away = True
    assert post(BODY).status_code == 503
    log.away, log.fault = False, RuntimeError("secret detail")
    assert post(BODY).status_code == 500
    assert [(reported.request_id, reported.code) for reported in answers.recorded] == [
        ("request-1", "broker_unavailable"),
        ("request-2", "internal_error"),
    ]
    assert "secret detail" not in answers.recorded[1].detail


def test_who_looks_for_a_page_that_is_not_there_is_not_refused(
    client: TestClient[Any], answers: MemoryAnswers
) -> None:
    assert client.get("/no-such-page").status_code == 404
    assert not answers.recorded


@pytest.mark.parametrize(
    ("method", "path", "source", "code"),
    [
        ("POST", "/webhooks/tera", "", "unknown_source"),
        ("POST", "/hooks/terra", "", "not_found"),
        ("POST", "/health/ready", "", "method_not_allowed"),
        ("GET", "/webhooks/terra", "terra", "method_not_allowed"),
        ("PUT", "/terra", "terra", "method_not_allowed"),
    ],
)
def test_a_delivery_that_missed_its_path_has_a_record_too(
    client: TestClient[Any],
    answers: MemoryAnswers,
    method: str,
    path: str,
    source: str,
    code: str,
) -> None:
    answer = client.request(method, path)
    (reported,) = answers.recorded
    assert answer.status_code in {404, 405}
    assert (reported.request_id, reported.source) == (answer.headers["x-request-id"], source)
    assert (reported.code, reported.reason) == (code, "")
    assert path in reported.detail or source


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        ([("traceparent", TRACE)], TRACE),
        (
            [("traceparent", TRACE), ("tracestate", "a=1"), ("tracestate", "b=2")],
            f"{TRACE} a=1,b=2",
        ),
        ([("tracestate", "a=1")], ""),
        ([("traceparent", TRACE), ("traceparent", TRACE)], ""),
        ([("traceparent", TRACE.upper())], ""),
        ([("traceparent", "nonsense"), ("tracestate", "a=1")], ""),
    ],
)
def test_a_delivery_continues_the_trace_of_its_sender_if_it_is_valid(
    client: TestClient[Any],
    log: MemoryLog,
    clock: Clock,
    headers: list[tuple[str, str]],
    trace: str,
) -> None:
    signature = ("terra-signature", terra_signature("current", BODY, clock() // 1000))
    assert client.post("/terra", content=BODY, headers=[signature, *headers]).status_code == 200
    (delivery,) = log.deliveries
    assert delivery.trace == trace
