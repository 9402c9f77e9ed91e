"""The rest of the application, with Postgres away: keys, problems, health, description."""

import re
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.api.problems import CODES
from tests.fakes.delivery_log import MemoryLog
from tests.unit.gateway.conftest import Post, posting, started
from tests.unit.gateway.problem_contract import assert_problem

ADMIN = {"x-admin-key": "dev-admin-key"}
READ = {"authorization": "Bearer dev-read-key"}
ADMIN_PATHS = [
    "/admin/dlq",
    "/admin/dlq/0/0",
    "/admin/traces",
    "/admin/outcomes",
    "/admin/outcomes/abc",
    "/admin/instances",
    "/admin/projections",
    "/admin/deliveries",
    "/admin/deliveries/abc",
    "/admin/raw-events/abc",
    "/admin/user/user_1",
]


@pytest.mark.parametrize("path", ADMIN_PATHS)
@pytest.mark.parametrize(
    "headers", [{}, {"x-admin-key": "wrong"}, {"x-admin-key": ""}, READ, {"x-admin-key": "é"}]
)
def test_operators_routes_ask_for_the_operators_key(
    client: TestClient[Any], path: str, headers: dict[str, str]
) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    problem = (403, "insufficient_scope") if headers == READ else (401, "unauthorized")
    assert_problem(client.get(path, headers=encoded), *problem)


@pytest.mark.parametrize(
    "path", ["/admin/dlq/replay", "/admin/drain", "/admin/raw-events/abc/replay"]
)
def test_what_operators_do_asks_for_their_key(client: TestClient[Any], path: str) -> None:
    assert_problem(client.post(path, json={"all": True}), 401, "unauthorized")


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"limit": "many"},
        {"limit": 1.5},
        {"user_id": ""},
        {"user_id": "x" * 513},
        {"user_id": 7},
        {"user": "user_1"},
        [],
    ],
)
def test_a_drain_of_what_cannot_be_is_refused(client: TestClient[Any], body: object) -> None:
    answer = client.post("/admin/drain", json=body, headers=ADMIN)
    assert_problem(answer, 400, "invalid_parameter")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("/admin/outcomes?status=done", "status"),
        ("/admin/dlq?state=waiting", "state"),
        ("/admin/traces?level=warn", "level"),
    ],
)
def test_a_word_that_means_nothing_here_is_named(
    client: TestClient[Any], query: str, field: str
) -> None:
    answer = client.get(query, headers=ADMIN)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == field


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ("/v1/sync?cursor=x", READ, "cursor"),
        ("/v1/sync?since=x", READ, "since"),
        ("/v1/sync?since=2026-07-01T00:00:00Z&cursor=x", READ, "cursor"),
        ("/admin/dlq?after=x", ADMIN, "after"),
        ("/admin/deliveries?after=x", ADMIN, "after"),
    ],
)
def test_a_cursor_that_is_none_of_ours_is_named_as_its_parameter_is(
    client: TestClient[Any], query: str, headers: dict[str, str], field: str
) -> None:
    answer = client.get(query, headers=headers)
    assert assert_problem(answer, 400, "invalid_cursor")["field"] == field


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic dev-read-key"}])
def test_reading_asks_for_the_readers_key(client: TestClient[Any], headers: dict[str, str]) -> None:
    assert_problem(client.get("/v1/sync", headers=headers), 401, "unauthorized")


