"""Appends what the gateway has answered without appending a delivery: copies and refusals.

In the background and in batches: nobody waits for it. While Kafka is away, what fits is held and
appended when it is back; the rest is counted and said in the log.
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

#: Bytes that are held while Kafka is away: some 10,000 answers.
_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
#: Seconds between two lines about what could not be held.
_SAY_EVERY_S: Final = 10.0


class _Answer:
    """An answer on its way."""

    __slots__ = ("record",)

    def __init__(self, record: Outgoing) -> None:
        self.record = record


class AnswerLog:
    """The topic `traces`, as the gateway sees it."""

    def __init__(self, *, cluster: Cluster) -> None:
        producers = Producers(cluster, "headwater-gateway-answers")
        self._commit = GroupCommit[_Answer](
            producers, TRACES, settled=self._settled, held_bytes_max=_HELD_BYTES_MAX
        )
        self._stopping = False
        self._lost = 0
        self._saying: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Starts in the background; Kafka may be away, now or later."""
        self._stopping = False
        await self._commit.start()

    async def stop(self) -> None:
        """Disconnects, within seconds even if Kafka stalls."""
        self._stopping = True
        await self._commit.stop()
        if self._saying is not None:
            self._saying.cancel()
            self._say_lost()

    def record(self, answer: RequestAnswered) -> None:
        """Appends an answer at some time; never waits and never fails."""
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
            # Those that are in the log all the same are there twice, which changes nothing.
            self._add(entries)

    def _lose(self, count: int) -> None:
        self._lost += count
        if self._saying is None:
            loop = asyncio.get_running_loop()
            self._saying = loop.call_later(_SAY_EVERY_S, self._say_lost)

    def _say_lost(self) -> None:
        self._saying = None
        log.warning(
            "answers to copies and refusals that have no trace: %d; usual cause: Kafka is away",
            self._lost,
        )
        self._lost = 0
