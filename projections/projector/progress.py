"""Progress of a projection, as monitors see it: whether it has caught up, its lag and its age."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from headwater.monitoring.catalog import (
    PROJECTED,
    PROJECTION_AGE,
    PROJECTION_LAG,
    PROJECTION_REFUSED,
    STAGE_SECONDS,
)
from headwater.monitoring.monitor import OK, Monitor
from headwater.projections.projector.projection import Batch, Partition


class _Start(NamedTuple):
    """The log of a partition when it was assigned: its first offset, and its end."""

    first: int
    end: int


class Progress:
    """Progress of one projection.

    It is ready when it has applied what the log had when its partitions were assigned.

    Args:
        name: Name of the projection.
        positions: Next offset of each assigned partition.
        lags: Returns the records of each assigned partition that are not applied.
        clock: Returns Unix milliseconds.

    Attributes:
        problem: What it waits for, other than records.
    """

    def __init__(
        self,
        name: str,
        positions: Mapping[Partition, int],
        lags: Callable[[], Mapping[Partition, int]],
        clock: Callable[[], int],
    ) -> None:
        self.problem = ""
        self._name = name
        self._positions = positions
        self._lags = lags
        self._clock = clock
        self._assigned: Collection[Partition] | None = None
        self._starts: dict[Partition, _Start] = {}
        #: Time before which every record of a partition is applied, in Unix milliseconds.
        self._applied_ms: dict[Partition, int] = {}

    def report_to(self, monitor: Monitor) -> None:
        """Have a monitor see the progress."""
        monitor.ready_when(lambda: {self._name: self.state()})
        monitor.measure(self._measure)

    def assign(self, partitions: Collection[Partition] | None) -> None:
        """Record the assigned partitions; None without a consumer."""
        self._assigned = None if partitions is None else tuple(partitions)
        self._starts.clear()
        self._applied_ms.clear()

    def begin(self, partition: Partition, first: int, end: int) -> None:
        """Record the first offset and the end of a partition that is read from now on."""
        self._starts[partition] = _Start(first, end)

    def applied(self, batch: Batch, records: int, refused: int, seconds: float) -> None:
        """Record a batch that was applied.

        Args:
            batch: The batch.
            records: Number of records in it that were new.
            refused: How many of them were refused.
            seconds: How long Postgres took.
        """
        name = self._name
        PROJECTED.add((name,), records)
        if refused:
            PROJECTION_REFUSED.add((name,), refused)
        if records and batch.times:
            oldest_ms = min(first for first, _ in batch.times.values())
            waited_s = max(0, self._clock() - oldest_ms) / 1_000
            STAGE_SECONDS.observe(waited_s, (f"projection {name}",), records)
            STAGE_SECONDS.observe(seconds, (f"projection {name}: apply",))
        for partition, (_, last_ms) in batch.times.items():
            self._applied_ms[partition] = last_ms

    def lag(self, partition: Partition, end: int) -> int:
        """Return how many records of a partition are not applied.

        Args:
            partition: The partition.
            end: End of its log in the latest fetch; 0 before the first.
        """
        first, end_before = self._starts.get(partition, _Start(0, 0))
        return max(0, max(end, end_before) - max(self._positions.get(partition, 0), first))

    def state(self) -> str:
        """Return `ok`, or what the projection waits for."""
        if self.problem:
            return "waiting for Kafka or Postgres"
        if self._assigned is None:
            return "waiting for an assignment"
        starts = self._starts.copy()
        behind = [
            partition
            for partition in self._assigned
            if partition not in starts
            or max(self._positions.get(partition, 0), starts[partition].first)
            < starts[partition].end
        ]
        return f"{len(behind)} of {len(self._assigned)} partitions to catch up" if behind else OK

    def _measure(self) -> None:
        now_ms, oldest_ms = self._clock(), 0
        lags = self._lags()
        for partition, lag in lags.items():
            if lag:
                since_ms = self._applied_ms.setdefault(partition, now_ms)
                oldest_ms = max(oldest_ms, now_ms - since_ms)
            else:
                self._applied_ms[partition] = now_ms
        PROJECTION_LAG.set(sum(lags.values()), (self._name,))
        PROJECTION_AGE.set(oldest_ms / 1_000, (self._name,))