def test_reads_are_503_and_deliveries_are_taken_while_postgres_is_away(
    client: TestClient[Any], post: Post
) -> None:
    answer = client.get("/v1/sync", headers={"x-api-key": "dev-read-key"})
    assert_problem(answer, 503, "store_unavailable")
    assert answer.headers["retry-after"]
    assert post(b'{"type":"daily","user":{"user_id":"a"}}').status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("limit=1e2", "limit"),
        ("limit=100001", "limit"),
        ("since=2026-13-45", "since"),
        ("since=2026-07-01T00:00:00", "since"),
        ("user_id=user_a%00", "user_id"),
    ],
)
def test_a_bad_parameter_of_sync_is_named(client: TestClient[Any], query: str, field: str) -> None:
    answer = client.get(f"/v1/sync?{query}", headers=READ)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": True, "positions": [{"partition": 0, "offset": 1}]},
        {"positions": [{"partition": -1, "offset": 1}]},
        {"positions": [{"partition": 0}]},
        {"positions": "all"},
        {"everything": True},
        [],
    ],
)
def test_a_replay_that_does_not_say_what_is_refused(client: TestClient[Any], body: object) -> None:
    answer = client.post("/admin/dlq/replay", json=body, headers=ADMIN)
    assert_problem(answer, 400, "invalid_parameter")


def test_named_dead_letters_are_replayed_without_postgres(client: TestClient[Any]) -> None:
    body = {"positions": [{"partition": 0, "offset": 3}, {"partition": 2, "offset": 5}]}
    answer = client.post("/admin/dlq/replay", json=body, headers=ADMIN)
    assert answer.status_code == 200
    assert answer.json() == {
        "dry_run": False,
        "replayed": 2,
        "failed": 0,
        "next": None,
        "results": [
            {"partition": 0, "offset": 3, "topic": "webhooks", "ok": True, "detail": ""},
            {"partition": 2, "offset": 5, "topic": "webhooks", "ok": True, "detail": ""},
        ],
    }


def test_a_path_that_does_not_exist_is_a_problem(client: TestClient[Any]) -> None:
    assert_problem(client.get("/nowhere"), 404, "not_found")


def test_a_method_that_does_not_exist_is_a_problem(client: TestClient[Any]) -> None:
    assert_problem(client.delete("/v1/sync"), 405, "method_not_allowed")


def test_liveness_needs_nobody(client: TestClient[Any]) -> None:
    assert client.get("/health/live").json() == {"alive": True}


def test_readiness_is_kafkas_and_names_what_is_away(
    client: TestClient[Any], log: MemoryLog
) -> None:
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {
        "ready": True,
        "parts": {"kafka": "ok", "postgres": "not connected", "keys": "ok"},
    }
    log.ready = False
    unready = client.get("/health/ready")
    assert unready.status_code == 503
    assert unready.json()["parts"]["kafka"] == "not connected"


@pytest.mark.parametrize("path", ["/health/live", "/schema", "/metrics", "/nowhere", "/admin/dlq"])
def test_every_answer_names_its_request(client: TestClient[Any], path: str) -> None:
    assert client.get(path).headers["x-request-id"].startswith("request-")


def test_a_usable_request_id_is_kept_everywhere(client: TestClient[Any]) -> None:
    for path in ("/health/live", "/nowhere"):
        headers = {"x-request-id": "caller-chose-this"}
        assert client.get(path, headers=headers).headers["x-request-id"] == "caller-chose-this"


def test_metrics_count_deliveries_by_what_they_were_answered() -> None:
    body = b'{"type":"daily","user":{"user_id":"a"}}'
    with started() as fresh:
        post = posting(fresh.client, fresh.clock)
        post(body)
        post(body)
        fresh.client.post("/terra", content=body)
        answer = fresh.client.get("/metrics")
        accept = {"accept": "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"}
        open_metrics = fresh.client.get("/metrics", headers=accept)
    assert open_metrics.headers["content-type"].startswith(
        "application/openmetrics-text; version=1"
    )
    assert open_metrics.text.endswith("# EOF\n")
    traced = (
        r'^headwater_webhook_append_seconds_bucket\{le=".*"\} 1\.0 # \{trace_id="[0-9a-f]{32}"\}'
    )
    assert re.search(traced, open_metrics.text, re.MULTILINE)
    # Scrapers refuse a type that they cannot parse, and one with a parameter twice is none.
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in (
        'headwater_webhook_received_total{outcome="accepted",source="terra"} 1.0',
        'headwater_webhook_received_total{outcome="duplicate",source="terra"} 1.0',
        'headwater_webhook_received_total{outcome="invalid_signature",source="terra"} 1.0',
        'headwater_webhook_verify_failures_total{reason="missing_header",source="terra"} 1.0',
        'headwater_dedupe_suppressed_total{source="terra"} 1.0',
        'headwater_webhook_append_seconds_bucket{le="+Inf"} 1.0',
        "headwater_webhook_append_seconds_count 1.0",
        "headwater_kafka_connected 1.0",
    ):
        assert line in answer.text.splitlines()


