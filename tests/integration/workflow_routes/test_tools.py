"""The API as tools: the command `headwater mcp` as a program, asked by a client of the protocol."""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import TextContent

from tests.e2e.system import System
from tests.integration.workflow_routes.asking import create, until


def test_an_assistant_reads_an_instance_and_cannot_change_it(
    system: System, api: httpx2.Client
) -> None:
    instance_id = create(api, "echo")
    until(api, "echo", instance_id, "complete")
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "headwater", "mcp", "--url", system.url()],
        env=dict(os.environ),
    )
    where = {"workflowName": "echo", "instanceId": instance_id}

    async def asked() -> tuple[set[str], str]:
        async with asyncio.timeout(60), Client(command) as client:
            listed = await client.list_tools()
            result = await client.call_tool("get_instance", where)
            (content,) = result.content
            assert isinstance(content, TextContent)
            assert not result.is_error, content.text
            return {tool.name for tool in listed.tools}, content.text

    names, text = asyncio.run(asked())
    assert json.loads(text)["id"] == instance_id
    assert "get_history" in names
    assert names.isdisjoint({"terminate_instance", "create_instance", "create_key"})
