"""What every route owes its callers, whichever it is: read from the application's own table.

Kafka is in memory, Postgres is away and Terra is nobody's, so most of what is asked fails: each
failure is a problem document, each typing error in a query is named, each key is asked for.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest
from litestar import Litestar
from litestar.routes import ASGIRoute, HTTPRoute
from litestar.testing import TestClient
from litestar.utils.sync import AsyncCallable

from headwater.gateway.api.front import front_of
from headwater.gateway.api.request_parameters import _accepted
from headwater.gateway.api.users.ports import UserServices
from headwater.gateway.api.wiping import Wiping
from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.cli.user_tokens import verifier_of
from headwater.gateway.settings.patterns import DESCRIPTIONS
from headwater.gateway.settings.settings import Settings
from tests.fakes.delivery_log import MemoryWipes
from tests.unit.gateway.issuer import AUDIENCE, ISSUER, NOW_S, key_set, token
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem

#: Who is let in where; what is not named here asks for no key.
KEYS = {
    "/v1/deployments": "dev-admin-key",
    "/v1/runs": "Bearer dev-workflow-key",
    "/v1/queues": "Bearer dev-workflow-key",
    "/v1/hooks": "",
    "/v1/world": "Bearer dev-world-key",
    "/v1/audit": "dev-admin-key",
    "/v1/endpoints": "dev-admin-key",
    "/v1/keys": "dev-admin-key",
    "/v1/diagnostics": "dev-admin-key",
    "/v1": f"Bearer {token()}",
    "/admin": "dev-admin-key",
    "/api/workflows": "Bearer dev-workflow-key",
    "/api/graphs": "Bearer dev-workflow-key",
    "/api/jobs": "Bearer dev-workflow-key",
}
TICK = "/api/workflows/_runner/tick"
#: Monitors, viewers of Kafka and browsers ask these, some with parameters of their own.
ASKED_BY_TOOLS = re.compile(
    r"/(health|metrics|registry|asyncapi|\.well-known|schema|webhooks/\{|v1/hooks/)"
)

#: Pages for people fail by pages, and ask for a session: test_console.py.
FOR_PEOPLE = "/console"

#: Of an id: slashes, what ends a path or a query, what looks escaped, dots.
AWKWARD = "/a/b//c d?e#f%2Fg\u00fc/.."


class Asked(NamedTuple):
    """A route as it is called."""

    method: str
    template: str

    @property
    def path(self) -> str:
        return re.sub(r"\{(\w+)(:\w+)?\}", lambda m: "1" if m[2] == ":int" else "x", self.template)

    @property
    def key(self) -> str:
        return next((key for start, key in KEYS.items() if self.template.startswith(start)), "")

    @property
    def key_header(self) -> str:
        return "x-admin-key" if self.key == "dev-admin-key" else "authorization"


def application(folder: Path, sources: str = "", **ports: Any) -> Litestar:  # noqa: ANN401 (theirs)
    jwks = folder / "jwks.json"
    jwks.write_bytes(key_set())
    settings = Settings(
        jwks=str(jwks),
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        sources=sources,
        terra_secrets="a secret of terra",
    )
    blobs = FolderBlobs(folder / "blobs")
    workflows = ports.pop("workflows", None) or memory_workflows()
    return memory_app(
        settings,
        clock=lambda: NOW_S * 1000,
        workflows=workflows,
        users=UserServices(
            tokens=verifier_of(settings, clock=lambda: NOW_S * 1000, steady_s=lambda: 0.0),
            terra=Terra(settings.terra, draw=lambda: 0.0, wall_s=lambda: NOW_S),
            blobs=blobs,
        ),
        wiping=Wiping(log=MemoryWipes(away=True), blobs=blobs, new_id=lambda: "wipe", polls=1),
        **ports,
    )


def routes_of(app: Litestar) -> list[Asked]:
    routes = [
        route
        for route in app.routes
        if isinstance(route, HTTPRoute) and not route.path.startswith(FOR_PEOPLE)
    ]
    return sorted(
        Asked(str(method), route.path)
        for route in routes
        for method in route.methods
        if method != "OPTIONS"
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    app = application(tmp_path_factory.mktemp("routes"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def routes(client: TestClient[Any]) -> list[Asked]:
    return routes_of(client.app)


def ask(client: TestClient[Any], route: Asked, query: str = "", key: str | None = None) -> Any:  # noqa: ANN401 (httpx2's answer)
    headers = {route.key_header: route.key if key is None else key}
    return client.request(route.method, route.path + query, headers=headers)


def test_the_table_of_routes_is_that_of_the_whole_gateway(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    for start in (*KEYS, "/health", "/metrics", "/registry", "/schema", "/webhooks/{"):
        assert any(route.template.startswith(start) for route in routes), start
    others = {route.path for route in client.app.routes if isinstance(route, ASGIRoute)}
    receivers = {path for path in others if not path.startswith("/schema")}
    assert {"/", "/webhooks/terra"} <= receivers


def test_the_description_is_openapi_3_1_and_names_every_route(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    described = client.get("/schema/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    operations = {
        f"{method.upper()} {path}" for path, item in described["paths"].items() for method in item
    }
    # HEAD is answered wherever GET is; an instance named batch is one of those with any name.
    hidden = re.compile(r"HEAD |GET /(schema|asyncapi)|GET .*/instances/batch$|.*/instances/batch/")
    there = {re.sub(r":\w+}", "}", f"{route.method} {route.template}") for route in routes}
    assert {item for item in there if not hidden.match(item)} == operations


def test_each_route_that_fails_answers_with_a_problem(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    requested = routes
    with ThreadPoolExecutor(len(requested)) as pool:  # Postgres is waited for two seconds
        answers = list(pool.map(lambda route: ask(client, route), requested))
    failed = [pair for pair in zip(requested, answers, strict=True) if pair[1].is_error]
    assert len(failed) > len(requested) / 2
    for route, answer in failed:
        assert answer.headers["content-type"] == "application/problem+json", route
        assert_problem(answer, answer.status_code, answer.json()["code"])
        assert answer.status_code != 500, (route, answer.text)


def test_each_route_of_ours_refuses_a_parameter_that_it_does_not_have(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    for route in routes:
        if ASKED_BY_TOOLS.match(route.template) or route.template == TICK:
            continue
        problem = assert_problem(ask(client, route, "?lmit=1"), 400, "unknown_parameter")
        assert problem["field"] == "lmit", route
        assert "found 'lmit'" in problem["detail"], route


def test_what_is_checked_before_a_handler_needs_no_thread(client: TestClient[Any]) -> None:
    handlers = [
        handler
        for route in client.app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
    ]
    guards = {guard for handler in handlers for guard in handler.resolve_guards()}
    assert len(guards) > 10
    assert [guard for guard in guards if isinstance(guard, AsyncCallable)] == []


def test_requests_leave_nothing_behind(client: TestClient[Any], routes: list[Asked]) -> None:
    known: list[int] = []
    for _ in range(2):
        for route in routes:
            if not ASKED_BY_TOOLS.match(route.template):
                ask(client, route, "?lmit=1")
        known.append(_accepted.cache_info().currsize)
    assert known[0] == known[1]


def test_each_route_of_ours_limits_the_length_of_its_parameters(
    client: TestClient[Any],
) -> None:
    described = client.get("/schema/openapi.json").json()["paths"]
    texts = [
        (Asked(method.upper(), path), parameter["name"])
        for path, methods in described.items()
        if not ASKED_BY_TOOLS.match(path)
        for method, operation in methods.items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["name"] != "min_position"
    ]
    assert len(texts) > 60
    for route, name in texts:
        for value in ("x" * 2_049, "%C3%A9" * 1_025):
            problem = assert_problem(
                ask(client, route, f"?{name}={value}"), 400, "invalid_parameter"
            )
            assert problem["field"] == name, route


def test_each_moment_that_a_route_takes_is_rfc_3339_with_an_offset(
    client: TestClient[Any],
) -> None:
    described = client.get("/schema/openapi.json").json()["paths"]
    moments = [
        (Asked(method.upper(), path), parameter["name"])
        for path, methods in described.items()
        for method, operation in methods.items()
        for parameter in operation.get("parameters", ())
        if "RFC 3339" in parameter.get("description", "")
    ]
    assert {name for _, name in moments} == {"since", "until", "updatedSince", "updatedBefore"}
    for route, name in moments:
        for result in ("5", "1782864000", "2026-07-01", "20260701T000000Z", "2026-07-01T00:00:00"):
            problem = assert_problem(
                ask(client, route, f"?{name}={result}"), 400, "invalid_parameter"
            )
            assert problem["field"] == name, (route, result)
            assert "RFC 3339" in problem["detail"], (route, result)
        for result in ("2026-07-01T00:00:00Z", "2026-07-01T00:00:00.5+01:00"):  # its plus a space
            assert_problem(ask(client, route, f"?{name}={result}"), 503, "store_unavailable")


def test_each_route_finds_ids_with_slashes_and_whatever_else(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    requested = [route for route in routes if "{" in route.template and route.path != "/schema/x"]
    assert len(requested) > 50

    async def answers() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=front_of(client.app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            return await asyncio.gather(
                *(
                    asking.request(
                        route.method,
                        route.path.replace("/x", f"/{quote(AWKWARD, safe='')}"),
                        headers={route.key_header: route.key},
                    )
                    for route in requested
                )
            )

    for route, answer in zip(requested, client.blocking_portal.call(answers), strict=True):
        assert "No route has this path" not in answer.text, route
        assert answer.status_code not in (405, 500), (route, answer.text)
        if answer.is_error:
            shown = route.path.replace("/x", f"/{AWKWARD.replace('/', '%2F')}")
            assert answer.json()["instance"] == shown


def test_what_does_not_match_is_explained_in_words(client: TestClient[Any]) -> None:
    described = client.get("/schema/openapi.json").text
    patterns = {
        json.loads(result) for result in re.findall(r'"pattern":("(?:[^"\\]|\\.)*")', described)
    }
    assert patterns
    assert patterns <= set(DESCRIPTIONS)
    workflows, users = KEYS["/api/workflows"], KEYS["/v1"]
    activation = {"types": ["-x"], "worker": "a"}
    message = {"queueName": "a", "opts": {"idempotencyKey": "a b"}}
    spaced = {"idempotency-key": "a b"}
    answers = {
        "types[0]": client.post(
            "/api/jobs/activate", json=activation, headers={"authorization": workflows}
        ),
        "type": client.get("/api/jobs?type=-x", headers={"authorization": workflows}),
        "Idempotency-Key": client.post(
            "/v1/runs", json={"workflowName": "a"}, headers={"authorization": workflows, **spaced}
        ),
        "opts.idempotencyKey": client.post(
            "/v1/world/queue/publish", json=message, headers={"authorization": KEYS["/v1/world"]}
        ),
        "providers[0]": client.post(
            "/v1/connect", json={"providers": ["a b"]}, headers={"authorization": users}
        ),
        # To Python's expressions a text also ends before a last line break.
        "providers[1]": client.post(
            "/v1/connect", json={"providers": ["A", "B\n"]}, headers={"authorization": users}
        ),
        "types[1]": client.post(
            "/api/jobs/activate",
            json={"types": ["a", "b\n"], "worker": "a"},
            headers={"authorization": workflows},
        ),
    }
    for field, answer in answers.items():
        problem = assert_problem(answer, 400, answer.json()["code"])
        assert problem["field"] == field
        assert f"{field}: expected " in problem["detail"]
        assert not set("^[$") & set(problem["detail"].removeprefix(field)), problem["detail"]


def test_each_route_that_has_a_key_asks_for_it(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    for route in routes:
        if route.key and route.template != TICK:
            for key in ("", "Bearer another"):
                problem = assert_problem(ask(client, route, key=key), 401, "unauthorized")
                assert problem["detail"], route


@pytest.mark.parametrize("start", ["/v1/runs", "/v1/deployments", "/v1/world"])
def test_each_problem_of_routes_that_other_systems_have_says_its_detail_as_message(
    client: TestClient[Any], routes: list[Asked], start: str
) -> None:
    requested = [route for route in routes if route.template.startswith(start)]
    assert requested
    for route in requested:
        key = {route.key_header: route.key}
        for answer in (
            client.request(route.method, route.path),
            client.patch(route.path, headers=key),
            client.get(f"{route.path}/no/such/path", headers=key),
            client.post(route.path, headers={**key, "content-type": "text/plain"}, content="x"),
            client.post(route.path, headers={**key, "content-type": "x"}, content="x"),
        ):
            problem = assert_problem(answer, answer.status_code, answer.json()["code"])
            assert problem["message"] == problem["detail"], (route, answer.status_code)


def test_what_operators_may_leave_out_is_left_out_whole(client: TestClient[Any]) -> None:
    answer = client.post("/admin/drain", headers={"x-admin-key": KEYS["/admin"]})
    assert_problem(answer, 503, "store_unavailable")  # So it was taken, and looked for.


def test_a_body_is_described_as_required_where_a_request_without_one_is_refused(
    client: TestClient[Any],
) -> None:
    described = client.get("/schema/openapi.json").json()["paths"]
    others = ("/webhooks", "/v1/labs/upload", TICK)  # Nobody sends these JSON, or with these keys.
    with_body = {
        Asked(method.upper(), path): operation["requestBody"].get("required", False)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "requestBody" in operation and not path.startswith(others)
    }
    assert len(with_body) > 15
    refused = {route: ask(client, route).status_code in {400, 415} for route in with_body}
    assert with_body == refused


@pytest.mark.parametrize("path", ["dlq/replay", "replays", "rebuilds", "prunes"])
def test_a_body_that_is_missing_is_named(client: TestClient[Any], path: str) -> None:
    answer = client.post(f"/admin/{path}", headers={"x-admin-key": KEYS["/admin"]})
    problem = assert_problem(answer, 400, "invalid_parameter")
    assert problem["field"] == "body"
    assert problem["detail"] == "body: expected a JSON object, found nothing"


DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("path", "body", "field", "said"),
    [
        ("rebuilds", "{}", "projection", "missing required field"),
        (
            "rebuilds",
            '{"projektion": "users"}',
            "projektion",
            "expected projection, dry_run,",
        ),
        ("drain", '{"limt": 5}', "limt", "expected limit, user_id, found limt"),
        ("replays", '{"form": 5}', "form", "partition, from, to, rate, dry_run, found form"),
        ("replays", '{"from": -1}', "from", ">= 0"),
        ("prunes", '{"x": 1}', "x", "found x"),
        ("dlq/replay", '{"positions": [{"partition": 1}]}', "positions[0].offset", "missing"),
        ("dlq/replay", '{"after": 5}', "after", "object"),
        ("drain", f'{{"limit": {DEEP}}}', "body", "levels of lists and objects"),
        ("replays", f'{{"ids": {DEEP}}}', "body", "levels of lists and objects"),
        ("rebuilds", '{"a": 1, "a": 2}', "body", "each name once"),
        ("drain", "[]", "body", "array"),
        ("drain", "{", "body", "expected JSON"),
        ("drain", '{"user_id": "user_a\\u0000"}', "user_id", "found U+0000"),
        ("replays", '{"ids": ["a", "b\\n"]}', "ids[1]", "found U+000A"),
        ("replays", '{"source": "a\\u0000"}', "source", "found U+0000"),
        ("replays", '{"type": "a\\u0000"}', "type", "found U+0000"),
        ("replays", '{"user_id": "a\\u0000"}', "user_id", "found U+0000"),
        ("dlq/replay", '{"all": true, "reason": "a\\u0000"}', "reason", "found U+0000"),
    ],
)
def test_what_is_wrong_in_a_body_of_an_operators_is_named(
    client: TestClient[Any], path: str, body: str, field: str, said: str
) -> None:
    answer = client.post(f"/admin/{path}", content=body, headers={"x-admin-key": KEYS["/admin"]})
    problem = assert_problem(answer, 400, "invalid_parameter")
    assert problem["field"] == field
    assert said in problem["detail"]


def test_each_path_names_the_methods_that_it_takes(
    client: TestClient[Any], routes: list[Asked]
) -> None:
    for route in routes:
        answer = client.patch(route.path, headers={route.key_header: route.key})
        assert_problem(answer, 405, "method_not_allowed")
        assert route.method in answer.headers["allow"], route


def test_an_empty_idempotency_key_is_refused_and_does_not_count_as_none(
    client: TestClient[Any],
) -> None:
    answer = client.post(
        "/api/workflows/workflows/order/instances",
        json={},
        headers={"authorization": KEYS["/api/workflows"], "idempotency-key": ""},
    )
    problem = assert_problem(answer, 400, "invalid_parameter")
    assert problem["field"] == "Idempotency-Key"
