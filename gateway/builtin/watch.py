"""What no record of a log shows: instances that are stuck, and consumer groups that lag."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headwater.processors.notifications import Notification, of_lag, of_stuck
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import stuck_instances
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.errors import HeadwaterError
from headwater.streams.kafka.lags import EndHistory, PartitionLag

_LOG: Final = logging.getLogger("headwater.endpoints")

#: Seconds that a record may wait for a consumer group, as the alerts for Prometheus have it.
LAG_MAX_S: Final = 300.0
#: Milliseconds that something may be late, beyond its own timeout: a restart of all workers.
STUCK_AFTER_MS: Final = 15 * 60 * 1_000
#: Lag of the projection of workflows with which rows are too old to judge instances by.
_PROJECTED_MAX_S: Final = 60.0
#: Milliseconds between two searches for stuck instances, which read all unfinished entries.
_SEARCH_EVERY_MS: Final = 5 * 60 * 1_000
_STUCK_MAX: Final = 100


class Watch:
    """Finds what is stuck or lags; reports it once, as long as it lasts.

    A process that has just started needs some minutes until it knows for how long a group has
    lagged, and reports again what its predecessor had reported.

    Args:
        lags: Returns the progress of all consumer groups.
        reader: Returns the reader of Postgres.
        clock: Returns Unix milliseconds.
    """

    def __init__(
        self,
        lags: Callable[[], Awaitable[Sequence[PartitionLag]]],
        reader: Callable[[], Awaitable[PooledReader]],
        clock: Callable[[], int],
    ) -> None:
        self._read_lags = lags
        self._reader = reader
        self._clock = clock
        self._ends = EndHistory()
        #: Groups and topics that lag, and ids of notifications about stuck instances.
        self._lagging: set[tuple[str, str]] = set()
        self._stuck: set[str] = set()
        self._searched_at_ms = 0
        self._failure = ""

    async def check(self) -> list[Notification]:
        """Return what began since the last check; what cannot be read is logged once."""
        now_ms, begun, failure = self._clock(), list[Notification](), ""
        try:
            lags = await self._read_lags()
            self._ends.observe(lags, now_ms / 1_000)
            begun += self._new_lags(lags, now_ms)
            if now_ms - self._searched_at_ms >= _SEARCH_EVERY_MS and self._is_projected(
                lags, now_ms
            ):
                begun += await self._new_stuck(now_ms)
                self._searched_at_ms = now_ms
        except HeadwaterError as error:
            failure = error.message
        if failure and failure != self._failure:
            _LOG.warning("stuck instances and lag cannot be checked: %s", failure)
        self._failure = failure
        return begun

    def _new_lags(self, lags: Sequence[PartitionLag], now_ms: int) -> list[Notification]:
        ages: dict[tuple[str, str], float] = {}
        records: dict[tuple[str, str], int] = {}
        for lag in lags:
            key = lag.group, lag.topic
            ages[key] = max(ages.get(key, 0.0), self._ends.age_s(lag, now_ms / 1_000))
            records[key] = records.get(key, 0) + lag.end - lag.position
        late = {key for key, age_s in ages.items() if age_s > LAG_MAX_S}
        begun = [
            of_lag(*key, records=records[key], seconds=round(ages[key]), now_ms=now_ms)
            for key in sorted(late - self._lagging)
        ]
        self._lagging = late
        return begun

    def _is_projected(self, lags: Sequence[PartitionLag], now_ms: int) -> bool:
        """Return whether rows of instances are current: those of long ago would all look stuck."""
        return all(
            self._ends.age_s(lag, now_ms / 1_000) < _PROJECTED_MAX_S
            for lag in lags
            if lag.group == WORKFLOWS.group
        )

    async def _new_stuck(self, now_ms: int) -> list[Notification]:
        rows = await stuck_instances(await self._reader(), now_ms - STUCK_AFTER_MS, _STUCK_MAX)
        stuck = [
            of_stuck(row.workflow, row.instance_id, row.run, row.since_ms, now_ms) for row in rows
        ]
        begun = [notification for notification in stuck if notification.id not in self._stuck]
        self._stuck = {notification.id for notification in stuck}
        return begun
