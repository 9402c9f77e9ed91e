"""Every route, by every kind of key: read from the application's own table of routes.

A route that takes keys names the scope that a key needs. A route without one has a reason here; a
new route has neither, and fails.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from litestar import Litestar
from litestar.routes import ASGIRoute, HTTPRoute
from litestar.testing import TestClient

from headwater.gateway.api.key_ring import CONFIGURED_SCOPES, configured_keys
from headwater.gateway.settings.settings import Settings
from headwater.processors.api_keys import SCOPES_OF_ROLE, Role, Scope, digest_of, id_of, key_text
from headwater.schemas.api_keys import ApiKeyCreated, ApiKeyRevoked
from headwater.schemas.codec import encode
from tests.fakes.api_keys import MemoryApiKeys
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_all_routes import TICK, Asked, application

NOBODYS = "it needs no key: it is public, or about the process"
SIGNED = "deliveries are signed"
OF_USERS = "it takes tokens of users, who act for themselves"
SESSIONS = "it takes sessions, and sends requests to the API with the rights of the session"
CALLBACK = "callbacks are refused, and only counted"
#: Routes that take no key, by method and path, and why. A path that ends with * is a prefix.
WITHOUT_SCOPE: Final = {
    **dict.fromkeys(
        ("GET /schema*", "GET /registry/*", "GET /asyncapi.json", "GET /health/*", "GET /metrics"),
        NOBODYS,
    ),
    "POST /webhooks/{source:str}": SIGNED,
    **dict.fromkeys(
        (
            "GET /v1/me",
            "GET /v1/imports",
            "POST /v1/connect",
            "POST /v1/import",
            "POST /v1/labs/upload",
            "DELETE /v1/connections/{terra_user_id:str}",
        ),
        OF_USERS,
    ),
    **dict.fromkeys(("GET /console*", "POST /console*"), SESSIONS),
    "POST /v1/hooks/{hook_token:str}": "its URL has the token of a hook",
    "POST /.well-known/workflow/v1/flow": CALLBACK,
    "POST /.well-known/workflow/v1/step": CALLBACK,
}


class Keyed(NamedTuple):
    """A route that takes keys, and the scope that it needs."""

    route: Asked
    scope: str


def key(number: int) -> str:
    return key_text(number.to_bytes(10), number.to_bytes(32))


def created(number: int, scopes: tuple[str, ...], **fields: Any) -> bytes:  # noqa: ANN401
    usual: dict[str, Any] = {
        "id": id_of(key(number)),
        "project": "default",
        "name": f"key {number}",
        "role": "",
        "scopes": scopes,
        "digest": digest_of(key(number)),
        "expires_at_ms": 0,
        "rate_limit": 0,
        "by": "admin:00000000",
        "at_ms": 1,
    }
    return encode(ApiKeyCreated(**(usual | fields)))


SCOPES: Final = sorted(Scope)
OTHER_PROJECT, EXPIRED, REVOKED, WITHOUT_ANY = 1000, 1001, 1002, 1003
#: Keys with all scopes are refused for what they are.
REFUSED: Final = {
    "of another project": key(OTHER_PROJECT),
    "expired": key(EXPIRED),
    "revoked": key(REVOKED),
    "unknown": key(9999),
}


def one_scope(scope: str) -> str:
    """The key that has this scope alone."""
    return key(SCOPES.index(Scope(scope)))


def all_but(scope: str) -> str:
    """The key that has all others."""
    return key(100 + SCOPES.index(Scope(scope)))


def all_keys() -> list[bytes]:
    return [
        *(created(number, (scope,)) for number, scope in enumerate(SCOPES)),
        *(
            created(100 + number, tuple(other for other in SCOPES if other != scope))
            for number, scope in enumerate(SCOPES)
        ),
        created(OTHER_PROJECT, (), role="admin", project="another"),
        created(EXPIRED, (), role="admin", expires_at_ms=2),
        created(REVOKED, (), role="admin"),
        encode(ApiKeyRevoked(id=id_of(key(REVOKED)) or "", by="admin:00000000", at_ms=2)),
        created(WITHOUT_ANY, ("of a later release",)),
    ]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    app = application(tmp_path_factory.mktemp("keys"), api_keys=MemoryApiKeys(all_keys()))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def handlers_of(app: Litestar) -> Iterator[tuple[Asked, str | None]]:
    """All routes, and their scopes."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            assert isinstance(route, ASGIRoute), route
            continue
        for handler in route.route_handlers:
            for method in handler.http_methods - {"OPTIONS", "HEAD"}:
                yield Asked(str(method), route.path), handler.opt.get("scope")


