"""The harness's database keeps the contract that Postgres keeps."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headwater.schemas.history import Failure
from headwater.streams.harness.step_effects import MemoryDatabase
from tests.fakes.step_sql import TABLE, Run, Scenario, StepSqlContract, returned


class MemoryPlace:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def run(self, *statements: Sequence[Any]) -> Failure | None:
        return self._database.commit(returned(*statements))

    async def rows(self, columns: str = "id, amount") -> list[tuple[Any, ...]]:
        return self._database.execute(f"SELECT {columns} FROM charges ORDER BY id")  # noqa: S608


class TestMemoryDatabase(StepSqlContract):
    @pytest.fixture
    def run(self) -> Run:
        async def within(scenario: Scenario) -> None:
            database = MemoryDatabase()
            database.execute(TABLE)
            await scenario(MemoryPlace(database))
            database.close()

        return lambda scenario: asyncio.run(within(scenario))
