"""The nightly verification requests every projection once, and reports what differs."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headwater import WorkflowTest
from headwater.gateway.builtin import verify_workflow as module
from headwater.gateway.builtin.instances import VERIFY
from headwater.gateway.builtin.verify_workflow import verify_schedules, verify_workflow
from headwater.projections.postgres.connections import PooledReader


class Rebuilds(PooledReader):
    """What the projector makes of requests; the first of a projection finds another under way."""

    def __init__(self, results: dict[str, dict[str, Any]]) -> None:
        self.results = results
        self.requested: list[str] = []
        self.rows: dict[str, dict[str, Any]] = {}

    async def answers(self, query: bytes, **parameters: object) -> list[dict[str, Any]]:
        del query
        return [self.rows[name] for name in map(str, parameters.values()) if name in self.rows]

    async def writes(
        self, query: bytes, parameters: Mapping[str, Any], *, durable: bool = True
    ) -> list[dict[str, Any]]:
        del query, durable
        projection, name = parameters["projection"], parameters["id"]
        assert parameters["verify"]
        self.requested.append(projection)
        if self.requested.count(projection) > 1:
            self.rows[name] = {
                "id": name, "projection": projection, "version": None, "dry_run": False,
                "state": "verified", "applied": 1, "total": 1, "added": 0, "removed": 0,
                "changed": 0, "examples": [], "ends": [], "sent": 0, "error": "",
                "created_at": "2026-07-01T00:00:00Z", **self.results.get(projection, {}),
            }  # fmt: skip
        return []


def test_every_projection_is_verified_and_what_differs_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_POLL_EVERY_S", 0)
    reader = Rebuilds({"users": {"changed": 2}, "x": {"state": "failed", "error": "no table"}})

    async def opened() -> PooledReader:
        return reader

    async def scenario() -> None:
        workflow = verify_workflow(opened, ["daily_summary", "users", "x"])
        async with WorkflowTest([workflow]) as test:
            instance = await test.create(VERIFY, id="v", params={})
            await test.run_until_idle()
            differing = {
                "users": {"added": 0, "removed": 0, "changed": 2},
                "x": {"failed": "no table"},
            }
            output = (await instance.status()).output
            assert output == {"projections": 3, "differing": differing}
            lines = (await instance.history()).logs
            assert [line.data["projection"] for line in lines] == ["users", "x"]

    asyncio.run(scenario())
    assert reader.requested == [name for name in ("daily_summary", "users", "x") for _ in range(2)]
    assert sorted(reader.rows) == ["v-daily_summary", "v-users", "v-x"]


def test_the_schedule_can_be_turned_off() -> None:
    (schedule,) = verify_schedules("0 2 * * *")
    assert schedule.declared.workflow == VERIFY
    assert verify_schedules("") == ()
