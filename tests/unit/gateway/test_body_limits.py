"""How large a body each route takes: it is refused by its size before anything of it is parsed."""

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.routes import HTTPRoute
from litestar.testing import TestClient

from headwater.gateway.api.json_bodies import BODY, ENVELOPE_BYTES, BodySize
from headwater.gateway.settings.settings import Settings
from headwater.schemas.history import Limits
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_all_routes import TICK, Asked, application

MIB = 1024 * 1024
#: Reads its own forms, in `lab_reports`; and what refuses before it looks at any body.
OTHERS = {"/v1/labs/upload", "/webhooks/{source:str}", TICK}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    app = application(tmp_path_factory.mktemp("bodies"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def limits_of(client: TestClient[Any]) -> dict[Asked, int]:
    """The limit of every route that reads a body."""
    settings = Settings()
    return {
        Asked(str(method), route.path): handler.opt.get(BODY, BodySize.SMALL).bytes_max(
            settings.limits, settings.max_body_bytes
        )
        for route in client.app.routes
        if isinstance(route, HTTPRoute) and route.path not in OTHERS
        for handler in route.route_handlers
        for method in handler.http_methods
        if method in {"POST", "PUT", "PATCH", "DELETE"} and reads_a_body(handler, route.path)
    }


def reads_a_body(handler: Any, path: str) -> bool:  # noqa: ANN401 (Litestar's)
    takes_request = "request" in handler.parsed_fn_signature.parameters
    is_raw = BODY in handler.opt or path.startswith("/console/log")
    return handler.parsed_data_field is not None or (takes_request and is_raw)


def test_each_route_that_reads_a_body_refuses_a_longer_one_and_says_the_limit(
    client: TestClient[Any],
) -> None:
    limits = limits_of(client)
    assert len(limits) > 30
    for route, most in limits.items():
        if route.path.startswith("/v1/hooks"):
            continue  # Its token is checked first.
        headers = {route.key_header: route.key, "content-type": "application/json"}
        path = route.path + ("?app=app" if route.template == "/v1/deployments" else "")
        answer = client.request(route.method, path, headers=headers, content=b" " * (most + 1))
        if route.path.startswith("/console"):
            assert answer.status_code == 413, route
            continue
        problem = assert_problem(answer, 413, "body_too_large")
        assert f"expected at most {most} bytes" in problem["detail"], route


def test_users_and_forms_have_64_kib(client: TestClient[Any]) -> None:
    limits = limits_of(client)
    small = {route.template for route, most in limits.items() if most == ENVELOPE_BYTES}
    assert {"/v1/connect", "/v1/import", "/console/login", "/console/logout"} <= small
    assert all(
        most <= ENVELOPE_BYTES
        for route, most in limits.items()
        if route.template.startswith(("/v1/connect", "/v1/import", "/v1/me", "/console"))
    )


@pytest.mark.parametrize(
    ("size", "most"),
    [
        (BodySize.SMALL, 64 * 1024),
        (BodySize.PARAMS, MIB + ENVELOPE_BYTES),
        (BodySize.PARAMS_OF_MANY, 10 * MIB),
        (BodySize.EVENT, 2 * MIB + ENVELOPE_BYTES),
        (BodySize.DEFINITION, MIB),
        (BodySize.ARTIFACT, 10 * MIB),
    ],
)
def test_a_body_has_what_its_values_may_have_and_an_envelope(size: BodySize, most: int) -> None:
    assert size.bytes_max(Limits(), 10 * MIB) == most
    assert size.bytes_max(Limits(), 1_000) == 1_000


def test_larger_params_have_larger_bodies() -> None:
    limits = Limits(max_params_bytes=4 * MIB)
    assert BodySize.PARAMS.bytes_max(limits, 10 * MIB) == 4 * MIB + ENVELOPE_BYTES


def test_nothing_of_a_body_is_parsed_by_the_route_of_users_that_is_too_long(
    client: TestClient[Any],
) -> None:
    route = Asked("POST", "/v1/import")
    days = b'{"days":[' + b",".join([b"1e308"] * 12_000) + b"]}"
    answer = client.post(
        route.path, content=days, headers={"authorization": route.key} | {"expect": ""}
    )
    assert_problem(answer, 413, "body_too_large")
