"""A small topic that every reader folds into the same state.

The topic has one partition, so that the order of the log decides. A writer appends a record, reads
up to it, and learns its outcome from the fold. A reader queries the end offset of the topic before
an answer that must reflect all records.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from headwater.schemas.errors import (
    BrokerUnavailable,
    NotYetReadable,
    UndecodableRecord,
    UnknownSchema,
)
from headwater.schemas.newer import newer_schema_message, readable
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets, read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, position_of


class SharedRefresh:
    """Refreshes shared state; a caller only gets a refresh that began after its call.

    Args:
        refresh: Refreshes the state. An error is raised to the caller that ran it; the others
            run it again.
    """

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._refresh = refresh
        self._one_at_a_time = asyncio.Lock()
        #: Number of refreshes that began, and the number of the latest successful one.
        self._begun = 0
        self._done = 0

    async def __call__(self) -> None:
        """Return when a refresh is done that began after the call."""
        before = self._begun
        async with self._one_at_a_time:
            if self._done > before:
                return
            self._begun += 1
            number = self._begun
            await self._refresh()
            self._done = number


log = logging.getLogger(__name__)

#: The only partition of such a topic.
PARTITION: Final = 0
_KEY_BYTES: Final = 16
_STOP_S: Final = 5.0

FoldT = TypeVar("FoldT")
OutcomeT = TypeVar("OutcomeT")


class FoldedTopic(Generic[FoldT, OutcomeT]):
    """Follows a topic and appends to it; connects at first use.

    Args:
        topic: The topic.
        fold: The state before the first record.
        apply: Applies the value of a record to the fold, in the order of the log, and returns its
            outcome.
        cluster: The cluster.
        client_id: Name of the client.
    """

    def __init__(
        self,
        topic: str,
        fold: FoldT,
        apply: Callable[[FoldT, bytes], OutcomeT],
        *,
        cluster: Cluster,
        client_id: str,
    ) -> None:
        self._topic = topic
        self._apply_value = apply
        #: State of what was read so far.
        self.fold = fold
        self._cluster = cluster
        self._offsets = Offsets(cluster, client_id)
        self._appender = Appender(cluster=cluster, client_id=client_id)
        self._catch_up = SharedRefresh(self._read_to_end)
        self._next = 0
        #: Appends in progress, and the outcomes by offset that were read meanwhile.
        self._appending = 0
        self._outcomes: dict[int, OutcomeT] = {}

    async def stop(self) -> None:
        """Disconnect."""
        await self._offsets.stop()
        await self._appender.stop(_STOP_S)

    async def catch_up(self) -> FoldT:
        """Return the fold of all records appended before the call, and perhaps later ones.

        Raises:
            BrokerUnavailable: No broker answered, or the topic has lost records that were read.
            NotYetReadable: A newer release wrote a record.
        """
        await self._catch_up()
        return self.fold

    async def _read_to_end(self) -> None:
        end = (await self._offsets.ends([self._topic], PARTITION))[self._topic]
        if end < self._next:
            # Kafka deleted or truncated it. What was read stays true until an operator decides.
            raise BrokerUnavailable(
                f"expected at least {self._next} records in {self._topic}, found {end}: the topic "
                "was deleted and created again, or has lost records. Restore it; or restart this "
                "process, which then knows only what the topic has"
            )
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
            self._next = record.offset + 1
            if record.value is None:
                continue  # It deletes an earlier record, of which nothing was needed any more.
            try:
                outcome = self._apply_value(self.fold, record.value)
                if self._appending:
                    self._outcomes[record.offset] = outcome
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("%s cannot be read: %s", position_of(record), error)  # noqa: TRY400
        if newer is not None:
            raise NotYetReadable(newer_schema_message(newer))

    async def append(self, name: str, value: bytes, *, replaces: bool = False) -> OutcomeT:
        """Append a record about a name; return its outcome once it is durable.

        Args:
            name: What the record is about.
            value: The record.
            replaces: Whether it replaces earlier records of the name that do so; else it is kept.

        Raises:
            BrokerUnavailable: It may have been appended, so that a retry has to be safe.
        """
        self._appending += 1
        try:
            offset = await self.append_to(self._topic, name, value, replaces=replaces)
            await self.catch_up()
            return self._outcomes[offset]
        finally:
            self._appending -= 1
            if not self._appending:
                self._outcomes.clear()

    async def append_to(
        self, topic: str, name: str, value: bytes | None, *, replaces: bool = False
    ) -> int:
        """Append a record to this topic or a related one; return its offset.

        Args:
            topic: The topic.
            name: What the record is about.
            value: The record; None removes the one that it replaces.
            replaces: Whether it replaces earlier records of the name that do so; else it is kept.

        Raises:
            BrokerUnavailable: No broker answered.
        """
        key = (name if replaces else f"{name}#{os.urandom(_KEY_BYTES).hex()}").encode()
        record = Outgoing(topic, PARTITION, key, value)
        ((_, offset),) = await self._appender.append_or_stop([record])
        return offset
