"""The topic `auditor`: findings, and the report, which always is the last record."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from headwater.processors.auditor.findings import finding_key
from headwater.schemas.auditor import AuditorFinding, AuditorReport
from headwater.schemas.codec import decode, encode
from headwater.schemas.topics import AUDITOR
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Outgoing

#: The only partition that has records.
PARTITION: Final = 0
_REPORT_KEY: Final = b"report"
_STOP_S: Final = 5.0
#: Factor by which more records are read as long as there is no report among them.
_FURTHER_BACK: Final = 8


class Latest(NamedTuple):
    """The latest report, and the end offset of the topic; None if there is none."""

    report: AuditorReport | None
    end: int


class ReportLog:
    """Reads and writes the topic; connects at first use.

    Args:
        cluster: The cluster.
        client_id: Name of the client.
    """

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._cluster = cluster
        self._offsets = Offsets(cluster, client_id)
        self._appender = Appender(cluster=cluster, client_id=client_id)

    async def stop(self) -> None:
        """Disconnect."""
        await self._offsets.stop()
        await self._appender.stop(_STOP_S)

    async def end(self) -> int:
        """Return the end offset of the topic.

        Raises:
            BrokerUnavailable: No broker answered, or the topic is missing.
        """
        return (await self._offsets.ends([AUDITOR], PARTITION))[AUDITOR]

    async def latest(self) -> Latest:
        """Return the latest report.

        Raises:
            BrokerUnavailable: No broker answered, or the topic is missing.
            UnknownSchema: A newer release wrote it.
        """
        end = await self.end()
        start = max(0, end - 1)
        report = await self._last_report(start, end)
        # Findings are last if the report after them was not appended.
        while report is None and start:
            start = max(0, end - _FURTHER_BACK * (end - start))
            report = await self._last_report(start, end)
        return Latest(report, end)

    async def _last_report(self, start: int, end: int) -> AuditorReport | None:
        report = None
        reading = read_partition(self._cluster, [AUDITOR], PARTITION, start=start, end=end)
        async with aclosing(reading) as batches:
            async for records in batches:
                for record in records:
                    if record.key == _REPORT_KEY and record.value is not None:
                        report = decode(record.value, AuditorReport)
        return report

    async def publish(self, findings: Sequence[AuditorFinding], report: AuditorReport) -> int:
        """Append findings and then the report; return the end offset after it.

        Raises:
            BrokerUnavailable: They may have been appended all the same.
        """
        records = [
            Outgoing(
                AUDITOR,
                PARTITION,
                f"finding/{finding_key(finding.law, finding.subject)}".encode(),
                encode(finding),
            )
            for finding in findings
        ]
        # A batch of its own: the last record of the topic is a report.
        if records:
            await self._appender.append_or_stop(records)
        last = Outgoing(AUDITOR, PARTITION, _REPORT_KEY, encode(report))
        ((_, offset),) = await self._appender.append_or_stop([last])
        return offset + 1
