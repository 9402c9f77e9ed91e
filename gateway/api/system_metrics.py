"""Metrics of the whole system, which a gateway reads from Kafka and Postgres when it is asked.

All gateways have the same numbers. They exist without the process that they are about: the lag of
a group without members, and the errored instances of workers that are down.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from headwater.gateway.api.background_query import BackgroundQuery
from headwater.gateway.api.monitoring import CachedQuery
from headwater.monitoring.catalog import (
    COMMITTED_OFFSET,
    CONCURRENCY_RUNS,
    CONNECTIONS,
    CONNECTIONS_COUNTED,
    DEAD_LETTERS_OPEN,
    LAG_RECORDS,
    LAG_SECONDS,
    WORKFLOW_INSTANCES,
)
from headwater.projections.deliveries.quality import ConnectionStates
from headwater.projections.deliveries.queries import DeadLetterCount, dead_letter_counts
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import InstanceCount, instance_counts
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import BrokerUnavailable, StoreUnavailable
from headwater.streams.clock import monotonic
from headwater.streams.kafka.lags import EndHistory, PartitionLag

log = logging.getLogger(__name__)

#: Seconds for which numbers of Kafka are current, and of Postgres, where counting costs more.
_LAGS_S: Final = 10.0
_COUNTS_S: Final = 60.0
#: Seconds that a monitor waits for Kafka; then the previous numbers stay.
_WITHIN_S: Final = 4.0


class _Counts(NamedTuple):
    """What is counted in Postgres."""

    instances: Sequence[InstanceCount] = ()
    letters: Sequence[DeadLetterCount] = ()


#: Returns the progress of all consumer groups.
ReadLags = Callable[[], Awaitable[Sequence[PartitionLag]]]


class SystemMetrics:
    """Metrics of the whole system.

    Args:
        reader: Names the database; connections are its own.
        read_lags: Returns the progress of all consumer groups; None without Kafka.
        connections: Returns the latest states of connections within seconds.
    """

    def __init__(
        self,
        reader: PooledReader,
        read_lags: ReadLags | None,
        connections: Callable[[], Awaitable[ConnectionStates]],
    ) -> None:
        self._reader = reader.with_own_pool()
        self._read_lags = read_lags
        self._history = EndHistory()
        self._lags = CachedQuery(self._renew_lags, for_s=_LAGS_S)
        self._slots = CachedQuery(partial(_slots, Workflows(self._reader)))
        self._connections = connections
        self._counts = BackgroundQuery(
            self._count, _Counts(), what="instances and dead letters", current_s=_COUNTS_S
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the connections while the context is open."""
        async with self._reader:
            try:
                yield
            finally:
                await self._counts.stop()

    async def measure(self) -> None:
        """Set the metrics. Numbers that cannot be read stay as they were."""
        counts, states, slots, _ = await asyncio.gather(
            self._counts.latest(), self._connections(), self._slots.get(), self._lags.get()
        )
        WORKFLOW_INSTANCES.replace(
            {(count.workflow, count.status): count.instances for count in counts.instances}
        )
        DEAD_LETTERS_OPEN.replace(
            {(count.stage, count.reason): count.dead_letters for count in counts.letters}
        )
        CONNECTIONS.replace(
            {(count.provider, count.state): count.connections for count in states.connections}
        )
        CONNECTIONS_COUNTED.set(states.counted_at.timestamp() if states.counted_at else 0)
        CONCURRENCY_RUNS.replace(
            {
                (workflow, state): number
                for workflow, numbers in slots.items()
                for state, number in zip(("running", "waiting"), numbers, strict=True)
            }
        )

    async def _count(self) -> "_Counts":
        """Count one after the other: there is one connection."""
        return _Counts(await instance_counts(self._reader), await dead_letter_counts(self._reader))

    async def _renew_lags(self) -> None:
        if self._read_lags is None:
            return
        try:
            async with asyncio.timeout(_WITHIN_S):
                lags = await self._read_lags()
        except (BrokerUnavailable, TimeoutError) as error:
            log.debug("lag is not read: %s", error)
            return
        now_s = monotonic()
        self._history.observe(lags, now_s)
        by_labels = {(lag.group, lag.topic, str(lag.partition)): lag for lag in lags}
        COMMITTED_OFFSET.replace({labels: lag.position for labels, lag in by_labels.items()})
        LAG_RECORDS.replace(
            {labels: max(0, lag.end - lag.position) for labels, lag in by_labels.items()}
        )
        LAG_SECONDS.replace(
            {labels: self._history.age_s(lag, now_s) for labels, lag in by_labels.items()}
        )


async def _slots(workflows: Workflows) -> Mapping[str, tuple[int, int]]:
    """Return runs with a slot and waiting runs by workflow; empty while Postgres is down."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await workflows.slots()
    except (StoreUnavailable, TimeoutError):
        return {}
