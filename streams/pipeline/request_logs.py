"""Append what the gateway did: traces of requests without a delivery, and audit entries."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.records import OperationAudited, RequestAnswered
from headwater.schemas.topics import AUDIT, TRACES
from headwater.streams.kafka.append_queues import GroupCommit
from headwater.streams.kafka.appender import Producers
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing, partition_of

log = logging.getLogger(__name__)

#: Bytes that are held while Kafka is unavailable: some 10,000 answers.
_ANSWERS_BYTES_MAX: Final = 8 * 1024 * 1024
#: Seconds between two log lines about answers that were dropped.
_LOG_EVERY_S: Final = 10.0


class _Answer:
    """An answer to append."""

    __slots__ = ("record",)

    def __init__(self, record: Outgoing) -> None:
        self.record = record


class AnswerLog:
    """The topic `traces` for the gateway.

    Traces are appended in the background, in batches. While Kafka is unavailable, they are held up
    to a limit and appended when it is back; the rest is counted and logged.
    """

    def __init__(self, *, cluster: Cluster) -> None:
        producers = Producers(cluster, "headwater-gateway-answers")
        self._commit = GroupCommit[_Answer](
            producers, TRACES, settled=self._settled, held_bytes_max=_ANSWERS_BYTES_MAX
        )
        self._stopping = False
        self._lost = 0
        self._log_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start in the background; Kafka may be unavailable now or later."""
        self._stopping = False
        await self._commit.start()

    async def stop(self) -> None:
        """Disconnect, within seconds even if Kafka stalls."""
        self._stopping = True
        await self._commit.stop()
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_lost()

    def record(self, answer: RequestAnswered) -> None:
        """Append an answer eventually; never waits and never fails."""
        if not self._commit.partitions:
            self._lose(1)
            return
        key = answer.request_id.encode()
        partition = partition_of(key, self._commit.partitions)
        try:
            self._add([_Answer(Outgoing(TRACES, partition, key, encode(answer)))])
        except (NotYetReadable, ValueError):
            self._lose(1)

    def _add(self, answers: Sequence[_Answer]) -> None:
        try:
            self._commit.add(answers)
        except Overloaded:
            self._lose(len(answers))

    def _settled(self, entries: Sequence[_Answer], error: BrokerUnavailable | None) -> None:
        if error is None:
            return
        if self._stopping:
            self._lose(len(entries))
        else:
            # Answers that are in the log all the same are duplicated, which changes nothing.
            self._add(entries)

    def _lose(self, count: int) -> None:
        self._lost += count
        if self._log_timer is None:
            loop = asyncio.get_running_loop()
            self._log_timer = loop.call_later(_LOG_EVERY_S, self._log_lost)

    def _log_lost(self) -> None:
        self._log_timer = None
        log.warning(
            "answers to copies and refusals without a trace: %d; usual cause: Kafka is away",
            self._lost,
        )
        self._lost = 0


# -- audit

#: The only partition of the topic: it has one order, so that one hash covers all earlier entries.
PARTITION: Final = 0
#: Bytes that are held while Kafka is unavailable: some 8,000 entries.
_ENTRIES_BYTES_MAX: Final = 8 * 1024 * 1024


class _Entry:
    """An entry to append."""

    __slots__ = ("durable", "record")

    def __init__(self, record: Outgoing) -> None:
        self.record = record
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class AuditLog:
    """The topic `audit` for the gateway.

    An entry is durable before the operation acts, or before its response is sent. A caller that no
    longer waits does not withdraw its entry, because the operation may have happened. Entries that
    are queued while Kafka is unavailable are appended when it is back; those in flight may or may
    not be in the log, as the error to their caller stated.
    """

    def __init__(self, *, cluster: Cluster, append_timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = append_timeout_s
        # Without a linger: the caller has waited for its operation already.
        self._commit = GroupCommit[_Entry](
            Producers(cluster, "headwater-gateway-audit"),
            AUDIT,
            settled=_settled,
            held_bytes_max=_ENTRIES_BYTES_MAX,
            linger_s=0,
        )

    async def start(self) -> None:
        """Start in the background; Kafka may be unavailable now or later."""
        await self._commit.start()

    async def stop(self) -> None:
        """Disconnect, within seconds even if Kafka stalls."""
        await self._commit.stop()

    async def append(self, record: OperationAudited) -> None:
        """Append an entry; return when it is durable.

        Raises:
            Overloaded: There will be no entry.
            NotYetReadable: There will be no entry.
            BrokerUnavailable: It may be in the log all the same, or be appended later.
        """
        if not self._commit.partitions:
            raise BrokerUnavailable(
                f"expected the topic {AUDIT} at {self._cluster}, found no connection yet, or no "
                "such topic; `headwater topics create` creates the topics"
            )
        key = record.project_id.encode()
        entry = _Entry(Outgoing(AUDIT, PARTITION, key, encode(record)))
        self._commit.add([entry])
        try:
            async with asyncio.timeout(self._timeout_s):
                await entry.durable
        except TimeoutError:
            raise BrokerUnavailable(
                f"expected an acknowledgement of {self._cluster} within {self._timeout_s} s, "
                "found none"
            ) from None


def _settled(entries: Sequence[_Entry], error: BrokerUnavailable | None) -> None:
    for entry in entries:
        if entry.durable.done():
            continue  # No caller waits any more.
        if error is None:
            entry.durable.set_result(None)
        else:
            entry.durable.set_exception(error)