@pytest.fixture(scope="module")
def keyed(client: TestClient[Any]) -> list[Keyed]:
    return [
        Keyed(route, scope)
        for route, scope in handlers_of(client.app)
        # It is disabled without its settings, whatever the key.
        if scope is not None and route.template != TICK
    ]


def rule_of(route: Asked) -> str | None:
    name = f"{route.method} {route.template}"
    if name in WITHOUT_SCOPE:
        return name
    prefixes = (rule for rule in WITHOUT_SCOPE if rule.endswith("*"))
    return next((rule for rule in prefixes if name.startswith(rule[:-1])), None)


def test_every_route_has_a_scope_or_a_reason_why_not(client: TestClient[Any]) -> None:
    without, used = set(), Counter[str]()
    for route, scope in handlers_of(client.app):
        rule = rule_of(route)
        if rule is not None:
            assert scope is None, route
            used[rule] += 1
        elif scope not in set(Scope):
            without.add(route)
    assert without == set()
    assert WITHOUT_SCOPE.keys() - used.keys() == set()


def test_a_new_route_has_no_reason() -> None:
    for name in ("POST /admin/new", "GET /admin/new", "DELETE /v1/new", "PUT /api/new", "GET /new"):
        assert rule_of(Asked(*name.split())) is None


def test_the_description_names_the_scope_and_the_keys_of_a_route(
    client: TestClient[Any], keyed: list[Keyed]
) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    for route, scope in keyed:
        operation = paths.get(re.sub(r":\w+}", "}", route.template), {}).get(route.method.lower())
        if operation is not None:  # An instance named batch is not described by itself.
            assert f"An API key needs the scope `{scope}`." in operation["description"], route
            assert {"apiKey": []} in operation["security"]
            assert len(operation["security"]) > 1
            assert "insufficient_scope" in operation["responses"]["403"]["description"]


def test_the_page_about_keys_has_the_scopes_of_every_role() -> None:
    page = (Path(__file__).parents[3] / "docs" / "keys.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+:\w+)` \| .+? \| (✓?) ?\| (✓?) ?\|$", page, re.MULTILINE)
    assert [scope for scope, _, _ in rows] == list(Scope)
    viewer, operator, _ = (SCOPES_OF_ROLE[role] for role in Role)
    assert {scope for scope, mark, _ in rows if mark} == viewer
    assert {scope for scope, _, mark in rows if mark} == operator


def test_every_scope_is_of_a_route(client: TestClient[Any]) -> None:
    of_routes = {scope for _, scope in handlers_of(client.app) if scope}
    # What needs this one depends on the instance that a request changes.
    assert of_routes == set(Scope) - {Scope.SYSTEM_WRITE}


def ask(client: TestClient[Any], route: Asked, key: str, header: str = "authorization") -> Any:  # noqa: ANN401 (httpx2's answer)
    """Ask with a parameter that no route has, which is refused after the key was accepted."""
    value = f"Bearer {key}" if header == "authorization" else key
    return client.request(route.method, f"{route.path}?lmit=1", headers={header: value})


def assert_admitted(answer: Any, case: object) -> None:  # noqa: ANN401 (httpx2's answer)
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter"), case