def test_every_code_has_an_error_status_and_a_title() -> None:
    for code, (status, title) in CODES.items():
        assert 400 <= status <= 599, code
        assert title[0].isupper(), code


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_a_page_with_links_that_exist(client: TestClient[Any]) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'href="(/[^"]*)"', page.text)
    assert "/schema/swagger" in links
    for link in links:
        assert client.get(link).status_code in {200, 503}, link
    assert client.get("/").json()["sources"][0] == "/webhooks/terra"


def test_a_browser_is_led_to_the_page_of_the_api_and_a_program_is_not(
    client: TestClient[Any],
) -> None:
    answer = client.get("/schema", headers=BROWSER, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, "/schema/swagger")
    assert client.get("/schema").json()["openapi"].startswith("3.")


@pytest.mark.parametrize("path", ["/", "/schema/swagger", "/health/live", "/nowhere", "/v1/sync"])
def test_every_answer_keeps_to_itself(client: TestClient[Any], path: str) -> None:
    headers = client.get(path, headers=BROWSER).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_no_page_holds_a_script_that_its_policy_forbids(client: TestClient[Any]) -> None:
    for path in ("/", "/schema/swagger"):
        text = client.get(path, headers=BROWSER).text
        assert not re.findall(r"<script(?![^>]*src=)|\son\w+=", text)
    assert "/schema/openapi.json" in client.get("/schema/assets/start.js").text


@pytest.mark.parametrize(
    ("path", "headers", "known"),
    [
        ("/v1/sync?user=a", READ, "since, cursor, user_id, table, limit"),
        ("/admin/traces?request=a", ADMIN, "request_id, user_id, level, limit"),
        ("/admin/dlq/0/0?limit=1", ADMIN, "none"),
    ],
)
def test_an_unknown_parameter_is_refused_with_those_that_are_known(
    client: TestClient[Any], path: str, headers: dict[str, str], known: str
) -> None:
    problem = assert_problem(client.get(path, headers=headers), 400, "unknown_parameter")
    name = path.partition("?")[2].partition("=")[0]
    assert problem["field"] == name
    assert problem["detail"] == f"expected parameters of {known}, found '{name}'"
    assert_problem(client.get(path), 401, "unauthorized")


def test_a_level_that_no_journey_has_is_refused(client: TestClient[Any]) -> None:
    result = client.get("/admin/traces?level=warn", headers=ADMIN)
    problem = assert_problem(result, 400, "invalid_parameter")
    assert "expected one of info, error, found 'warn'" in problem["detail"]


def test_the_description_says_which_key_a_route_asks_for_and_how_it_refuses(
    client: TestClient[Any],
) -> None:
    described = client.get("/schema/openapi.json").json()
    assert set(described["components"]["securitySchemes"]) >= {"readKey", "adminKey"}
    for path, methods in described["paths"].items():
        for operation in methods.values():
            requested = {name for item in operation.get("security", ()) for name in item}
            if path.startswith(("/admin", "/v1/audit", "/v1/diagnostics")):
                assert requested == {"adminKey", "apiKey"}, path
            elif path == "/v1/sync":
                assert requested == {"readKey", "userToken", "apiKey"}
            for status, response in operation["responses"].items():
                if status.startswith("4") and path.startswith(("/v1", "/admin")):
                    assert set(response["content"]) == {"application/problem+json"}, path
