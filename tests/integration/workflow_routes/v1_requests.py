"""Requests to the routes below `/v1`, and what became of them."""

import itertools
import json
from typing import Any

import httpx2
import psycopg

from tests.e2e.system import System

KEY = {"authorization": "Bearer dev-workflow-key"}
WORLD_KEY = {"x-api-key": "dev-world-key"}
_NUMBERS = itertools.count(1)


def fresh(what: str) -> str:
    return f"{what}-{next(_NUMBERS)}"


def post(
    system: System, path: str, body: object, *, gateway: str = "gateway", **headers: str
) -> httpx2.Response:
    known = WORLD_KEY if path.startswith("/v1/world") else KEY
    content = body if isinstance(body, str) else json.dumps(body)
    return httpx2.post(
        system.url(gateway) + path,
        content=content,
        headers={**known, "content-type": "application/json", **headers},
        timeout=30,
    )


def create(system: System, body: object, key: str, gateway: str = "gateway") -> httpx2.Response:
    return post(system, "/v1/runs", body, gateway=gateway, **{"idempotency-key": key})


def publish(system: System, **message: object) -> httpx2.Response:
    return post(system, "/v1/world/queue/publish", message)


def tell(system: System, run_id: str | None, event_type: str, **more: object) -> httpx2.Response:
    body = {"runId": run_id, "data": {"eventType": event_type, **more}}
    return post(system, "/v1/world/events/create", body)


def get(system: System, path: str, **asked: object) -> httpx2.Response:
    params: dict[str, Any] = asked
    return httpx2.get(system.url() + path, params=params, headers=KEY, timeout=30)


def until(system: System, run_id: str, status: str, within_s: float = 20) -> dict[str, Any]:
    result: dict[str, Any] = {}

    def stands() -> bool:
        result.update(get(system, f"/v1/runs/{run_id}").json())
        return bool(result["status"] == status)

    system.wait(stands, f"{run_id} to be {status}", within_s)
    return result


def instances_with(system: System, params: object) -> list[str]:
    """The instances that were started with something, in whatever workflow."""
    with psycopg.connect(system.dsn) as connection:
        rows = connection.execute(
            # Other tests' params may have what jsonb cannot hold.
            "select instance_id from workflow_instance where case "
            "when strpos(params::text, '\\u0000') = 0 then params::jsonb = %s::jsonb end",
            [json.dumps(params)],
        ).fetchall()
    return [instance_id for (instance_id,) in rows]


def remembered(system: System, key: str) -> dict[str, Any] | None:
    with psycopg.connect(system.dsn) as connection:
        row = connection.execute(
            "select state, response_run_id from idempotency where idempotency_key = %s", [key]
        ).fetchone()
    return None if row is None else {"state": row[0], "run_id": row[1]}


def problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert answer.json()["message"] == answer.json()["detail"]
    return answer.status_code, answer.json()["code"]
