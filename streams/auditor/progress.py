"""Which auditor works, and which deliveries the pipeline has passed."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from headwater.schemas.auditor import AuditorReport
from headwater.schemas.topics import UNRESOLVED, WEBHOOKS
from headwater.streams.auditor.report_log import Latest, ReportLog
from headwater.streams.kafka.consumer_groups import committed_offsets
from headwater.streams.kafka.readers import Offsets

log = logging.getLogger("headwater.auditor")

#: Seconds without a new report after which another auditor takes over.
STANDBY_S: Final = 300.0


class Turn:
    """Decides whether this auditor works, by the latest report.

    Args:
        reports: The reports.
        name: Name of this auditor.

    Attributes:
        is_mine: Whether this auditor works.
        end: End offset of the topic after the report that it wrote or continued from.
        sent_ms: Time of the latest report that it sent, whether or not that was acknowledged.
    """

    def __init__(self, reports: ReportLog, name: str) -> None:
        self._reports = reports
        self._name = name
        self.is_mine = False
        self.end = -1
        self.sent_ms = self._known_ms = -1
        self._seen_end = -1
        self._seen_s = 0.0

    def sent(self, end: int) -> None:
        """Note that the latest report was acknowledged, by the end offset after it."""
        self.end, self._known_ms = end, self.sent_ms

    async def take(self) -> Latest | None:
        """Return the report to continue from if this auditor begins to work now; else None.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        if self.is_mine and await self._reports.end() == self.end:
            return None
        latest = await self._reports.latest()
        now_s = asyncio.get_running_loop().time()
        if latest.end != self._seen_end:
            self._seen_end, self._seen_s = latest.end, now_s
        was_mine, owner = self.is_mine, "" if latest.report is None else latest.report.auditor
        self.is_mine = self._is_own(latest.report) or now_s - self._seen_s >= STANDBY_S
        if not self.is_mine:
            if was_mine or self._seen_s == now_s:
                log.info("standing by: %s verifies the log", owner)
            return None
        # What this process knows is newer than its report, of which it may have got no answer.
        is_newer = was_mine and (latest.report is None or self._has_sent(latest.report))
        self.end = latest.end
        if latest.report is not None:
            self._known_ms = latest.report.at_ms
        return None if is_newer else latest

    def _is_own(self, report: AuditorReport | None) -> bool:
        # A process that begins takes over from one of its name, which has ended or will stand by.
        return (
            report is None
            or not report.auditor
            or (report.auditor == self._name and (self.end == -1 or self._has_sent(report)))
        )

    def _has_sent(self, report: AuditorReport) -> bool:
        return report.auditor == self._name and report.at_ms in (self.sent_ms, self._known_ms)


class _Pass(NamedTuple):
    """Offsets that the pipeline had committed, and ends of hops afterwards, by partition."""

    committed: Mapping[int, int]
    hops: Mapping[int, int]


class Passing:
    """Up to where the pipeline has processed deliveries, including their hops to other partitions.

    The pipeline commits an offset when all results are durable. One of them may be a hop, which
    another partition processes: so its offsets count as soon as the hops that there were after
    the commit are committed, too.

    Args:
        offsets: Offsets of the pipeline's consumer group.
    """

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._pending: _Pass | None = None
        self._passed: Mapping[int, int] = {}

    def forget(self) -> None:
        """Forget all offsets: a topic was cut."""
        self._pending, self._passed = None, {}

    async def passed(self, *, wanted: bool) -> Mapping[int, int]:
        """Return by partition of `webhooks` the offset before which deliveries have an outcome.

        Args:
            wanted: Whether later offsets than the last result are of interest.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        if not wanted:
            return self._passed
        committed = await self._offsets.query(self._committed)
        ends = await self._offsets.ends_of([WEBHOOKS, UNRESOLVED])
        hops = committed[UNRESOLVED]
        if self._pending is not None and all(
            hops.get(partition, 0) >= end for partition, end in self._pending.hops.items()
        ):
            self._passed, self._pending = self._pending.committed, None
        if self._pending is None:
            end_of = dict(enumerate(ends.get(WEBHOOKS, ())))
            self._pending = _Pass(
                # An offset beyond the end is of another log.
                {
                    partition: offset
                    for partition, offset in committed[WEBHOOKS].items()
                    if offset <= end_of.get(partition, 0)
                },
                dict(enumerate(ends.get(UNRESOLVED, ()))),
            )
            if all(hops.get(partition, 0) >= end for partition, end in self._pending.hops.items()):
                self._passed, self._pending = self._pending.committed, None
        return self._passed

    @staticmethod
    async def _committed(consumer: AIOKafkaConsumer) -> Mapping[str, Mapping[int, int]]:
        metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 (no public way)
        partitions = [
            TopicPartition(topic, partition)
            for topic in (WEBHOOKS, UNRESOLVED)
            for partition in metadata.partitions_for_topic(topic) or ()
        ]
        offsets: dict[str, dict[int, int]] = {WEBHOOKS: {}, UNRESOLVED: {}}
        for tp, position in (await committed_offsets(consumer, *partitions)).items():
            offsets[tp.topic][tp.partition] = position.offset
        return offsets