def test_a_key_with_the_scope_of_a_route_is_admitted(
    client: TestClient[Any], keyed: list[Keyed]
) -> None:
    assert len(keyed) > 70
    for route, scope in keyed:
        assert_admitted(ask(client, route, one_scope(scope)), route)


def test_a_key_without_the_scope_of_a_route_is_told_which_it_needs(
    client: TestClient[Any], keyed: list[Keyed]
) -> None:
    for route, scope in keyed:
        answer = ask(client, route, all_but(scope))
        problem = assert_problem(answer, 403, "insufficient_scope")
        assert problem["needed"] == [scope], route
        assert set(problem["scopes"]) == set(SCOPES) - {scope}
        assert scope in problem["detail"]
        assert f'scope="{scope}"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_key_that_does_not_exist_here_is_refused(
    client: TestClient[Any], keyed: list[Keyed], kind: str
) -> None:
    for route, _ in keyed:
        assert_problem(ask(client, route, REFUSED[kind]), 401, "unauthorized")


@pytest.mark.parametrize("kind", sorted(CONFIGURED_SCOPES.keys() - {"tick"}))
def test_a_key_of_the_settings_has_its_scopes(
    client: TestClient[Any], keyed: list[Keyed], kind: str
) -> None:
    for route, scope in keyed:
        answer = ask(client, route, f"dev-{kind}-key")
        if scope in CONFIGURED_SCOPES[kind]:
            assert_admitted(answer, route)
        else:
            assert_problem(answer, 403, "insufficient_scope")


@pytest.mark.parametrize("header", ["x-admin-key", "x-api-key", "authorization"])
def test_every_header_takes_every_key(
    client: TestClient[Any], keyed: list[Keyed], header: str
) -> None:
    for scope in SCOPES:
        for route in [route for route, needed in keyed if needed == scope][:1]:
            assert_admitted(ask(client, route, one_scope(scope), header), route)
    audit = Asked("GET", "/v1/audit")
    assert_admitted(ask(client, audit, "dev-admin-key", header), header)


@pytest.mark.parametrize("header", ["x-admin-key", "x-api-key", "authorization"])
def test_each_of_several_keys_of_a_setting_is_accepted(header: str) -> None:
    texts = ["the-new-admin-key", "the-old-admin-key"]
    app = memory_app(Settings(admin_key=", ".join(texts)), api_keys=MemoryApiKeys())
    with TestClient(app, raise_server_exceptions=False) as client:
        for text in texts:
            assert_admitted(ask(client, Asked("GET", "/v1/audit"), text, header), text)
        for text in (", ".join(texts), "dev-admin-key"):
            problem = ask(client, Asked("GET", "/v1/audit"), text, header)
            assert_problem(problem, 401, "unauthorized")


def test_keys_of_one_setting_have_ids_of_their_own() -> None:
    keys = configured_keys(Settings(world_key="the-new-world-key,the-old-world-key"))
    worlds = {key.caller.key_id for key in keys if key.caller.key_id.startswith("world:")}
    assert len(worlds) == 2
    assert {key.caller.key_id.partition(":")[0] for key in keys} == CONFIGURED_SCOPES.keys() - {
        "tick"
    }


def test_a_key_without_known_scopes_may_do_nothing(client: TestClient[Any]) -> None:
    problem = assert_problem(
        ask(client, Asked("GET", "/v1/audit"), key(WITHOUT_ANY)), 403, "insufficient_scope"
    )
    assert problem["scopes"] == ["of a later release"]


def test_of_several_keys_one_with_the_scope_suffices(client: TestClient[Any]) -> None:
    headers = {"authorization": f"Bearer {one_scope('jobs:work')}", "x-api-key": "dev-admin-key"}
    answer = client.get("/v1/audit?lmit=1", headers=headers)
    assert_admitted(answer, headers)
