"""Carry out the effects of deliveries on workflows: a consumer of the topic `effects`.

The commands of a batch of one partition are sent in the order of their offsets. The end of the
batch is committed when all outcomes are known and rejected commands are dead letters. After a crash
in between, the batch is sent again, which changes nothing (`processors.triggers`). A command
without an outcome is sent again for as long as it takes; later ones wait, because owners ignore a
signal that arrives after a later one of the same sender.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from headwater.processors.triggers.decide import EffectCommand, RejectedEffect, command_for, refused
from headwater.schemas.codec import decode
from headwater.schemas.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NewerSchema,
    NotYetReadable,
    Overloaded,
    UndecodableRecord,
    UnknownSchema,
)
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import ReplySent
from headwater.schemas.newer import newer_schema_message, readable
from headwater.schemas.records import EffectDecided
from headwater.schemas.topics import EFFECTS
from headwater.streams.engine.quarantine import describe_error
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster, start_consumer
from headwater.streams.kafka.consumer_groups import Committed, resume_offset
from headwater.streams.kafka.dead_letters import (
    REPLAY_OF,
    ProcessingFailure,
    dead_letter,
    text_header,
)
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.truncation import leader_epoch_of, seek_with_epoch
from headwater.streams.ownership.group_member import GroupMember
from headwater.streams.ownership.phases import Change, OwnedPartitions, Phase
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

#: Effects that are remembered of a partition; some 10 MB.
REMEMBERED_MAX: Final = 50_000
#: Records to read again when a partition is acquired: while no process owned it, the pipeline may
#: have been down, too, and then few records are between copies.
LOOK_BACK: Final = 5_000


class EffectMemory:
    """First offsets of the effects of one partition.

    A pipeline worker that crashes between append and commit appends the same effects again, at new
    offsets. A duplicate start changes nothing; a duplicate signal would be sent twice. So only the
    first copy is carried out, as far back as copies can be apart: what a worker had in flight,
    which is at most the work of the second before its last commit, and what others wrote until it
    was replaced.
    """

    def __init__(self, limit: int = REMEMBERED_MAX) -> None:
        self._limit = limit
        self._first: dict[tuple[str, str], int] = {}

    def is_copy(self, effect: EffectDecided, offset: int) -> bool:
        """Remember an effect; return whether it was there at a lower offset."""
        first = self._first.setdefault((effect.event_id, effect.name), offset)
        if len(self._first) > self._limit:
            del self._first[next(iter(self._first))]
        return first < offset


async def restore_memory(cluster: Cluster, partition: int, end: int) -> EffectMemory:
    """Return the memory of a partition of `effects` as of an offset, which it has reached.

    Raises:
        BrokerUnavailable: No broker answered.
        NewerSchema: Only a later release can read a record.
    """
    memory = EffectMemory()
    start = max(0, end - LOOK_BACK)
    reading = read_partition(cluster, [EFFECTS], partition, start=start, end=end)
    async with aclosing(reading) as batches:
        async for records in batches:
            known, newer = readable(records)
            if newer is not None:
                raise NewerSchema(newer_schema_message(newer))
            for effect, offset in _effects(known):
                memory.is_copy(effect, offset)
    return memory


def _effects(records: Sequence[Incoming]) -> Iterator[tuple[EffectDecided, int]]:
    for record in records:
        try:
            yield decode(record.value, EffectDecided), record.offset
        except (UndecodableRecord, UnknownSchema):
            continue  # It is a dead letter already.


# -- starter

log = logging.getLogger(__name__)

STAGE: Final = "starter"
#: Commands that are sent, and appended, together: if the append fails, the log has the first of
#: them, never a later one without an earlier one.
_GROUP: Final = 500
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 4 * 1024 * 1024
_POLL_MS: Final = 500
#: The longest pause before commands without an outcome are sent again.
_PAUSE_S: Final = 30.0
_STOP_S: Final = 1.0


class Starter:
    """Carries out effects until it is cancelled.

    Args:
        client: Sends commands.
        cluster: The cluster.
        group: The consumer group.
        member: A name that the member keeps over restarts, or None.
        clock: Returns Unix milliseconds.
    """

    def __init__(
        self,
        client: WorkflowClient,
        *,
        cluster: Cluster,
        group: str,
        member: str | None,
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._clock = clock
        self._appender = Appender(cluster=cluster, client_id=group)
        self._partitions = OwnedPartitions()
        #: Of partitions that are owned.
        self._memories: dict[TopicPartition, EffectMemory] = {}
        self._options = {
            **cluster.options(),
            "client_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "fetch_max_wait_ms": IDLE_FETCH_MS,
        }
        self._consumer: AIOKafkaConsumer
        # Its own thread, because deciding may block the event loop of this process for long. It has
        # no deadlines: commands that are sent again change nothing.
        self._member = GroupMember(
            cluster=cluster,
            group=group,
            topic=EFFECTS,
            member=member,
            client_id=group,
            rebalances=self,
        )

    async def run(self) -> None:
        """Carry out effects as they arrive.

        Raises:
            MemberFenced: Another process joined under the name of this member.
        """
        reading = Retrying(log, "effects of deliveries cannot be read")
        await reading.until_done(self._connect, (KafkaError, OSError))
        try:
            await self._member.start()
            try:
                await self._member.during(self._read(reading))
            finally:
                await self._member.stop()
        finally:
            await self._consumer.stop()
            await self._appender.stop(within_s=_STOP_S)

    async def _connect(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._options)
        await start_consumer(self._consumer)

    async def _read(self, reading: Retrying) -> NoReturn:
        errors = (KafkaError, IllegalStateError, OSError, BrokerUnavailable)
        while True:
            await reading.until_done(self._poll, errors)

    async def _poll(self) -> None:
        for number in self._partitions.assigned():
            if self._partitions.phase(number) is Phase.ACQUIRING:
                await self._begin(TopicPartition(EFFECTS, number))
        fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        for tp, records in fetched.items():
            if tp in self._memories:
                await self._process(tp, records)
        for line in self._partitions.waiting.due(self._clock()):
            log.warning("effects: %s", line)

    async def _process(self, tp: TopicPartition, records: Sequence[Incoming]) -> None:
        """Carry out a batch, up to a record that only a newer release can read."""
        known, newer = readable(records)
        if known:
            await self._carry_out(self._memories[tp], known)
            await self._commit(tp, known[-1].offset + 1)
        if newer is not None and tp in self._memories:
            self._block(tp, newer_schema_message(newer))

    def _block(self, tp: TopicPartition, reason: str) -> None:
        """Stop reading a partition until it is assigned again."""
        self._partitions.block(tp.partition, reason)
        self._consumer.pause(tp)
        self._memories.pop(tp, None)

    # -- partitions

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Record the partitions; they stay paused until their start is known."""
        if numbers:
            partitions = [TopicPartition(EFFECTS, number) for number in sorted(numbers)]
            self._consumer.assign(partitions)
            self._consumer.pause(*partitions)
            self._partitions.assign(numbers)

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Discard partitions."""
        self._consumer.pause(*self._consumer.assignment())
        self._partitions.revoke()
        self._memories.clear()

    async def _begin(self, tp: TopicPartition) -> None:
        """Continue at the committed offset; a new group begins with the first effect."""
        committed = await self._member.committed(tp) or Committed(0)
        start = await resume_offset(self._consumer, tp, committed)
        try:
            memory = await restore_memory(self._cluster, tp.partition, start.offset)
        except NewerSchema as error:
            # Without that record, later duplicates cannot be recognized.
            self._block(tp, error.message)
            return
        if self._partitions.phase(tp.partition) is Phase.ACQUIRING:
            seek_with_epoch(self._consumer, tp, *start)
            self._consumer.resume(tp)
            self._memories[tp] = memory
            self._partitions.change(tp.partition, Change.ACQUIRED)

    async def _commit(self, tp: TopicPartition, offset: int) -> None:
        """Commit an offset; after a reassignment, the new owner reads the batch again."""
        with contextlib.suppress(KafkaError, IllegalStateError):
            leader_epoch = leader_epoch_of(self._consumer, tp)
            await self._member.commit({tp: Committed(offset, leader_epoch)})

    # -- batches

    async def _carry_out(self, memory: EffectMemory, records: Sequence[Incoming]) -> None:
        """Carry out a batch; when it returns, all outcomes are known and durable."""
        letters: list[Outgoing] = []
        sends: list[tuple[Incoming, EffectCommand]] = []
        for record in records:
            if record.value is None:
                continue  # A wipe has removed it.
            try:
                effect = decode(record.value, EffectDecided)
                replayed = text_header(record, REPLAY_OF) is not None
                if not memory.is_copy(effect, record.offset) or replayed:
                    sends.append((record, command_for(effect, record.partition, record.offset)))
            except HeadwaterError as error:
                letters.append(self._letter(record, RejectedEffect("", error.code, error.message)))
            except Exception as error:
                log.exception("an effect cannot be carried out")
                letters.append(self._letter(record, RejectedEffect("", INTERNAL, repr(error))))
        for first in range(0, len(sends), _GROUP):
            group = sends[first : first + _GROUP]
            replies = await self._send([send for _, send in group])
            for record, send in group:
                reply = replies[send.command_id]
                failed = refused(send, reply.code, reply.message)
                if failed is not None:
                    letters.append(self._letter(record, failed))
        await self._append_letters(letters)

    async def _send(self, sends: Sequence[EffectCommand]) -> dict[str, ReplySent]:
        """Send commands until all outcomes are known."""
        known: dict[str, ReplySent] = {}

        async def send_rest() -> None:
            left = [send for send in sends if send.command_id not in known]
            try:
                replies = await self._client.send_many([_addressed(send) for send in left])
            except OutcomeUnknown as error:
                known.update(error.known)
                raise
            except HeadwaterError:
                raise
            except Exception as error:
                log.exception("%d commands cannot be sent together", len(left))
                if len(left) > 1:
                    for send in left:
                        known.update(await self._send([send]))
                    return
                replies = [_not_sent(left[0], error)]
            known.update((reply.command_id, reply) for reply in replies)

        waiting = Retrying(log, "deliveries have to wait for their workflows", longest_s=_PAUSE_S)
        await waiting.until_done(
            send_rest, (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded)
        )
        return known

    def _letter(self, record: Incoming, failed: RejectedEffect) -> Outgoing:
        ids = _ids(record)
        fields = {**ids, "partition": record.partition, "offset": record.offset}
        log.warning("an effect is a dead letter: %s", failed.detail, extra=fields)
        failure = ProcessingFailure(STAGE, failed.reason, failed.detail, rule=failed.name)
        return dead_letter(record, failure, now_ms=self._clock(), **ids)

    async def _append_letters(self, letters: list[Outgoing]) -> None:
        if letters:
            await Retrying(log, "dead letters have to wait").until_done(
                lambda: self._appender.append_or_stop(letters)
            )


def _not_sent(send: EffectCommand, error: Exception) -> ReplySent:
    """Return the outcome of a command that no record can hold."""
    return ReplySent(
        command_id=send.command_id,
        code=INTERNAL,
        message=describe_error(error),
        status="",
        run_number=0,
        partition=-1,
        position=-1,
    )


def _addressed(send: EffectCommand) -> Addressed:
    return Addressed(*(send.workflow, send.instance_id), send.command, send.command_id, send.trace)


def _ids(record: Incoming) -> dict[str, Any]:
    with contextlib.suppress(HeadwaterError):
        event = decode(record.value, EffectDecided)
        return {"event_id": event.event_id, "request_id": event.request_id}
    return {}
