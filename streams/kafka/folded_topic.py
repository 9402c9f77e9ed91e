"""A small topic that everybody folds: in one partition, so that the order of the log decides.

Whoever writes appends a record, reads up to it, and learns from the fold what it came to. Whoever
reads asks Kafka where the topic ends, before an answer that has to know all that was written.
"""

import logging
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from headwater.schemas.errors import NotYetReadable, UndecodableRecord, UnknownSchema
from headwater.schemas.newer import newer_schema_message, readable
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, place_of
from headwater.streams.kafka.shared_look import SharedLook

log = logging.getLogger(__name__)

#: Where all of such a topic lies.
PARTITION: Final = 0
_KEY_BYTES: Final = 16
_STOP_S: Final = 5.0

FoldT = TypeVar("FoldT")
OutcomeT = TypeVar("OutcomeT")


class FoldedTopic(Generic[FoldT, OutcomeT]):
    """Follows a topic, and appends to it; connects when first used.

    Shape:  apply takes the value of a record into the fold, in the order of the log, and says what
            it came to; new_key gives bytes that no other record has in its key.
    """

    def __init__(
        self,
        topic: str,
        fold: FoldT,
        apply: Callable[[FoldT, bytes | None], OutcomeT],
        *,
        cluster: Cluster,
        client_id: str,
        new_key: Callable[[], bytes] = lambda: os.urandom(_KEY_BYTES),
    ) -> None:
        self._topic = topic
        self._apply_value = apply
        #: What was read so far.
        self.fold = fold
        self._cluster = cluster
        self._new_key = new_key
        self._offsets = Offsets(cluster, client_id)
        self._appender = Appender(cluster=cluster, client_id=client_id)
        self._catch_up = SharedLook(self._look)
        self._next = 0
        self._outcomes: dict[int, OutcomeT] = {}

    async def stop(self) -> None:
        """Disconnects."""
        await self._offsets.stop()
        await self._appender.stop(_STOP_S)

    async def catch_up(self) -> FoldT:
        """The fold of all that was written before the call, and perhaps more.

        Errors: BrokerUnavailable; NotYetReadable, for what a newer release has written.
        """
        await self._catch_up()
        return self.fold

    async def _look(self) -> None:
        end = (await self._offsets.ends([self._topic], PARTITION))[self._topic]
        if end > self._next:
            reading = read_partition(
                self._cluster, [self._topic], PARTITION, start=self._next, end=end
            )
            async with aclosing(reading) as batches:
                async for records in batches:
                    self._apply(records)
            self._next = end

    def _apply(self, records: list[Incoming]) -> None:
        known, newer = readable(records)
        for record in known:
            try:
                self._outcomes[record.offset] = self._apply_value(self.fold, record.value)
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("%s cannot be read: %s", place_of(record), error)  # noqa: TRY400
            self._next = record.offset + 1
        if newer is not None:
            raise NotYetReadable(newer_schema_message(newer))

    async def append(self, name: str, value: bytes) -> OutcomeT:
        """Appends a record about a name; says what came of it once it is durable.

        Errors: BrokerUnavailable, when it may have been appended: to do it again has to be safe.
        """
        offset = await self.append_to(self._topic, name, value)
        await self.catch_up()
        return self._outcomes[offset]

    async def append_to(self, topic: str, name: str, value: bytes) -> int:
        """Appends a record about a name to this topic or one that goes with it; gives its offset.

        Errors: BrokerUnavailable.
        """
        key = f"{name}#{self._new_key().hex()}".encode()
        try:
            sent = await self._appender.send([Outgoing(topic, PARTITION, key, value)])
            (offset,) = await self._appender.acknowledged(sent)
        except BaseException:
            await self._appender.stop(_STOP_S)
            raise
        return offset
