"""Graphs over HTTP: deployed, refused with all that is wrong, and read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.schemas.deployments import GraphDeployed
from tests.fakes.definitions import MemoryDefinitions
from tests.unit.gateway.memory_app import memory_app, memory_workflows

KEY = {"x-api-key": "dev-workflow-key"}
ONE: dict[str, Any] = {"initialNodeRef": "start", "nodes": [{"ref": "start", "task": "noop"}]}
TWO = ONE | {"outputMapping": {"done": "true"}}
AT_MS = 1_782_900_000_000


@pytest.fixture
def definitions() -> MemoryDefinitions:
    return MemoryDefinitions()


@contextmanager
def gateway_with(definitions: MemoryDefinitions) -> Iterator[TestClient[Any]]:
    workflows = memory_workflows(definitions=definitions, clock=lambda: AT_MS)
    app = memory_app(clock=lambda: AT_MS, workflows=workflows)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.headers.update(KEY)
        yield client


@pytest.fixture
def client(definitions: MemoryDefinitions) -> Iterator[TestClient[Any]]:
    with gateway_with(definitions) as client:
        yield client


@pytest.fixture(scope="module")
def empty() -> Iterator[TestClient[Any]]:
    """A gateway where nothing is deployed; tests that leave it so share it."""
    with gateway_with(MemoryDefinitions()) as client:
        yield client


def put(client: TestClient[Any], body: object, name: str = "g", **headers: str) -> httpx2.Response:
    return client.put(f"/api/graphs/{name}", json=body, headers=headers)


def test_a_deployment_answers_warnings(client: TestClient[Any]):
    unreached = ONE | {"nodes": [*ONE["nodes"], {"ref": "other", "task": "noop"}]}
    deployed = put(client, unreached)
    assert deployed.status_code == 201
    (warning,) = deployed.json()["warnings"]
    assert (warning["code"], warning["path"]) == ("UNREACHABLE_NODE", "nodes[1]")
    assert "'other'" in warning["message"]


def test_a_definition_is_a_new_version_once(client: TestClient[Any]):
    first, again, other = put(client, ONE), put(client, ONE | {"name": "g"}), put(client, TWO)
    assert [item.status_code for item in (first, again, other)] == [201, 200, 201]
    assert first.json() == again.json()
    assert first.json()["deployedAt"] == "2026-07-01T10:00:00Z"
    assert first.headers["etag"] == f'"{first.json()["digest"]}"'
    assert other.json()["version"] == 2
    old, newest = first.json(), other.json()
    assert (old.pop("warnings"), newest.pop("warnings")) == ([], [])
    assert client.get("/api/graphs").json() == {"graphs": [newest]}
    versions = client.get("/api/graphs/g/versions").json()["versions"]
    assert versions == [newest, old]
    assert client.get("/api/graphs/g").json()["definition"] == TWO | {"name": "g"}
    assert client.get("/api/graphs/g/versions/1").json()["definition"] == ONE | {"name": "g"}


def test_every_mistake_is_told_with_its_code_and_path(empty: TestClient[Any]):
    wrong = {
        "initialNodeRef": "nowhere",
        "nodes": [{"ref": "a", "task": "t", "inputMapping": {"x": "1 +"}}, {"ref": "b"}],
    }
    refused = put(empty, wrong)
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (400, "GRAPH_INVALID")
    assert {(error["code"], error["path"]) for error in problem["errors"]} == {
        ("INVALID_NODE_REF", "initialNodeRef"),
        ("MISSING_OWNER", "nodes[1]"),
        ("INVALID_EXPRESSION", "nodes[0].inputMapping.x"),
    }
    assert empty.get("/api/graphs").json() == {"graphs": []}


@pytest.mark.parametrize(
    ("body", "name", "status", "code"),
    [
        (b"[]", "g", 400, "GRAPH_INVALID"),
        (b'{"a":1,"a":2}', "g", 400, "invalid_body"),
        (b"{", "g", 400, "invalid_body"),
        (b"", "g", 400, "GRAPH_INVALID"),
        (b'{"name":"h","initialNodeRef":"a","nodes":[{"ref":"a","task":"t"}]}', "g", 400,
         "GRAPH_INVALID"),
        (b"{}", "headwater-schedules", 409, "GRAPH_OF_APP"),
        (b'"' + b"x" * 1024 * 1024 + b'"', "g", 413, "body_too_large"),
    ],
)  # fmt: skip
def test_what_is_no_definition_of_the_name_is_refused(
    empty: TestClient[Any], body: bytes, name: str, status: int, code: str
):
    refused = empty.put(f"/api/graphs/{name}", content=body)
    assert (refused.status_code, refused.json()["code"]) == (status, code)


def test_whoever_replaces_another_version_than_they_think_is_refused(client: TestClient[Any]):
    tag = put(client, ONE).headers["etag"]
    assert put(client, TWO, **{"if-match": tag}).status_code == 201
    late = put(client, ONE, **{"if-match": tag})
    assert (late.status_code, late.json()["code"]) == (412, "GRAPH_CHANGED")
    assert put(client, ONE, **{"if-match": "*"}).json()["field"] == "If-Match"


def test_the_graph_of_an_app_is_shown_and_not_deployed_over(
    client: TestClient[Any], definitions: MemoryDefinitions
):
    definitions.catalogue.apply(
        GraphDeployed(name="g", document="{}", digest="d", app="orders", after="", at_ms=0)
    )
    assert client.get("/api/graphs").json()["graphs"][0]["app"] == "orders"
    refused = put(client, ONE)
    assert (refused.status_code, refused.json()["code"]) == (409, "GRAPH_OF_APP")


@pytest.mark.parametrize("path", ["/g", "/g/versions", "/g/versions/1"])
def test_what_was_not_deployed_is_not_found(empty: TestClient[Any], path: str):
    answer = empty.get(f"/api/graphs{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "GRAPH_NOT_FOUND")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PUT", "/g"), ("GET", "/g")])
def test_nobody_without_the_key_comes_in(empty: TestClient[Any], method: str, path: str):
    answer = empty.request(method, f"/api/graphs{path}", headers={"x-api-key": "another"})
    assert answer.status_code == 401
