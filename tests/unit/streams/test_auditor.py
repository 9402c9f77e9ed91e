"""Goal: the auditor reads real records, publishes, continues, and lets one work at a time.

Method: its rounds over a Kafka in memory, with stand-ins for offsets and reports only.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndTimestamp

from headwater.monitoring.catalog import AUDITOR_DELIVERIES, AUDITOR_FINDINGS
from headwater.processors.auditor.state import RowState
from headwater.schemas.auditor import AuditorFinding, AuditorReport, Law
from headwater.schemas.codec import encode
from headwater.schemas.epochs import CLAIM, CLAIM_KEY, EPOCH
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import OutcomeRecorded, WebhookReceived
from headwater.schemas.topics import OUTCOMES, UNRESOLVED, WEBHOOKS, WORKFLOW_SNAPSHOTS
from headwater.streams.auditor import auditor as module
from headwater.streams.auditor.auditor import Auditor
from headwater.streams.auditor.progress import Passing, Turn
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Cut, Span
from headwater.streams.kafka.records import Incoming
from tests.fakes.auditor_reports import MemoryReports

NOW_MS = 1_783_000_000_000
ID = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
OWNER = ((EPOCH, b"3"),)


def delivery(event_id: str) -> WebhookReceived:
    return WebhookReceived(
        event_id=event_id,
        request_id="r",
        source="terra",
        type="daily",
        subject="t1",
        sent_at_ms=NOW_MS,
        updated_at_ms=0,
        received_at_ms=NOW_MS,
        body=b"{}",
    )


def outcome(event_id: str, offset: int, status: str = "processed") -> OutcomeRecorded:
    return OutcomeRecorded(
        event_id=event_id,
        request_id="r",
        source="terra",
        type="daily",
        subject="t1",
        status=status,
        reason="",
        rows=1,
        partition=0,
        offset=offset,
        received_at_ms=NOW_MS,
        admitted_at_ms=NOW_MS,
        at_ms=NOW_MS,
        stage="intake",
        position=f"webhooks/0@{offset}",
    )


class MemoryTopics:
    """Topics of one partition each, and the offsets that the pipeline has committed."""

    def __init__(self) -> None:
        self.records: dict[str, list[Incoming]] = {WEBHOOKS: [], OUTCOMES: [], UNRESOLVED: []}
        self.committed: dict[str, int] = {}

    def add(
        self,
        topic: str,
        key: str,
        value: Any = None,  # noqa: ANN401 (any record)
        headers: Sequence[tuple[str, bytes]] = (),
        at_ms: int = NOW_MS,
    ) -> None:
        records = self.records[topic]
        data = None if value is None else encode(value)
        size = len(data or b"")
        record = Incoming(
            topic, 0, len(records), at_ms, 0, key.encode(), data, None, 0, size, tuple(headers)
        )
        records.append(record)

    def receive(self, event_id: str) -> None:
        self.add(WEBHOOKS, event_id, delivery(event_id))
        self.committed[WEBHOOKS] = len(self.records[WEBHOOKS])

    async def read(
        self, _cluster: Cluster, spans: Mapping[TopicPartition, Span]
    ) -> AsyncIterator[tuple[list[Incoming], int]]:
        for tp, span in spans.items():
            records = self.records[tp.topic][span.start : span.end]
            if records:
                yield records, 0

    # -- offsets

    async def ends_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return {name: (len(self.records[name]),) for name in topics if name in self.records}

    async def begins_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return {name: (0,) for name in topics if name in self.records}

    async def cut_before(
        self, _topic: str, _partition: int, _offset: int, _epoch: int
    ) -> Cut | None:
        return None

    async def query(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401 (any)
        if ask is not Passing._committed:
            return await ask(self)
        return {
            topic: {0: self.committed[topic]} if topic in self.committed else {}
            for topic in (WEBHOOKS, UNRESOLVED)
        }

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {
            tp: next(
                (
                    OffsetAndTimestamp(record.offset, record.timestamp)
                    for record in self.records[tp.topic]
                    if record.timestamp >= at_ms
                ),
                None,
            )
            for tp, at_ms in times.items()
        }

    async def stop(self) -> None:
        pass


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> MemoryTopics:
    topics = MemoryTopics()
    monkeypatch.setattr(module, "read_spans", topics.read)
    monkeypatch.setattr(module, "_CHECK_PAUSE_S", 0.0)
    return topics


def auditor_of(topics: MemoryTopics, reports: MemoryReports, name: str = "one") -> Auditor:
    auditor = Auditor(
        cluster=Cluster("nowhere:1"),
        group="headwater",
        name=name,
        park_for_ms=1_000,
        may_recur=lambda _: False,
        clock=lambda: NOW_MS,
    )
    auditor._offsets = topics  # type: ignore[assignment]
    auditor._reports = reports  # type: ignore[assignment]
    auditor._turn = Turn(reports, name)  # type: ignore[arg-type]
    auditor._passing = Passing(topics)  # type: ignore[arg-type]
    return auditor


async def rounds(auditor: Auditor, number: int = 2) -> list[str]:
    """The open findings after some rounds."""
    for _ in range(number):
        await auditor.round()
    return [finding.law for finding in auditor.state.findings.open.values()]


def test_a_lost_delivery_is_found_and_ends_when_it_has_its_outcome(topics: MemoryTopics):
    reports = MemoryReports()

    async def audit() -> None:
        auditor = auditor_of(topics, reports)
        for offset, name in enumerate((ID, OTHER)):
            topics.receive(name)
            if name == ID:
                topics.add(OUTCOMES, name, outcome(name, offset), OWNER)
        assert await rounds(auditor) == [Law.DELIVERY_LOST]
        assert reports.report is not None
        assert (reports.report.lost, reports.report.deliveries) == (1, 2)
        topics.add(OUTCOMES, OTHER, outcome(OTHER, 1), OWNER)
        assert await rounds(auditor) == []
        assert reports.report.lost == 0
        assert [finding.ended_ms for finding in reports.findings] == [0, NOW_MS]

    asyncio.run(audit())


def test_what_is_on_a_hop_waits(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        topics.receive(ID)
        topics.add(UNRESOLVED, ID, delivery(ID))
        assert await rounds(auditor, 3) == []
        topics.committed[UNRESOLVED] = 1
        assert await rounds(auditor, 3) == [Law.DELIVERY_LOST]

    asyncio.run(audit())


def test_outcomes_of_a_former_owner_do_not_count(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        topics.receive(ID)
        claim = [(CLAIM, b"owner"), (EPOCH, b"4")]
        topics.add(OUTCOMES, CLAIM_KEY.decode(), None, claim)
        topics.add(OUTCOMES, ID, outcome(ID, 0), OWNER)
        assert await rounds(auditor) == [Law.DELIVERY_LOST]
        assert auditor.report is not None
        assert auditor.report.ignored_records == 1
        topics.add(OUTCOMES, ID, outcome(ID, 0), [(EPOCH, b"4")])
        assert await rounds(auditor) == []

    asyncio.run(audit())


def test_a_tombstone_of_another_program_is_found(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        topics.receive(ID)
        topics.add(OUTCOMES, ID, outcome(ID, 0), OWNER)
        assert await rounds(auditor) == []
        topics.add(OUTCOMES, ID)
        assert await rounds(auditor) == [Law.OUTCOME_REMOVED]

    asyncio.run(audit())


def test_a_topic_that_was_rewritten_without_an_outcome_is_found(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        for offset, name in enumerate((ID, OTHER)):
            topics.receive(name)
            topics.add(OUTCOMES, name, outcome(name, offset), OWNER)
        assert await rounds(auditor) == []
        del topics.records[OUTCOMES][0]
        assert sorted(await rounds(auditor)) == [Law.DELIVERY_LOST, Law.LOG_CUT]
        (lost,) = (one for one in auditor.state.findings.open if one.startswith("delivery_lost"))
        assert lost == "delivery_lost/webhooks/0@0"

    asyncio.run(audit())


def test_the_next_process_continues_from_the_report(topics: MemoryTopics):
    reports = MemoryReports()

    async def audit() -> None:
        topics.receive(ID)
        topics.add(OUTCOMES, ID, outcome(ID, 0), OWNER)
        await rounds(auditor_of(topics, reports))
        topics.records[WEBHOOKS][0] = None  # type: ignore[call-overload]  # it is not read again
        again = auditor_of(topics, reports)
        topics.receive(OTHER)
        assert await rounds(again) == [Law.DELIVERY_LOST]
        assert again.report is not None
        assert again.report.deliveries == 2

    asyncio.run(audit())


def test_another_auditor_stands_by_until_the_first_has_stopped(topics: MemoryTopics):
    reports = MemoryReports()

    async def audit() -> None:
        first, second = auditor_of(topics, reports), auditor_of(topics, reports, "two")
        topics.receive(ID)
        await rounds(first, 1)
        await rounds(second, 2)
        assert second.report is None
        assert reports.report is not None
        assert reports.report.auditor == "one"
        await first._release()
        await rounds(second, 1)
        assert reports.report.auditor == "two"
        assert reports.report.deliveries == 1
        # The first sees that it is no longer its turn.
        await rounds(first, 1)
        assert not first._turn.is_mine

    asyncio.run(audit())


def test_a_backlog_is_read_up_to_one_time_in_each_round(
    topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_ROUND_RECORDS", 6)
    monkeypatch.setattr(module, "_CLOCKS_MS", 10)

    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        for number in range(30):
            name, at_ms = f"{number:032x}", NOW_MS - 100_000 + number * 1_000
            topics.add(WEBHOOKS, name, delivery(name), at_ms=at_ms)
            topics.add(OUTCOMES, name, outcome(name, number), OWNER, at_ms + 500)
        topics.committed[WEBHOOKS] = 30
        waiting: list[int] = []
        # So that each round publishes its report.
        auditor._clock = lambda: NOW_MS + len(waiting) * 60_000
        for _ in range(20):
            await auditor.round()
            waiting.append(sum(map(len, auditor.state.deliveries.waiting.values())))
            assert auditor.state.findings.open == {}
            if auditor.report is not None and auditor.report.caught_up:
                break
        assert 5 <= len(waiting) < 20
        assert max(waiting) <= 2
        assert auditor.report is not None
        assert (auditor.report.deliveries, auditor.report.lost) == (30, 0)

    asyncio.run(audit())


def test_a_partition_that_is_added_is_read_from_its_beginning(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        await rounds(auditor)
        del auditor.state.positions[WEBHOOKS][0]
        topics.receive(ID)
        assert await rounds(auditor, 3) == [Law.DELIVERY_LOST]

    asyncio.run(audit())


def test_the_metrics_are_those_of_the_report(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())
        for offset, name in enumerate((ID, OTHER)):
            topics.receive(name)
            topics.add(OUTCOMES, name, outcome(name, offset, "parked"), OWNER)
        topics.receive("a" * 32)
        await rounds(auditor)
        states = AUDITOR_DELIVERIES.values()
        assert states[("parked",)] == 2
        assert states[("lost",)] == 1
        assert sum(states.values()) == 3
        laws = AUDITOR_FINDINGS.values()
        assert laws.keys() == {(law.value,) for law in Law}
        assert laws[("delivery_lost",)] == 1

    asyncio.run(audit())


def test_a_round_that_fails_is_tried_again(topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch):
    async def audit() -> None:
        auditor, stop, calls = auditor_of(topics, MemoryReports()), asyncio.Event(), []

        async def fail() -> None:
            calls.append(1)
            if len(calls) == 3:
                stop.set()
            raise ValueError("a bug")

        monkeypatch.setattr(auditor, "round", fail)
        monkeypatch.setattr(module, "_ROUND_S", 0.0)
        await auditor.run(stop)
        assert len(calls) == 3

    asyncio.run(audit())


def test_other_laws_conclude_although_rows_cannot_be_compared(topics: MemoryTopics):
    async def audit() -> None:
        auditor = auditor_of(topics, MemoryReports())

        async def fail(_: RowState) -> None:
            raise ValueError("a provider's bug")

        auditor._compare_rows = fail
        topics.receive(ID)
        assert await rounds(auditor) == [Law.DELIVERY_LOST]

    asyncio.run(audit())


def test_a_finding_is_published_after_a_failure(topics: MemoryTopics):
    class AwayOnce(MemoryReports):
        away = True

        async def publish(self, findings: Sequence[AuditorFinding], report: AuditorReport) -> int:
            if findings and self.away:
                self.away = False
                raise BrokerUnavailable("no broker answered")
            return await super().publish(findings, report)

    async def audit() -> None:
        reports = AwayOnce()
        auditor = auditor_of(topics, reports)
        topics.receive(ID)
        for _ in range(4):
            with contextlib.suppress(BrokerUnavailable):
                await auditor.round()
        assert not reports.away
        assert [finding.law for finding in reports.findings] == [Law.DELIVERY_LOST]

    asyncio.run(audit())


class GrownTopics(MemoryTopics):
    """Topics whose second partition is added by a copy; a record keeps its offset."""

    def __init__(self) -> None:
        super().__init__()
        self.records[WORKFLOW_SNAPSHOTS] = []
        self.moved: dict[str, list[Incoming | None]] = {}

    def grow(self, event_id: str) -> None:
        key = event_id.encode()
        self.records[WORKFLOW_SNAPSHOTS].clear()
        for topic, records in self.records.items():
            self.moved[topic] = [
                replace(one, partition=1) if one.key == key else None for one in records
            ]

    async def read(
        self, _cluster: Cluster, spans: Mapping[TopicPartition, Span]
    ) -> AsyncIterator[tuple[list[Incoming], int]]:
        for tp, span in spans.items():
            partitions = (self.records[tp.topic], self.moved.get(tp.topic, []))
            part = partitions[tp.partition][span.start : span.end]
            if records := [one for one in part if one is not None]:
                yield records, 0

    async def ends_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        ends = await super().ends_of(topics)
        return {
            name: (*end, len(self.moved[name])) if name in self.moved else end
            for name, end in ends.items()
        }

    async def begins_of(self, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
        begins = await super().begins_of(topics)
        return {name: begin * (2 if self.moved else 1) for name, begin in begins.items()}

    async def cut_before(self, topic: str, partition: int, offset: int, _: int) -> Cut | None:
        grown = len(self.moved.get(topic, ()))
        return Cut(0, -1) if partition == 0 and offset <= grown else None


def test_an_auditor_begins_again_at_the_ends_when_partitions_were_added(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    topics, reports = GrownTopics(), MemoryReports()
    monkeypatch.setattr(module, "read_spans", topics.read)
    monkeypatch.setattr(module, "_CHECK_PAUSE_S", 0.0)

    async def audit() -> None:
        auditor = auditor_of(topics, reports)
        topics.add(WORKFLOW_SNAPSHOTS, "any")
        for offset, name in enumerate((ID, OTHER)):
            topics.receive(name)
            topics.add(OUTCOMES, name, outcome(name, offset), OWNER)
        topics.receive("a" * 32)
        assert await rounds(auditor) == [Law.DELIVERY_LOST]
        topics.grow(OTHER)
        again = auditor_of(topics, reports)
        again._clock = lambda: NOW_MS + 60_000
        assert await rounds(again, 3) == []
        assert "partitions were added" in caplog.text
        assert reports.report is not None
        (ended,) = reports.report.findings
        assert ended.law == Law.DELIVERY_LOST
        assert ended.detail.endswith("not verified since topics were copied")
        assert reports.report.since_ms == NOW_MS + 60_000
        assert (reports.report.deliveries, reports.report.lost) == (0, 0)
        # What follows is verified as before.
        topics.receive("b" * 32)
        assert await rounds(again, 3) == [Law.DELIVERY_LOST]
        # After a cut, too, nothing before the growth is read.
        del topics.records[OUTCOMES][-1]
        assert sorted(await rounds(again, 3)) == [Law.DELIVERY_LOST, Law.LOG_CUT]
        assert again.state.deliveries.received == 1

    asyncio.run(audit())


def test_an_auditor_begins_again_at_the_ends_when_the_prefix_changed(topics: MemoryTopics):
    reports = MemoryReports()

    async def audit() -> None:
        topics.records[WORKFLOW_SNAPSHOTS] = []
        topics.add(WORKFLOW_SNAPSHOTS, "any")
        topics.receive(ID)
        assert await rounds(auditor_of(topics, reports)) == [Law.DELIVERY_LOST]
        topics.records[WORKFLOW_SNAPSHOTS].clear()
        again = auditor_of(topics, reports)
        again._cluster = Cluster("nowhere:1", prefix="v2.")
        assert await rounds(again, 3) == []
        topics.receive(OTHER)
        assert await rounds(again, 3) == [Law.DELIVERY_LOST]

    asyncio.run(audit())


def test_a_backlog_is_read_without_pauses_of_rounds(
    topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_ROUND_RECORDS", 6)
    monkeypatch.setattr(module, "_CLOCKS_MS", 10)
    pauses: list[float] = []

    async def pause(stop: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        if seconds >= module._ROUND_S or len(pauses) > 30:
            stop.set()

    monkeypatch.setattr(module, "_pause", pause)

    async def audit() -> None:
        for number in range(30):
            name, at_ms = f"{number:032x}", NOW_MS - 100_000 + number * 1_000
            topics.add(WEBHOOKS, name, delivery(name), at_ms=at_ms)
            topics.add(OUTCOMES, name, outcome(name, number), OWNER, at_ms + 500)
        auditor = auditor_of(topics, MemoryReports())
        await auditor.run(asyncio.Event())
        assert auditor.state.deliveries.received == 30
        assert 5 <= len(pauses) <= 20
        assert max(pauses[:-1]) < 1.0

    asyncio.run(audit())


def test_an_auditor_that_lost_its_turn_measures_nothing(topics: MemoryTopics):
    async def audit() -> None:
        reports = MemoryReports()
        first, second = auditor_of(topics, reports), auditor_of(topics, reports, "two")
        topics.receive(ID)
        await rounds(first)
        assert AUDITOR_FINDINGS.values()[("delivery_lost",)] == 1
        # As if the first one had been suspended for long.
        second._turn._seen_end, second._turn._seen_s = reports.records, -1e9
        await rounds(second, 1)
        assert await first.round()
        assert not first._turn.is_mine
        assert AUDITOR_FINDINGS.values() == AUDITOR_DELIVERIES.values() == {}

    asyncio.run(audit())


def test_of_two_auditors_with_one_name_the_later_one_works(topics: MemoryTopics):
    async def audit() -> None:
        reports = MemoryReports()
        first, second = auditor_of(topics, reports), auditor_of(topics, reports)
        second._clock = lambda: NOW_MS + 1
        topics.receive(ID)
        await rounds(first)
        await rounds(second)
        published = reports.records
        for _ in range(3):
            await rounds(first, 1)
            await rounds(second, 1)
        assert (first._turn.is_mine, second._turn.is_mine) == (False, True)
        assert reports.records == published
        assert [finding.law for finding in reports.findings] == [Law.DELIVERY_LOST]

    asyncio.run(audit())


@pytest.mark.parametrize("appended", ["findings", "all"])
def test_an_auditor_continues_after_an_answer_that_was_lost(topics: MemoryTopics, appended: str):
    class Unanswered(MemoryReports):
        lost = False

        async def publish(self, findings: Sequence[AuditorFinding], report: AuditorReport) -> int:
            if not findings or self.lost:
                return await super().publish(findings, report)
            self.lost = True
            self.findings += findings
            self.records += len(findings)
            if appended == "all":
                await super().publish([], report)
            raise BrokerUnavailable("no broker answered")

    async def audit() -> None:
        reports = Unanswered()
        auditor = auditor_of(topics, reports)
        topics.receive(ID)
        now_ms = iter(range(NOW_MS, NOW_MS + 100))
        auditor._clock = lambda: next(now_ms)
        for _ in range(4):
            with contextlib.suppress(BrokerUnavailable):
                await auditor.round()
        assert reports.lost
        assert auditor._turn.is_mine
        assert len({finding.first_seen_ms for finding in reports.findings}) == 1
        assert auditor.state.deliveries.received == 1
        assert sum(auditor.state.findings.opened.values()) == 1

    asyncio.run(audit())
