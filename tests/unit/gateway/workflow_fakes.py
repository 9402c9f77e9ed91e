"""What the workflow service speaks to, in memory: commands with scripted outcomes, and rows."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headwater.processors.rows.answers import status_of
from headwater.projections.workflows.answers import (
    Changed,
    Changes,
    LocatedInstance,
    instance_of,
)
from headwater.projections.workflows.queries import FOLLOWED
from headwater.schemas.answers import StatusOfRun
from headwater.schemas.history import HistoryAppended, MoveRun, ReplySent
from headwater.streams.workflows.client import Addressed

AT = datetime(2026, 7, 1, 8, tzinfo=UTC)
LEASE_UNTIL_MS = 1_767_225_600_000


def reply(**changes: object) -> ReplySent:
    fields: dict[str, Any] = {
        "command_id": "c",
        "code": "",
        "message": "",
        "status": "active",
        "run_number": 0,
        "partition": 1,
        "position": 7,
        "lease_until_ms": LEASE_UNTIL_MS,
    }
    return ReplySent(**(fields | changes))


class MemoryCommands:
    """Remembers what was sent; `answer` says what comes of each command, or raises."""

    def __init__(self) -> None:
        self.ready = False
        self.sent: list[Addressed] = []
        self.answer: Callable[[Addressed], ReplySent] = lambda _: reply()

    async def start(self) -> None:
        self.ready = True

    async def stop(self) -> None:
        self.ready = False

    def one_per_partition(self) -> list[Addressed]:
        return [Addressed("headwater-fence", str(number), MoveRun("active")) for number in range(2)]

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        self.sent += commands
        return [self.answer(command) for command in commands]


def row(**changes: object) -> dict[str, Any]:
    """An instance as the query of one gives it."""
    columns: dict[str, Any] = {
        "workflow_name": "order",
        "instance_id": "a",
        "run_number": 0,
        "status": "active",
        "params": "null",
        "output": None,
        "error_name": None,
        "error_message": None,
        "error_detail": None,
        "parent_workflow_name": None,
        "parent_instance_id": None,
        "parent_run_number": None,
        "parent_step_key": None,
        "deployment_id": None,
        "labels": {},
        "created_at": AT,
        "updated_at": AT,
        "started_at": AT,
        "completed_at": None,
        "partition": 1,
        "offset": 7,
        "current_step": None,
        "current_tokens": None,
        "awaited_slot": None,
    }
    return columns | changes


def instance(**changes: object) -> LocatedInstance:
    return instance_of(row(**changes))


def status(**changes: object) -> StatusOfRun:
    return status_of(row(**changes))


class MemoryRuns:
    """The records of runs, by the keys of their instances."""

    def __init__(self) -> None:
        self.records: dict[str, list[HistoryAppended]] = {}

    async def read(
        self, _partition: int, _start: int, key: str
    ) -> AsyncGenerator[list[HistoryAppended]]:
        for record in self.records.get(key, []):
            yield [record]

    async def read_many(
        self, partition: int, starts: Mapping[str, int], within_s: float
    ) -> AsyncGenerator[list[HistoryAppended]]:
        if within_s <= 0:
            raise TimeoutError
        for key, start in starts.items():
            async for records in self.read(partition, start, key):
                yield records


class MemoryTail:
    """An instance whose changes are put here one by one."""

    def __init__(self, row: LocatedInstance) -> None:
        self.row = row
        self.log: list[tuple[int, Any]] = []
        self.next = row.offset + 1
        self.page = 100
        self.asked: list[int] = []
        self.error: Exception | None = None

    def put(self, row: object, offset: int | None = None) -> None:
        offset = self.next if offset is None else offset
        self.log.append((offset, row))
        self.next = offset + 1

    async def next_offsets(self) -> dict[int, int]:
        return {self.row.partition: self.next}

    async def changes(
        self, _workflow: str, _instance: str, after: int, *, names: frozenset[str] = FOLLOWED
    ) -> Changes:
        assert names == FOLLOWED
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.asked.append(after)
        result = [(offset, row) for offset, row in self.log if offset > after]
        shown = result[: self.page]
        last = shown[-1][0] if len(result) > len(shown) else max(after, self.next - 1)
        return Changes(
            run_number=0,
            run_offset=0,
            rows=tuple(Changed(offset=offset, row=row) for offset, row in shown),
            offset=last,
            more=len(result) > len(shown),
        )
