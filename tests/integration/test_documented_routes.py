"""Every route but those of workflows, runs and jobs as OpenAPI describes it, asked by schemathesis.

Goal: whatever is asked, no answer is a 5xx, none has a status or a content type that is not
described, and each is as its schema says. Method: cases at the edges of every parameter and body,
valid and not, then random ones, the same in each run. Terra's stand-in and Postgres are real, the
log and the workflows in memory; then all of it is asked again where Kafka and Terra do not answer.
The routes of workflows are asked on real parts (`tests/e2e/test_workflow_schema.py`).
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from litestar.testing import TestClient
from schemathesis import Case, openapi
from schemathesis import pytest as parametrized
from schemathesis.checks import CheckContext, not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headwater.gateway.api import authentication
from tests.e2e.system import free_port
from tests.integration.test_user_routes import BEARER, System, dsn, running, stand_in
from tests.openapi import without_long_arrays
from tests.terra import StandIn

__all__ = ["dsn", "running", "stand_in"]

pytest_plugins = ["schemathesis.pytest.plugin"]

KEYS: Final = BEARER | {"x-admin-key": "dev-admin-key", "x-api-key": "dev-workflow-key"}
OF_REQUESTS: Final = ("method", "url", "headers", "params", "data", "json", "files")
DESCRIBED: Final = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
CHECKS: Final = [not_a_server_error, *DESCRIBED]
#: What a gateway says of others who do not answer; whether it is ready is no problem document.
OTHERS_AWAY: Final = {(503, "broker_unavailable"), (502, "terra_failed"), (503, "not ready")}


@schemathesis.serializer("application/zip")
def _bytes_of(_context: object, value: object) -> bytes:
    """What stands for an artifact, which is seldom one."""
    return value if isinstance(value, bytes) else str(value).encode()


def only_others_fail(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    """A check: whatever is a 5xx names who does not answer."""
    del ctx, case
    if response.status_code >= 500:
        code = response.json().get("code", "not ready")
        assert (response.status_code, code) in OTHERS_AWAY, response.text


def described(client: TestClient[Any], examples: int) -> BaseSchema:
    config: dict[str, Any] = {
        "seed": 20261122,
        "generation": {"deterministic": True, "with-security-parameters": False},
        "phases": {
            "fuzzing": {
                "generation": {"max-examples": examples},
                "extra-data-sources": {"responses": False},
                "error-feedback": {"enabled": False},
            },
            "coverage": {"unexpected-methods": []},
            "stateful": {"enabled": False},
        },
    }
    document = without_long_arrays(client.get("/schema/openapi.json").json())
    return openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))


@pytest.fixture(scope="module")
def few(running: tuple[System, TestClient[Any]]) -> BaseSchema:
    return described(running[1], 1)


@pytest.fixture(scope="module")
def cut_off(
    dsn: str, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient[Any]]:
    """A gateway without Kafka, and without Terra."""
    terra = stand_in.client(api=f"http://127.0.0.1:{free_port()}/v2")
    system = System(dsn, tmp_path_factory.mktemp("cut-off"), terra, away=True)
    with TestClient(system.app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def many(running: tuple[System, TestClient[Any]]) -> BaseSchema:
    return described(running[1], 100)


@pytest.fixture(autouse=True)
def no_address_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases bring wrong keys by the hundred; 429 to all that follow would test nothing."""
    monkeypatch.setattr(authentication, "_FREE", 10**9)


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest) -> None:
    """Gives a test what schemathesis 4.32 looks for and pytest 9.2 no longer has."""
    request.node._nodeid = request.node.nodeid


def ask(client: TestClient[Any], case: Case[Any], checks: list[Any] = CHECKS) -> None:
    if "source" in case.path_parameters:
        _ask(client, case, checks)
        case.path_parameters.update(source="terra")
    _ask(client, case, checks)


def _ask(client: TestClient[Any], case: Case[Any], checks: list[Any]) -> None:
    expected = case.as_transport_kwargs(base_url="http://127.0.0.1:8080", headers=KEYS)
    sent = requests.Request(**{name: expected.get(name) for name in OF_REQUESTS}).prepare()
    answer = client.request(
        str(sent.method), str(sent.url), headers=dict(sent.headers), content=sent.body
    )
    case.validate_response(answer, checks=checks)


_OF_OTHERS: Final = "^/(api/(workflows|jobs)|v1/(queues|runs|world))(/|$)"


@parametrized.from_fixture("few").exclude(path_regex=_OF_OTHERS).parametrize()
def test_whatever_is_asked_is_answered_as_described(
    running: tuple[System, TestClient[Any]], case: Case[Any]
) -> None:
    ask(running[1], case)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/replays", {"ids": ["e"] * 10_001}),
        ("/admin/dlq/replay", {"positions": [{"partition": 0, "offset": 1}] * 1_001}),
        ("/v1/connect", {"providers": ["GARMIN"] * 101}),
    ],
)
def test_more_items_than_there_may_be_are_refused(
    running: tuple[System, TestClient[Any]], path: str, body: object
) -> None:
    answer = running[1].post(path, json=body, headers=KEYS)
    assert answer.status_code == 400, answer.text
    assert "of length <= 1" in answer.json()["detail"]


@parametrized.from_fixture("few").exclude(path_regex=_OF_OTHERS).parametrize()
def test_what_needs_kafka_or_terra_says_so_while_they_are_away(
    cut_off: TestClient[Any], case: Case[Any]
) -> None:
    ask(cut_off, case, [only_others_fail, *DESCRIBED])


def test_each_of_them_is_away_for_somebody(cut_off: TestClient[Any]) -> None:
    """What is asked above does meet those who are away."""
    wiped = cut_off.post("/admin/user/user_1/wipe", headers=KEYS)
    assert (wiped.status_code, wiped.json()["code"]) == (503, "broker_unavailable")
    connected = cut_off.post("/v1/connect", headers=KEYS)
    assert (connected.status_code, connected.json()["code"]) == (502, "terra_failed")


@pytest.mark.soak
@parametrized.from_fixture("many").exclude(path_regex=_OF_OTHERS).parametrize()
def test_whatever_is_asked_at_length_is_answered_as_described(
    running: tuple[System, TestClient[Any]], case: Case[Any]
) -> None:
    ask(running[1], case)
