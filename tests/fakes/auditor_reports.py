"""The topic `auditor` in memory."""

from collections.abc import Sequence

from headwater.schemas.auditor import AuditorFinding, AuditorReport
from headwater.streams.auditor.report_log import Latest


class MemoryReports:
    def __init__(self, report: AuditorReport | None = None) -> None:
        self.findings: list[AuditorFinding] = []
        self.report = report
        self.records = 0 if report is None else 1

    async def stop(self) -> None:
        pass

    async def end(self) -> int:
        return self.records

    async def latest(self) -> Latest:
        return Latest(self.report, self.records)

    async def publish(self, findings: Sequence[AuditorFinding], report: AuditorReport) -> int:
        self.findings += findings
        self.report = report
        self.records += len(findings) + 1
        return self.records
