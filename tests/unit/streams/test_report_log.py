"""The latest report is read, also if findings follow it because their own was not appended."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from headwater.schemas.auditor import AuditorFinding, AuditorReport, Law
from headwater.schemas.codec import encode
from headwater.schemas.topics import AUDITOR
from headwater.streams.auditor import report_log
from headwater.streams.auditor.report_log import ReportLog
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Incoming, Outgoing
from tests.unit.gateway.test_auditor_commands import REPORT


def report_of(name: str) -> AuditorReport:
    return msgspec.structs.replace(REPORT, auditor=name)


def log_of(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> ReportLog:
    """A topic of reports by name, and of findings without one."""
    finding = AuditorFinding(
        law=Law.LOG_CUT, subject="s", detail="d", first_seen_ms=1, last_seen_ms=1
    )
    records = [
        Outgoing(AUDITOR, 0, b"report", encode(report_of(name))).as_read()
        if name
        else Outgoing(AUDITOR, 0, b"finding/s", encode(finding)).as_read()
        for name in names
    ]

    async def read(
        _cluster: Cluster, _topics: Sequence[str], _partition: int, *, start: int, end: int
    ) -> AsyncIterator[list[Incoming]]:
        if start < end:
            yield records[start:end]

    async def end() -> int:
        return len(records)

    monkeypatch.setattr(report_log, "read_partition", read)
    reports = ReportLog(Cluster("nowhere:1"), "any")
    monkeypatch.setattr(reports, "end", end)
    return reports


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["", ""], None),
        (["a", "b"], "b"),
        (["a", "b", ""], "b"),
        (["a", *[""] * 100], "a"),
        (["a", *[""] * 3, "b", *[""] * 5], "b"),
    ],
)
def test_the_latest_report_is_read(
    monkeypatch: pytest.MonkeyPatch, names: list[str], expected: str | None
):
    latest = asyncio.run(log_of(monkeypatch, names).latest())
    assert latest.end == len(names)
    assert (latest.report.auditor if latest.report else None) == expected
