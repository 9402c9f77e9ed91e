"""What a worker looks for: groups that lag, and instances that are stuck."""

import asyncio
from typing import Any

from headwater.gateway.builtin.watch import Watch
from headwater.processors.notifications import Notification
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.errors import BrokerUnavailable, StoreUnavailable
from headwater.streams.kafka.lags import PartitionLag

MINUTE_MS = 60_000


class System(PooledReader):
    """Lags and rows that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 100 * MINUTE_MS
        self.lags: list[PartitionLag] = []
        self.rows: list[dict[str, Any]] = []
        self.searches = 0
        self.error: Exception | None = None
        self.watch = Watch(self.read_lags, self.reader, lambda: self.now_ms)

    async def read_lags(self) -> list[PartitionLag]:
        if self.error is not None:
            raise self.error
        return self.lags

    async def reader(self) -> PooledReader:
        return self

    async def answers(self, query: bytes, **parameters: object) -> list[dict[str, Any]]:
        assert b"due_at" in query
        assert parameters["before_ms"] == self.now_ms - 15 * MINUTE_MS
        self.searches += 1
        return self.rows

    def after(self, minutes: int) -> list[Notification]:
        """The notifications of a check after so many minutes, with one a minute."""
        begun = []
        for _ in range(minutes):
            self.now_ms += MINUTE_MS
            begun += asyncio.run(self.watch.check())
        return begun


def lag(position: int, end: int, group: str = "headwater") -> PartitionLag:
    return PartitionLag(group, "webhooks", 0, position, end)


def stuck(name: str, since_ms: int) -> dict[str, Any]:
    return {"workflow": "order", "instance_id": name, "run": 0, "since_ms": since_ms}


def test_a_group_that_lags_is_reported_once():
    system = System()
    system.lags = [lag(10, 10)]
    assert not system.after(2)
    system.lags = [lag(10, 12)]
    (notification,) = system.after(10)
    assert notification.type == "lag"
    assert notification.data["records"] == 2
    assert 300 < notification.data["seconds"] <= 420
    system.lags = [lag(12, 12)]
    assert not system.after(2)
    system.lags = [lag(12, 13)]
    (again,) = system.after(10)
    assert again.id != notification.id


def test_a_group_that_makes_progress_does_not_lag():
    system = System()
    for number in range(20):
        system.lags = [lag(100 * number, 100 * (number + 1))]
        assert not system.after(1)


def test_an_instance_is_stuck_once():
    system = System()
    system.rows = [stuck("o-1", 5)]
    (notification,) = system.after(1)
    assert notification.type == "instance_stuck"
    assert notification.data == {
        "workflow": "order", "id": "o-1", "run": 0, "since": "1970-01-01T00:00:00.005Z",
    }  # fmt: skip
    system.rows.append(stuck("o-2", 6))
    assert [one.data["id"] for one in system.after(10)] == ["o-2"]
    assert system.searches == 3, "one in five minutes"


def test_rows_that_are_old_show_nothing():
    system = System()
    system.rows = [stuck("o-1", 5)]
    system.lags = [lag(10, 10, WORKFLOWS.group)]
    assert system.after(1)
    system.lags, system.rows = [lag(10, 12, WORKFLOWS.group)], [stuck("o-2", 5)]
    assert [one.type for one in system.after(20)] == ["lag"]
    system.lags = [lag(12, 12, WORKFLOWS.group)]
    assert [one.data["id"] for one in system.after(1)] == ["o-2"]


def test_what_cannot_be_read_shows_nothing():
    system = System()
    for error in (BrokerUnavailable("away"), StoreUnavailable("away")):
        system.error = error
        assert not system.after(2)
    system.error, system.rows = None, [stuck("o-1", 5)]
    assert system.after(1)
