"""Read the log in rounds, verify its laws, and publish the report.

A round queries the ends of topics in the opposite order of cause and effect, and then reads in the
order of cause and effect. So what an outcome belongs to was read before it, and what the pipeline
had passed before the round has its outcome among the records of the round, or has lost it.

One auditor works at a time. Its report, the last record of the topic `auditor`, contains its state.
Another one that is started waits until the report has not changed for some minutes, and continues
from it. Two that overlap do no harm: each report is the result of one fold.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec
from aiokafka import TopicPartition

from headwater.processors.auditor.deliveries import DeliveryState
from headwater.processors.auditor.findings import Violation
from headwater.processors.auditor.histories import HistoryFold, HistoryState
from headwater.processors.auditor.logs import Cut, LogFold, ReadPosition
from headwater.processors.auditor.state import (
    FORMAT,
    AuditorState,
    RowState,
    decode_state,
    encode_within,
    state_at_ends,
)
from headwater.schemas.auditor import AuditorFinding, AuditorReport, Law
from headwater.schemas.errors import HeadwaterError, NewerSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.records import WebhookReceived
from headwater.schemas.topics import (
    DEAD_LETTERS,
    MAX_VALUE_BYTES,
    TOPICS,
    WEBHOOKS,
    WORKFLOW_HISTORY,
)
from headwater.streams.auditor.facts import EVIDENCE, Facts
from headwater.streams.auditor.measures import forget_measures, measure
from headwater.streams.auditor.progress import Passing, Turn
from headwater.streams.auditor.report_log import ReportLog
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, Span, read_spans

log = logging.getLogger("headwater.auditor")

_ROUND_S: Final = 10.0
#: Pause after a round that has left some records: reading itself pauses for as long as it takes.
_READ_ON_S: Final = 0.1
#: Changes are published with the next round; without any, the report is written this often.
_PUBLISH_EVERY_MS: Final = 30_000
_IDLE_EVERY_MS: Final = 120_000
#: A report is written at most this often, by its size: 10 kB a second.
_BYTES_PER_MS: Final = 10
#: The state and all findings are one record.
_STATE_BYTES: Final = MAX_VALUE_BYTES - 1024 * 1024
#: Deliveries of one round; more are read in several, limited by time.
_ROUND_RECORDS: Final = 50_000
#: How far the clocks of brokers may differ.
_CLOCKS_MS: Final = 5_000
#: Rounds between two checks of leader epochs, and of first offsets.
_CHECK_EVERY: Final = 30
#: A new leader may report an older end for a moment; if it stays, the log was cut.
_CHECKS: Final = 5
_CHECK_PAUSE_S: Final = 1.0
_NAMES: Final = tuple(topic.name for topic in TOPICS)
_OF_DELIVERIES: Final = (WEBHOOKS, *EVIDENCE)

#: Compares some rows; updates the state.
CompareRows: TypeAlias = Callable[[RowState], Awaitable[None]]


class Auditor:
    """Verifies the log until it is stopped.

    Args:
        cluster: The cluster.
        group: Consumer group of the pipeline.
        name: Name of this auditor, which its next process keeps.
        park_for_ms: How long a delivery waits for its connection, in milliseconds.
        may_recur: Returns whether equal deliveries may be several events.
        clock: Returns Unix milliseconds.
        compare_rows: Compares some rows, once in a round; None to compare none.
    """

    def __init__(  # noqa: PLR0913, chosen by the composition root
        self,
        *,
        cluster: Cluster,
        group: str,
        name: str,
        park_for_ms: int,
        may_recur: Callable[[WebhookReceived], bool],
        clock: Callable[[], int],
        compare_rows: CompareRows | None = None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._park_for_ms = park_for_ms
        self._may_recur = may_recur
        self._clock = clock
        self._compare_rows = compare_rows
        self._offsets = Offsets(cluster, group)
        self._reports = ReportLog(cluster, "headwater-auditor")
        self._turn = Turn(self._reports, name)
        self._passing = Passing(self._offsets)
        self.state = AuditorState()
        self._facts = Facts(self.state, may_recur)
        #: The latest report that was published by this auditor.
        self.report: AuditorReport | None = None
        #: Findings that changed and are not in the log, for example because no broker answered.
        self._unpublished: list[AuditorFinding] = []
        self._rounds = 0
        self._due_ms = 0
        self._problem = self._row_problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Verify until `stop` is set; problems are logged once, and the next round tries again."""
        try:
            while not stop.is_set():
                pause_s = _ROUND_S
                try:
                    if not await self.round():
                        pause_s = _READ_ON_S
                    self._problem = ""
                except HeadwaterError as error:
                    if error.message != self._problem:
                        self._problem = error.message
                        log.warning("%s", error.message)
                except Exception as error:  # the process verifies other laws all the same
                    if repr(error) != self._problem:
                        self._problem = repr(error)
                        log.exception("a round failed")
                await _pause(stop, pause_s)
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            if self._turn.is_mine and self.report is not None:
                report = msgspec.structs.replace(self.report, auditor="")
                await self._reports.publish([], report)
        except HeadwaterError as error:
            log.warning("%s", error.message)
        finally:
            await self._offsets.stop()
            await self._reports.stop()

    async def round(self) -> bool:
        """Verify what was appended since the last round; return whether nothing is left.

        Raises:
            HeadwaterError: Kafka does not answer, or a newer release wrote a record.
        """
        was_mine = self._turn.is_mine
        taken = await self._turn.take()
        if taken is not None:
            self._continue_from(taken.report)
        if not self._turn.is_mine:
            if was_mine:
                forget_measures()
            return True
        passed = await self._passing.passed(wanted=self._is_waiting())
        ends = await self._offsets.ends_of(_NAMES)
        prefix = self._cluster.prefix
        if self.state.is_of_others(prefix, len(ends.get(WEBHOOKS, ()))):
            ends, passed = await self._begin_again(ends), {}
        self.state.prefix = prefix
        if await self._check_logs(ends):
            passed = {}
        caught_up = await self._read_deliveries(ends)
        await self._read_histories(ends)
        if caught_up:
            await self._compare()
        await self._conclude(passed, caught_up=caught_up)
        return caught_up

    async def _compare(self) -> None:
        """Compare some rows; a problem with them does not keep other laws from a conclusion."""
        if self._compare_rows is None:
            return
        try:
            await self._compare_rows(self.state.rows)
            self._row_problem = ""
        except Exception as error:  # also of providers
            if repr(error) != self._row_problem:
                self._row_problem = repr(error)
                log.exception("rows are not compared")

    def _continue_from(self, report: AuditorReport | None) -> None:
        self.state = AuditorState(since_ms=self._clock())
        if report is not None and report.format == FORMAT:
            try:
                self.state = decode_state(report.state)
            except msgspec.DecodeError as error:
                log.warning(
                    "the log is read from its beginning: the state is unreadable: %s", error
                )
        self._facts = Facts(self.state, self._may_recur)
        self._due_ms = self._rounds = 0
        self._unpublished = []

    async def _begin_again(self, ends: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Continue at the ends: topics were copied, and positions of before name others now.

        What the new topics have of before cannot be verified with what was read of the old ones
        (ADR 0101): a moved outcome would be a second one, an emptied topic a cut one.
        """
        # Only now: whatever becomes of later deliveries is after the other ends.
        ends = {**ends, **await self._offsets.ends_of([WEBHOOKS])}
        now_ms, findings = self._clock(), self.state.findings
        log.warning(
            "partitions were added, or topics have another prefix: nothing before their ends of "
            "now is verified any more, and open findings end"
        )
        self._unpublished += findings.end_all("not verified since topics were copied", now_ms)
        self.state = state_at_ends(findings, ends, (*_OF_DELIVERIES, WORKFLOW_HISTORY), now_ms)
        self._facts = Facts(self.state, self._may_recur)
        self._passing.forget()
        self._due_ms = self._rounds = 0
        return ends

    def _is_waiting(self) -> bool:
        return any(self.state.deliveries.waiting.values())

    # -- logs

    async def _check_logs(self, ends: Mapping[str, tuple[int, ...]]) -> bool:
        """Compare ends with known ones; return whether topics have to be read again."""
        logs = LogFold(self.state.logs)
        known = {topic: dict(of_topic) for topic, of_topic in self.state.logs.ends.items()}
        shorter = [
            topic
            for topic, of_topic in known.items()
            if any(end > _at(ends.get(topic, ()), number) for number, end in of_topic.items())
        ]
        for _ in range(_CHECKS if shorter else 0):
            await asyncio.sleep(_CHECK_PAUSE_S)
            ends = {**ends, **await self._offsets.ends_of(shorter)}
        cuts = [cut for topic, of_topic in ends.items() for cut in logs.apply_ends(topic, of_topic)]
        cuts += logs.apply_missing(known.keys() - ends.keys())
        is_due = self._rounds % _CHECK_EVERY == 0
        if is_due:
            cuts += await self._cuts_of_epochs()
        self._rounds += 1
        for cut in cuts:
            log.error("%s/%d was cut before offset %d", cut.topic, cut.partition, cut.known)
            logs.note(cut, self._clock())
        self._read_again({cut.topic for cut in cuts})
        if is_due or cuts:
            await self._find_beginnings()
        return bool(cuts)

    async def _cuts_of_epochs(self) -> list[Cut]:
        """Return the partitions whose leader no longer has what was read, by leader epochs."""
        cuts = []
        for topic, positions in self.state.positions.items():
            for partition, read in positions.items():
                if read.leader_epoch >= 0 and read.next_offset:
                    cut = await self._offsets.cut_before(
                        topic, partition, read.next_offset, read.leader_epoch
                    )
                    if cut is not None:
                        cuts.append(Cut(topic, partition, cut.end, read.next_offset))
        return cuts

    def _read_again(self, topics: Iterable[str]) -> None:
        """Forget what was read of topics, and of those that are verified with them."""
        for topic in topics:
            if topic in _OF_DELIVERIES and topic in self.state.positions:
                for one in _OF_DELIVERIES:
                    self.state.positions.pop(one, None)
                self.state.deliveries, self.state.claims = DeliveryState(), {}
                self.state.read_to_ms = 0
                self._passing.forget()
                self._facts = Facts(self.state, self._may_recur)
            elif topic == WORKFLOW_HISTORY:
                self.state.positions.pop(topic, None)
                self.state.histories = {}

    async def _find_beginnings(self) -> None:
        """Begin topics that were not read yet; begin again if unread records were deleted."""
        names = (*_OF_DELIVERIES, WORKFLOW_HISTORY)
        begins = await self._offsets.begins_of(names)
        deleted = {
            topic
            for topic, of_topic in begins.items()
            for partition, position in self.state.positions.get(topic, {}).items()
            if position.next_offset < _at(of_topic, partition)
        }
        self._read_again(deleted)
        for topic, of_topic in begins.items():
            positions = self.state.positions.setdefault(topic, {})
            for partition, first in enumerate(of_topic):
                if partition not in positions:
                    begin = self.state.begin_of(topic, partition, first)
                    positions[partition] = ReadPosition(begin)
                    if topic == WORKFLOW_HISTORY and begin:
                        self.state.histories[partition] = HistoryState(is_whole=False)

    # -- reading

    async def _read_deliveries(self, ends: Mapping[str, tuple[int, ...]]) -> bool:
        """Read deliveries, and then what became of them; return whether nothing is left."""
        evidence = self._spans({topic: ends.get(topic, ()) for topic in EVIDENCE})
        spans = self._spans({WEBHOOKS: ends.get(WEBHOOKS, ())})
        if not evidence and not spans:
            return True
        # Only now: what caused the evidence is before these ends.
        spans = self._spans(await self._offsets.ends_of([WEBHOOKS]))
        is_limited = sum(span.end - span.start for span in spans.values()) > _ROUND_RECORDS
        if is_limited:
            until_ms = await self._limit(spans)
            spans = await self._before(spans, until_ms)
            evidence = await self._before(evidence, until_ms - _CLOCKS_MS)
            self.state.read_to_ms = until_ms
        await self._read(spans)
        await self._read(evidence)
        return not is_limited

    async def _read_histories(self, ends: Mapping[str, tuple[int, ...]]) -> None:
        await self._read(self._spans({WORKFLOW_HISTORY: ends.get(WORKFLOW_HISTORY, ())}))

    def _spans(self, ends: Mapping[str, tuple[int, ...]]) -> dict[TopicPartition, Span]:
        spans = {}
        for topic, of_topic in ends.items():
            positions = self.state.positions.setdefault(topic, {})
            for partition, end in enumerate(of_topic):
                # A partition that was added later begins at 0.
                start = positions.setdefault(partition, ReadPosition(0)).next_offset
                if start < end:
                    spans[TopicPartition(topic, partition)] = Span(start, end)
        return spans

    async def _before(
        self, spans: Mapping[TopicPartition, Span], until_ms: int
    ) -> dict[TopicPartition, Span]:
        """Limit spans to the records that were appended before a time."""
        if not spans:
            return {}
        at = await self._offsets.query(
            lambda consumer: consumer.offsets_for_times(dict.fromkeys(spans, until_ms))
        )
        ends = {tp: found.offset for tp, found in at.items() if found is not None}
        limited = {
            tp: Span(span.start, min(span.end, ends.get(tp, span.end)))
            for tp, span in spans.items()
        }
        return {tp: span for tp, span in limited.items() if span.start < span.end}

    async def _limit(self, spans: Mapping[TopicPartition, Span]) -> int:
        """Return a time before which about as many deliveries are left as one round reads."""
        low, high = self.state.read_to_ms, self._clock()
        while high - low > 1:
            middle = (low + high) // 2
            limited = await self._before(spans, middle)
            count = sum(span.end - span.start for span in limited.values())
            if count > _ROUND_RECORDS:
                high = middle
            else:
                low = middle
                if count > _ROUND_RECORDS // 2:
                    break
        return low if await self._before(spans, low) else high

    async def _read(self, spans: Mapping[TopicPartition, Span]) -> None:
        if not spans:
            return
        loop = asyncio.get_running_loop()
        async with aclosing(read_spans(self._cluster, spans)) as batches:
            async for records, leader_epoch in batches:
                began_s = loop.time()
                # Dead letters are arbitrary bytes, which are not decoded.
                is_decoded = records[0].topic != DEAD_LETTERS
                known, newer = readable(records) if is_decoded else (records, None)
                self._facts.apply(known)
                if newer is not None:
                    self._advance(newer.topic, newer.partition, newer.offset, leader_epoch)
                    raise NewerSchema(newer_schema_message(newer))
                last = records[-1]
                self._advance(last.topic, last.partition, last.offset + 1, leader_epoch)
                # The projector, which may share the loop, gets at least as much of it.
                await asyncio.sleep(loop.time() - began_s)
        for tp, span in spans.items():
            epoch = self.state.positions[tp.topic][tp.partition].leader_epoch
            self._advance(tp.topic, tp.partition, span.end, epoch)

    def _advance(self, topic: str, partition: int, offset: int, leader_epoch: int) -> None:
        self.state.positions[topic][partition] = ReadPosition(offset, leader_epoch)

    # -- conclusions

    async def _conclude(self, passed: Mapping[int, int], *, caught_up: bool) -> None:
        now_ms, state = self._clock(), self.state
        if caught_up:
            changed = state.findings.update(self._violations(passed, now_ms), now_ms)
            for finding in changed:
                log.log(*_line(finding))
            self._unpublished += changed
            LogFold(state.logs).verified(now_ms)
        report = self._report(passed, now_ms, caught_up=caught_up)
        measure(report)
        is_new = self.report is None or _counts(report) != _counts(self.report)
        late_ms = 0 if is_new else _IDLE_EVERY_MS - _PUBLISH_EVERY_MS
        if self._unpublished or now_ms >= self._due_ms + late_ms:
            self._turn.sent_ms = now_ms
            self._turn.sent(await self._reports.publish(self._unpublished, report))
            self.report, self._unpublished = report, []
            self._due_ms = now_ms + max(_PUBLISH_EVERY_MS, len(report.state) // _BYTES_PER_MS)

    def _violations(self, passed: Mapping[int, int], now_ms: int) -> list[Violation]:
        deliveries = self._facts.deliveries
        return [
            *deliveries.lost(passed, now_ms),
            *deliveries.late(passed, now_ms, self._park_for_ms),
            *deliveries.changed_outcomes(),
            *(
                violation
                for partition, history in self.state.histories.items()
                for violation in HistoryFold(partition, history).violations()
            ),
            *LogFold(self.state.logs).violations(),
            *(
                Violation(Law.ROW_DIFFERS, position, detail)
                for position, detail in self.state.rows.differing.items()
            ),
        ]

    def _report(self, passed: Mapping[int, int], now_ms: int, *, caught_up: bool) -> AuditorReport:
        state, histories = self.state, self.state.histories.values()
        waiting = self._facts.deliveries.count_waiting(passed)
        unsettled = sum(map(len, state.deliveries.waiting.values()))
        return AuditorReport(
            auditor=self._name,
            at_ms=now_ms,
            since_ms=state.since_ms,
            caught_up=caught_up,
            deliveries=state.deliveries.received,
            lost=unsettled - waiting if caught_up else 0,
            waiting=waiting if caught_up else unsettled,
            parked=len(state.deliveries.parked),
            unproven=state.deliveries.unproven,
            history_records=sum(history.records for history in histories),
            step_results=sum(history.results for history in histories),
            ignored_records=state.ignored + sum(history.ignored for history in histories),
            rows=state.rows.compared,
            findings=state.findings.listed(),
            unlisted=state.findings.unlisted,
            format=FORMAT,
            state=self._encoded(),
        )

    def _encoded(self) -> bytes:
        data, forgotten = encode_within(self.state, _STATE_BYTES)
        if forgotten:
            log.warning("the state was too large for a record; forgot %s", ", ".join(forgotten))
        return data


def _at(offsets: tuple[int, ...], partition: int) -> int:
    return offsets[partition] if partition < len(offsets) else 0


def _counts(report: AuditorReport) -> AuditorReport:
    """Return a report without what changes in every round."""
    return msgspec.structs.replace(report, at_ms=0, state=b"", findings=[])


def _line(finding: AuditorFinding) -> tuple[int, str, str, str, str]:
    """Return the level and the arguments of a log line."""
    if finding.ended_ms:
        return logging.INFO, "%s of %s has ended: %s", finding.law, finding.subject, finding.detail
    return logging.ERROR, "%s of %s: %s", finding.law, finding.subject, finding.detail


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
