"""Append traces of requests that the gateway answered without a delivery: duplicates and refusals.

They are appended in the background, in batches. While Kafka is unavailable, they are held up to a
limit and appended when it is back; the rest is counted and logged.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from headwater.schemas.codec import encode
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.records import RequestAnswered
from headwater.schemas.topics import TRACES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.group_commit import GroupCommit
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Outgoing, partition_of

log = logging.getLogger(__name__)

#: Bytes that are held while Kafka is unavailable: some 10,000 answers.
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
#: Seconds between two log lines about answers that were dropped.
_LOG_EVERY_S: Final = 10.0


class _Answer:
    """An answer to append."""

    __slots__ = ("record",)

    def __init__(self, record: Outgoing) -> None:
        self.record = record


class AnswerLog:
    """The topic `traces` for the gateway."""

    def __init__(self, *, cluster: Cluster) -> None:
        producers = Producers(cluster, "headwater-gateway-answers")
        self._commit = GroupCommit[_Answer](
            producers, TRACES, settled=self._settled, held_bytes_max=_HELD_BYTES_MAX
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
