"""Metrics of the whole system, which a gateway reads from Kafka and Postgres."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from typing_extensions import override

from headwater.gateway.api import system_metrics
from headwater.gateway.api.system_metrics import SystemMetrics
from headwater.monitoring import catalog
from headwater.projections.deliveries.quality import ConnectionCount, ConnectionStates
from headwater.projections.postgres.connections import PooledReader, Row
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import BrokerUnavailable, StoreUnavailable
from headwater.streams.kafka.lags import PartitionLag

NOWHERE = "postgresql://headwater@127.0.0.1:1/headwater"


class KnownRows(PooledReader):
    """A reader with rows for some statements, and nothing else."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, connect_timeout_s=0.1)
        self.away = False

    @override
    def with_own_pool(self, statement_timeout_s: float = 0) -> "KnownRows":
        return self

    @override
    async def answers(self, query: bytes, **parameters: object) -> list[Row]:
        if self.away:
            raise StoreUnavailable("expected Postgres, found none")
        if b"count(*) as instances" in query:
            count = {"workflow": "order", "status": "errored", "instances": 2, "built_in": False}
            return [count]
        if b"count(*) as dead_letters" in query:
            return [{"stage": "intake", "reason": "no_user", "dead_letters": 3}]
        if query == statement("queues"):
            return [{"name": "order", "waiting": 7}]
        return []


async def connections() -> ConnectionStates:
    count = ConnectionCount(provider="garmin", state="silent", connections=4)
    return ConnectionStates(connections=[count], counted_at=datetime(2026, 7, 1, tzinfo=UTC))


LABELS = ("headwater", "webhooks", "0")


def test_the_last_numbers_stay_while_kafka_or_postgres_is_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system_metrics, "_LAGS_S", 0.0)
    answers: list[Sequence[PartitionLag] | None] = [
        [PartitionLag("headwater", "webhooks", 0, 5, 9)],
        None,
        [PartitionLag("headwater", "webhooks", 0, 9, 9)],
    ]

    async def read_lags() -> Sequence[PartitionLag]:
        lags = answers.pop(0)
        if lags is None:
            raise BrokerUnavailable("expected Kafka, found none")
        return lags

    async def scenario() -> None:
        reader = KnownRows()
        system = SystemMetrics(reader, read_lags, connections)
        await system.measure()
        assert catalog.LAG_RECORDS.values()[LABELS] == 4
        assert catalog.COMMITTED_OFFSET.values()[LABELS] == 5
        reader.away = True
        await system.measure()
        assert catalog.LAG_RECORDS.values()[LABELS] == 4
        assert catalog.WORKFLOW_INSTANCES.values() == {("order", "errored"): 2}
        assert catalog.DEAD_LETTERS_OPEN.values() == {("intake", "no_user"): 3}
        assert catalog.QUEUE_MESSAGES.values() == {("order",): 7}
        await system.measure()
        assert catalog.LAG_RECORDS.values()[LABELS] == 0
        assert catalog.LAG_SECONDS.values()[LABELS] == 0
        assert catalog.CONNECTIONS.values() == {("garmin", "silent"): 4}
        assert catalog.CONNECTIONS_COUNTED.values() == {(): 1782864000}

    asyncio.run(scenario())


def test_without_kafka_there_is_no_lag_and_no_error():
    async def scenario() -> None:
        catalog.CONNECTIONS.replace({})
        await SystemMetrics(KnownRows(), None, connections).measure()
        assert catalog.CONNECTIONS.values() == {("garmin", "silent"): 4}

    asyncio.run(scenario())
