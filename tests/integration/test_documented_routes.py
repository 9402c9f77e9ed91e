"""Every route but those of workflows and their jobs as OpenAPI describes it, asked by schemathesis.

Goal: whatever is asked, no answer is a 5xx, none has a status or a content type that is not
described, and each is as its schema says. Method: cases at the edges of every parameter and body,
valid and not, then random ones, the same in each run. Terra's stand-in and Postgres are real, the
log and the workflows in memory. The routes of workflows are asked on real parts
(`tests/e2e/test_workflow_schema.py`); that of wipes needs a log of its own, and is not among them.
"""

from typing import Any, Final

import pytest
import requests
from litestar.testing import TestClient
from schemathesis import Case, openapi
from schemathesis import pytest as parametrized
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.test_user_routes import BEARER, House, dsn, running, stand_in

__all__ = ["dsn", "running", "stand_in"]

KEYS: Final = BEARER | {"x-admin-key": "dev-admin-key", "x-api-key": "dev-workflow-key"}
OF_REQUESTS: Final = ("method", "url", "headers", "params", "data", "json", "files")
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


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
    document = client.get("/schema/openapi.json").json()
    return openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))


@pytest.fixture(scope="module")
def few(running: tuple[House, TestClient[Any]]) -> BaseSchema:
    return described(running[1], 1)


@pytest.fixture(scope="module")
def many(running: tuple[House, TestClient[Any]]) -> BaseSchema:
    return described(running[1], 100)


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest) -> None:
    """Gives a test what schemathesis 4.32 looks for and pytest 9.2 no longer has."""
    request.node._nodeid = request.node.nodeid


def ask(client: TestClient[Any], case: Case[Any]) -> None:
    if "source" in case.path_parameters:
        _ask(client, case)
        case.path_parameters.update(source="terra")
    _ask(client, case)


def _ask(client: TestClient[Any], case: Case[Any]) -> None:
    wanted = case.as_transport_kwargs(base_url="http://127.0.0.1:8080", headers=KEYS)
    sent = requests.Request(**{name: wanted.get(name) for name in OF_REQUESTS}).prepare()
    answer = client.request(
        str(sent.method), str(sent.url), headers=dict(sent.headers), content=sent.body
    )
    case.validate_response(answer, checks=CHECKS)


_OF_OTHERS: Final = "^/api/(workflows|jobs)(/|$)"


@parametrized.from_fixture("few").exclude(path_regex=_OF_OTHERS).parametrize()
def test_whatever_is_asked_is_answered_as_described(
    running: tuple[House, TestClient[Any]], case: Case[Any]
) -> None:
    ask(running[1], case)


@pytest.mark.soak
@parametrized.from_fixture("many").exclude(path_regex=_OF_OTHERS).parametrize()
def test_whatever_is_asked_at_length_is_answered_as_described(
    running: tuple[House, TestClient[Any]], case: Case[Any]
) -> None:
    ask(running[1], case)
