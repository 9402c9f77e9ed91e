"""Tools from the gateway's own OpenAPI document."""

import json
from typing import Any

import jsonschema_rs
import pytest
from litestar.testing import TestClient

from headwater.gateway.client.openapi_tools import Tool, tools_of
from headwater.gateway.client.requests import EmptyName
from tests.unit.gateway.test_all_routes import application


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with TestClient(application(tmp_path_factory.mktemp("tools"))) as client:
        return client.get("/schema/openapi.json").json()


@pytest.fixture(scope="module")
def tools(document: dict[str, Any]) -> dict[str, Tool]:
    return tools_of(document, writes=True)


def operation(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {"security": [{"apiKey": []}], "responses": {}, "operationId": "readIt", **fields}


def only(**fields: Any) -> Tool:  # noqa: ANN401 (JSON)
    (tool,) = tools_of({"paths": {"/x": {"get": operation(**fields)}}}, writes=False).values()
    return tool


def test_every_operation_that_takes_a_key_and_json_is_a_tool(
    document: dict[str, Any], tools: dict[str, Tool]
) -> None:
    offered = {(tool.method, tool.template) for tool in tools.values()}
    missing = {
        (method.upper(), template)
        for template, operations in document["paths"].items()
        for method, described in operations.items()
        if described.get("security")
    } - offered
    assert {template for _, template in missing if not template.startswith("/v1/keys")} == {
        "/api/workflows/workflows/{workflowName}/instances/{instanceId}/events-stream",
        *("/v1/connect", "/v1/me", "/v1/import", "/v1/imports", "/v1/labs/upload"),
        "/v1/connections/{terra_user_id}",
        "/v1/deployments",
        *("/v1/endpoints", "/v1/endpoints/{endpointId}/rotate"),
    }
    assert {"list_runs", "get_history", "get_admin_dlq"} <= tools.keys()


def test_names_are_unique_and_those_that_the_protocol_allows(tools: dict[str, Tool]) -> None:
    assert all(
        len(name) <= 64 and name.replace("_", "").isalnum() and name.isascii() for name in tools
    )
    assert len({(tool.method, tool.template) for tool in tools.values()}) == len(tools)


def test_only_reads_are_tools_unless_writes_are_allowed(document: dict[str, Any]) -> None:
    assert {tool.method for tool in tools_of(document, writes=False).values()} == {"GET"}


def test_keys_are_never_changed(tools: dict[str, Tool]) -> None:
    of_keys = {tool.method for tool in tools.values() if tool.template.startswith("/v1/keys")}
    assert of_keys == {"GET"}


def test_every_schema_is_whole_and_closed(tools: dict[str, Tool]) -> None:
    for tool in tools.values():
        assert "#/components/" not in json.dumps(tool.schema), tool.name
        validator = jsonschema_rs.validator_for(tool.schema)
        assert not validator.is_valid({"no such argument": 1}), tool.name


def test_arguments_become_a_request(tools: dict[str, Tool]) -> None:
    request = tools["get_history"].request(
        {"workflowName": "a/b", "instanceId": "..", "pageSize": 3, "order": None}
    )
    assert request.path == "/api/workflows/workflows/a%2Fb/instances/%2E%2E/history"
    assert (request.method, request.query, request.body) == ("GET", {"pageSize": "3"}, None)


def test_a_body_and_headers_are_sent(tools: dict[str, Tool]) -> None:
    request = tools["create_run"].request({"body": {"a": 1}, "Idempotency-Key": "k"})
    assert request.body == b'{"a": 1}'
    assert request.headers == {"Idempotency-Key": "k", "content-type": "application/json"}


def test_an_empty_argument_of_a_path_is_refused(tools: dict[str, Tool]) -> None:
    with pytest.raises(EmptyName):
        tools["get_run"].request({"runId": ""})


def test_components_that_refer_to_themselves_are_included_once() -> None:
    schema = {"$ref": "#/components/schemas/Node"}
    node = {"type": "object", "properties": {"next": schema}}
    described = operation(parameters=[{"name": "node", "in": "query", "schema": schema}])
    document = {"paths": {"/x": {"get": described}}, "components": {"schemas": {"Node": node}}}
    (tool,) = tools_of(document, writes=False).values()
    assert tool.schema["$defs"] == {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    }


def test_a_tool_without_a_summary_is_named_by_its_route() -> None:
    assert only().title == "GET /x"


def test_no_tool_has_an_answer_with_a_secret(
    document: dict[str, Any], tools: dict[str, Tool]
) -> None:
    schemas = document["components"]["schemas"]
    with_secrets = {
        name for name, schema in schemas.items() if "secret" in schema.get("properties", {})
    }
    assert with_secrets
    for template, operations in document["paths"].items():
        for method, described in operations.items():
            answers = json.dumps(described["responses"])
            if any(f'schemas/{name}"' in answers for name in with_secrets):
                offered = {(tool.method, tool.template) for tool in tools.values()}
                assert (method.upper(), template) not in offered
