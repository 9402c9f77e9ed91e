"""Every route of workflows with a body that is taken, and requests to them."""

from typing import Any

import httpx2
from litestar.testing import TestClient

from headwater.gateway.api.workflows import WorkflowHooks
from headwater.gateway.settings.settings import Settings
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.workflow_fakes import MemoryCommands

KEY = {"authorization": "Bearer dev-workflow-key"}
TICK_KEY = {"x-api-key": "the-tick-key"}
ASYNC = {**KEY, "prefer": "respond-async"}
BASE = "/api/workflows"
ORDERS = f"{BASE}/workflows/order/instances"
ORDER = f"{ORDERS}/order-1"
Client = TestClient[Any]
#: Every route, with a body that is taken.
ROUTES: list[tuple[str, str, bytes]] = [
    ("GET", f"{BASE}/workflows", b""),
    ("GET", ORDERS, b""),
    ("GET", f"{BASE}/instances", b""),
    ("GET", ORDER, b""),
    ("GET", f"{ORDER}/history", b""),
    ("GET", f"{ORDER}/history/export", b""),
    ("GET", f"{ORDER}/events-stream", b""),
    ("GET", f"{ORDER}/graph/tokens", b""),
    ("GET", f"{ORDER}/graph/explain", b""),
    ("GET", f"{ORDER}/graph/trace", b""),
    ("GET", f"{ORDER}/graph/svg", b""),
    ("GET", f"{ORDER}/graph/mermaid", b""),
    ("POST", f"{ORDER}/graph/simulate-routing", b'{"node":"a"}'),
    ("POST", f"{ORDER}/graph/simulate-synchronization", b'{"token":"0","transition":"a"}'),
    ("POST", f"{ORDER}/graph/simulate-migration", b'{"to":1}'),
    ("POST", f"{ORDER}/migrate", b'{"to":1}'),
    ("POST", f"{ORDER}/move", b'{"deployment":"app"}'),
    ("POST", ORDERS, b"{}"),
    ("POST", f"{BASE}/workflows/order/bulk", b'{"action":"retry","status":"errored"}'),
    ("POST", f"{ORDERS}/batch", b'{"instances":[{"id":"a"}]}'),
    ("POST", f"{ORDER}/pause", b""),
    ("POST", f"{ORDER}/resume", b""),
    ("POST", f"{ORDER}/terminate", b""),
    ("POST", f"{ORDER}/cancel", b""),
    ("POST", f"{ORDER}/restart", b""),
    ("POST", f"{ORDER}/retry", b""),
    ("POST", f"{ORDER}/branch-output", b'{"group":"g","branch":0,"output":{}}'),
    ("POST", f"{ORDER}/events", b'{"type":"go"}'),
    ("POST", f"{BASE}/_runner/tick", b""),
]
READS = [
    route for route in ROUTES if route[0] == "GET" or "simulate" in route[1] or "bulk" in route[1]
]
#: A move to another version reads the versions of its graph first.
WRITES = [route for route in ROUTES[:-1] if route not in READS and "migrate" not in route[1]]


def service(commands: MemoryCommands, hooks: WorkflowHooks, **settings: str) -> Client:
    app = memory_app(
        Settings(max_body_bytes=2_000_000, **settings),
        workflows=memory_workflows(commands=commands, hooks=hooks),
    )
    return TestClient(app, raise_server_exceptions=False)


def ask(client: Client, route: tuple[str, str, bytes], **headers: str) -> httpx2.Response:
    method, path, body = route
    return client.request(method, path, content=body, headers=headers)


def named(route: object) -> str:
    return str(route[1]).removeprefix(BASE) if isinstance(route, tuple) else ascii(route)[:40]
