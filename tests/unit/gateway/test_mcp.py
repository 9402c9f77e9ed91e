"""`headwater mcp`, as a client of the protocol sees it; the gateway is a recorded one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp_types import CallToolResult, TextContent

from headwater.gateway.cli.main import cli
from headwater.gateway.cli.mcp import ANSWER_LENGTH, server_of
from headwater.gateway.client.openapi_tools import tools_of

GATEWAY = "http://127.0.0.1:8090"
DOCUMENT = {
    "paths": {
        "/v1/runs/{runId}": {
            "get": {
                "operationId": "getRun",
                "summary": "Read a run",
                "security": [{"workflowKey": []}, {"apiKey": []}],
                "parameters": [
                    {"name": "runId", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
                "responses": {},
            }
        }
    }
}
KEYS = {"apiKey": {"authorization": "Bearer hw_1"}}


def with_client(
    answer: Callable[[httpx2.Request], httpx2.Response],
    use: Callable[[Client], Awaitable[CallToolResult]],
) -> CallToolResult:
    async def whole() -> CallToolResult:
        network = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(base_url=GATEWAY, transport=network) as http:
            server = server_of(http, tools_of(DOCUMENT, writes=False), KEYS)
            async with Client(server) as client:
                return await use(client)

    return asyncio.run(whole())


def call(
    answer: Callable[[httpx2.Request], httpx2.Response], name: str = "get_run", **arguments: object
) -> tuple[str, bool]:
    result = with_client(answer, lambda client: client.call_tool(name, arguments))
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text, result.is_error


def never(request: httpx2.Request) -> httpx2.Response:
    raise AssertionError(request.url)


def test_tools_are_listed_with_their_effect() -> None:
    async def listed(client: Client) -> Any:  # noqa: ANN401 (the SDK's)
        return await client.list_tools()

    (tool,) = with_client(never, listed).tools
    assert (tool.name, tool.title) == ("get_run", "Read a run")
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint


def test_a_call_is_a_request_with_the_key() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={"runId": "r/1"})

    assert call(answer, runId="r/1") == ('{"runId":"r/1"}', False)
    (request,) = requests
    assert str(request.url) == f"{GATEWAY}/v1/runs/r%2F1"
    assert request.headers["authorization"] == "Bearer hw_1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, "runId"), ({"runId": 1}, "string"), ({"runId": ""}, "empty"), ({"other": "x"}, "other")],
)
def test_wrong_arguments_are_refused_without_a_request(
    arguments: dict[str, Any], expected: str
) -> None:
    text, failed = call(never, **arguments)
    assert failed
    assert expected in text or "expected a name" in text


def test_an_unknown_tool_is_an_error() -> None:
    assert call(never, "delete_everything") == (
        "expected the name of a tool, got 'delete_everything'",
        True,
    )


def test_a_problem_is_an_error_with_its_text() -> None:
    text, failed = call(lambda _: httpx2.Response(404, json={"code": "not_found"}), runId="r")
    assert (text, failed) == ('{"code":"not_found"}', True)


def test_a_gateway_that_is_away_is_an_error() -> None:
    def away(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    assert call(away, runId="r") == ("ConnectError: refused", True)


def test_a_long_answer_is_cut() -> None:
    text, failed = call(lambda _: httpx2.Response(200, text="x" * 100_000), runId="r")
    assert not failed
    assert text.startswith("x" * ANSWER_LENGTH + "\n[cut: ")
    assert "of 100000 characters" in text


def test_a_gateway_that_does_not_run_ends_the_command_with_the_next_step() -> None:
    result = CliRunner().invoke(cli, ["mcp", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "is the gateway running?" in result.output
