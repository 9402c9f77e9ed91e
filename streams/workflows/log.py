"""Kafka access to the workflow log, for owners of partitions.

Ownership. `claim` appends a claim to a partition of `workflow-history`; its offset is the epoch of
all further records of its writer. Kafka accepts records of any producer, so an acknowledgement
alone proves nothing: the returned offsets are compared with the expected ones. If they follow the
last record, no other process has written. Otherwise the records in between are read. A claim among
them means that the partition has another owner and every reader ignores our records; the outcome of
the append is then OwnershipLost, so the caller cannot act on them. `processors.runs.claims` has the
fold, ADR 0006 the argument.

Fail-stop. After any error, a partition accepts no more records until it is claimed again, because
the caller's memory may be ahead of the log; claiming includes reading the log up to the claim. So
what may be in the log is not sent again: a lost connection ends the leases of all partitions in
flight on it. What a broker has refused is sent again, with the same sequence. A producer that
failed a partition is not used for that partition or for new claims. Other partitions that were
claimed through it continue to use it: they may have a leader when the failed one has not.

Order. Appends may overlap. The records of an epoch in the log are always a prefix of what was
passed to `append`: they go through one producer, batches are queued in the order of the calls, one
of a partition is in flight at a time, and none is sent after one that failed.

Speed. Claims are sent by aiokafka. Records, which are many, are sent under the same producer id
without a task or future for each (ADR 0067).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from aiokafka.errors import KafkaError

from headwater.processors.runs.claims import NO_LIMITS, NO_PARAMS, claim_of
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import (
    BrokerUnavailable,
    NewerSchema,
    NotYetReadable,
    UndecodableRecord,
    UnknownSchema,
)
from headwater.schemas.history import HistoryAppended, PartitionClaimed, ReplySent, record_key
from headwater.schemas.newer import is_newer, newer_schema_message, readable
from headwater.schemas.records import SnapshotTaken
from headwater.schemas.topics import (
    MAX_VALUE_BYTES,
    WORKFLOW_HISTORY,
    WORKFLOW_REPLIES,
    WORKFLOW_SNAPSHOTS,
)
from headwater.streams.engine.quarantine import describe_error
from headwater.streams.kafka.appender import Appender, Producers
from headwater.streams.kafka.batch_sender import Answer, BatchQueue, BatchSender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.ownership.leases import Gap, LogCut
from headwater.streams.workflows.history_lease import Append, Done, HistoryLease, OwnershipLost

log = logging.getLogger(__name__)

#: A record with its offset.
PositionedRecord: TypeAlias = tuple[int, HistoryAppended]

#: Longest time to stop a producer, in seconds: longer than an append of its last batches. Without
#: a limit it would wait forever while Kafka is down.
_STOP_S: Final = 10.0


#: Header of the tombstone of a snapshot; it has the position of the deletion.
_REMOVED: Final = "removed"
#: Pause before claiming again when a record cannot be written until all readers are upgraded.
_UNWRITABLE_S: Final = 5.0
#: Pause before claiming again after an error that is likely to recur.
_AFTER_BUG_S: Final = 30.0


#: A reply to a command that does not exist.
_EMPTY_REPLY: Final = encode(
    ReplySent(command_id="", code="", message="", status="", run_number=0, partition=0, position=0)
)


class WorkflowLog:
    """The four workflow topics, for the owner of some of their partitions."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        clock: BrokerClock,
        reported: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the log. `start` connects it.

        Args:
            cluster: The cluster.
            client_id: Prefix of client ids in the broker's logs, and of the keys of claims.
            clock: Is updated with the brokers' time by every append.
            reported: Called after the outcomes of all appends that one response has completed.
        """
        self._cluster = cluster
        self._clock = clock
        self._producers = Producers(cluster, f"{client_id}-history", self._clock)
        # A separate producer: other records do not wait for the history, nor fail it.
        self._aside = Appender(
            cluster=cluster, client_id=f"{client_id}-aside", broker_clock=self._clock
        )
        self._leases: dict[int, HistoryLease] = {}
        self._sender = BatchSender(
            cluster=cluster,
            client_id=f"{client_id}-records",
            topic=WORKFLOW_HISTORY,
            clock=clock,
            answered=self._answered,
        )
        self._reported = reported
        self._checking: set[asyncio.Task[None]] = set()
        self._claimant = client_id.encode()
        self._claims = 0

    async def start(self) -> None:
        """Connect.

        Raises:
            BrokerUnavailable: Kafka is not available.
        """
        await self._producers.current.start()
        await self._aside.start()

    async def stop(self) -> None:
        """Release all partitions and disconnect."""
        for partition in list(self._leases):
            self.release(partition)
        for task in self._checking:
            task.cancel()
        await asyncio.gather(*self._checking, return_exceptions=True)
        await self._sender.stop()
        await asyncio.gather(self._producers.stop(), self._aside.stop(_STOP_S))

    async def partitions(self) -> int:
        """Return the number of partitions of the workflow topics.

        Raises:
            BrokerUnavailable: Kafka is not available, or there are no such topics.
        """
        return await self._producers.current.partitions(WORKFLOW_HISTORY)

    async def claim(
        self,
        partition: int,
        owner: str,
        workflows: Mapping[str, str] | None = None,
        params: Mapping[str, str] = NO_PARAMS,
        limits: Mapping[str, Concurrency] = NO_LIMITS,
    ) -> int:
        """Claim a partition. Return the epoch, which is the offset of the claim.

        The caller must read the partition up to and including its claim before it appends.

        Args:
            partition: The partition.
            owner: Name of the owner.
            workflows: As for `claim_of`.
            params: As for `claim_of`.
            limits: As for `claim_of`.

        Raises:
            BrokerUnavailable: The claim may be appended, also later. It then counts as a claim of
                another owner.
        """
        record = claim_of(owner, workflows or {}, self._clock.now_ms(), params, limits)
        self.release(partition)
        producer = self._producers.producer_for(partition)
        try:
            epoch = await _append_claim(
                producer, Outgoing(WORKFLOW_HISTORY, partition, self._claim_key(), encode(record))
            )
        except BrokerUnavailable:
            self._producers.replace_failed(partition, producer)
            raise
        self.release(partition)
        self._leases[partition] = HistoryLease(partition, epoch, producer)
        return epoch

    def _claim_key(self) -> bytes:
        """Return a unique key for a claim, because no claim may be compacted."""
        self._claims += 1
        return record_key(self._claimant, self._clock.now().ms, self._claims)

    def release(self, partition: int) -> None:
        """Release a partition. The outcome of appends in flight is OwnershipLost."""
        lease = self._leases.pop(partition, None)
        if lease is None:
            return
        lease.end("it was released")
        done = lease.take_done()
        if done:
            # Not in the call: the caller may be releasing the partition elsewhere, too.
            asyncio.get_running_loop().call_soon(self._report, done)
        if lease.queue.in_flight is None:
            self._producers.leave_partition(partition)
        else:
            # A claim through the same producer could arrive before the batch.
            self._producers.replace_failed(partition, lease.producer)

    async def read(
        self, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[PositionedRecord]]:
        """Yield the records from `start` to before `end` in batches, with their offsets.

        Args:
            partition: The partition.
            start: First offset, inclusive.
            end: Last offset, exclusive; must already exist. Offsets may have gaps. `Claims`
                decides which records count.

        Raises:
            BrokerUnavailable: Kafka is not available.
            UndecodableRecord: A record cannot be decoded.
            UnknownSchema: A record has an unknown schema.
            NewerSchema: A record was written by a newer release. All records before were yielded.
        """
        topics = [WORKFLOW_HISTORY]
        batch_reader = read_partition(self._cluster, topics, partition, start=start, end=end)
        async with aclosing(batch_reader) as batches:
            async for records in batches:
                known, newer = readable(records)
                yield [decoded for record in known if (decoded := _decoded(record)) is not None]
                if newer is not None:
                    raise NewerSchema(newer_schema_message(newer))

    def append(self, appends: Iterable[Append]) -> None:
        """Append records; those of all partitions of a leader in one request.

        Calls may overlap, and take effect in order. The records of an append have consecutive
        offsets. Its outcome is OwnershipLost if the partition has another owner or the effect is
        not known, and InvariantViolation if a record is too large for Kafka.
        """
        queues: list[BatchQueue] = []
        refused: list[Done] = []
        for append in appends:
            lease = self._leases.get(append.partition)
            if lease is None:
                refused.append((append, _not_claimed(append.partition)))
                continue
            refused += _accept(lease, append)
            if lease.is_checked:
                queues.append(lease.queue)
        if refused:
            # Not in the call: the caller may release partitions.
            asyncio.get_running_loop().call_soon(self._report, refused)
        self._sender.send(queues)

    async def appended(self, partitions: Iterable[int]) -> None:
        """Wait for the appends to partitions that are in flight now, whatever their outcome."""
        leases = [self._leases[number] for number in partitions if number in self._leases]
        in_flight = [latest for lease in leases if (latest := lease.latest()) is not None]
        if in_flight:
            await asyncio.wait(in_flight)

    def _answered(self, answers: Sequence[Answer]) -> None:
        """Check the results of a request, send the next one, and report what is done."""
        done: list[Done] = []
        continuing: list[BatchQueue] = []
        for answer in answers:
            lease = self._leases.get(answer.queue.partition)
            if lease is None or lease.queue is not answer.queue:
                continue  # It was released meanwhile.
            gap = self._record_answer(lease, answer)
            if gap is not None and not lease.over:
                self._check(lease, gap)
                continue
            done += lease.take_done()
            continuing.append(lease.queue)
        self._sender.send(continuing)
        self._report(done)

    def _record_answer(self, lease: HistoryLease, answer: Answer) -> Gap | None:
        if isinstance(answer.result, KafkaError):
            found = f"found: {answer.result!r}"
            lease.end(f"expected records to be acknowledged by {self._cluster}, {found}")
            self._producers.replace_failed(lease.partition, lease.producer)
            return None
        try:
            return lease.acknowledge(answer.result, answer.records)
        except LogCut as error:
            lease.end(error.message)
            return None

    def _report(self, done: Iterable[Done]) -> None:
        for append, outcome in done:
            append.done(outcome)
        self._reported()

    def _check(self, lease: HistoryLease, gap: Gap) -> None:
        """Read the records of other processes before ours. Further appends wait."""
        lease.is_checked = False
        checking = asyncio.create_task(self._look_for_claims(lease, gap))
        self._checking.add(checking)
        checking.add_done_callback(lambda _: self._checked(lease, checking))

    def _checked(self, lease: HistoryLease, checking: asyncio.Task[None]) -> None:
        self._checking.discard(checking)
        if checking.cancelled():
            return
        lease.is_checked = True
        error = checking.exception()
        if isinstance(error, BrokerUnavailable):
            lease.end(error.message)
            self._producers.replace_failed(lease.partition, lease.producer)
        elif error is not None:
            log.error("the records before ours cannot be read", exc_info=error)
            lease.end(f"an append ended with {error!r}")
            lease.pause_s = _AFTER_BUG_S
        done = lease.take_done()
        self._sender.send([lease.queue])
        self._report(done)

    async def _look_for_claims(self, lease: HistoryLease, gap: Gap) -> None:
        """End a lease if another process has claimed its partition."""
        try:
            async for records in self.read(lease.partition, gap.start, gap.end):
                for offset, record in records:
                    claim = record.events[0]
                    if isinstance(claim, PartitionClaimed):
                        lease.end(f"{claim.owner} claimed it at offset {offset}")
        except NewerSchema as error:
            lease.end(error.message)  # Its writer has claimed the partition, or will.

    async def settle_time(self) -> None:
        """Resolve a doubt about the time by appending an empty reply, waiting for Kafka.

        Otherwise decisions might be made with a time that is hours off.
        """
        records = [Outgoing(WORKFLOW_REPLIES, 0, None, _EMPTY_REPLY)]
        retrying = Retrying(log, "workflows wait until the time is known")
        await self._clock.settle(
            lambda: retrying.until_done(lambda: self._aside.append_or_stop(records))
        )

    async def write_snapshots(
        self, snapshots: Mapping[int, Sequence[tuple[bytes, SnapshotTaken]]]
    ) -> None:
        """Append states of instances, and tombstones for instances that were deleted.

        Args:
            snapshots: Keys and snapshots by partition. All their events must be durable: snapshots,
                unlike records, are not fenced by epochs.

        Raises:
            OwnershipLost: A partition is not owned.
            BrokerUnavailable: Kafka is not available.
        """
        for partition in snapshots:
            lease = self._leases.get(partition)
            if lease is None:
                raise _not_claimed(partition)
            if lease.over:
                raise lease.lost()
        await self._aside.append_or_stop(
            [
                _outgoing_snapshot(partition, key, snapshot)
                for partition, group in snapshots.items()
                for key, snapshot in group
            ]
        )

    async def read_snapshots(
        self, partition: int
    ) -> AsyncGenerator[tuple[bytes, SnapshotTaken | None]]:
        """Yield all snapshots of a partition by key. The last one of a key is valid.

        Snapshots are disposable: None is yielded for one that a newer release wrote.

        Raises:
            BrokerUnavailable: Kafka is not available.
        """
        async with aclosing(
            read_partition(self._cluster, [WORKFLOW_SNAPSHOTS], partition)
        ) as batches:
            async for records in batches:
                for record in records:
                    value = record.value
                    if value is None:
                        value = next((v for name, v in record.headers if name == _REMOVED), None)
                    known = value is not None and not is_newer(record)
                    yield record.key or b"", _snapshot(value) if known else None


def unwritable(records: Iterable[tuple[bytes, HistoryAppended]]) -> dict[str, str]:
    """Return why records cannot be written, by the keys of their instances.

    Args:
        records: Records with the keys of their instances.
    """
    problems: dict[str, str] = {}
    for key, record in records:
        try:
            size = len(encode(record))
        except NotYetReadable:
            continue
        except Exception as error:  # noqa: BLE001, any error means that it cannot be written
            problems[key.decode()] = (
                f"the decision does not fit into a record: {describe_error(error)}"
            )
            continue
        if size > MAX_VALUE_BYTES:
            reason = f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {size}"
            problems[key.decode()] = f"the decision does not fit into a record: {reason}"
    return problems


def _decoded(record: Incoming) -> PositionedRecord | None:
    """Return a record with its offset; None for a tombstone or a record that cannot be decoded."""
    if record.value is None:
        return None
    try:
        return record.offset, decode(record.value, HistoryAppended)
    except (UndecodableRecord, UnknownSchema) as error:
        # All readers skip it. If later events depend on it, its instance is quarantined.
        log.error("a record of the history cannot be read: %s", error)  # noqa: TRY400
        return None


def _snapshot(value: bytes | None) -> SnapshotTaken | None:
    """Return a snapshot, or None if it cannot be decoded."""
    try:
        return decode(value, SnapshotTaken)
    except (UndecodableRecord, UnknownSchema):
        return None


def _accept(lease: HistoryLease, append: Append) -> list[Done]:
    """Queue an append. Return what is done because it cannot be queued."""
    try:
        lease.accept(append)
    except OwnershipLost as error:
        return [(append, error)]
    except NotYetReadable as error:
        lease.pause_s = _UNWRITABLE_S
        lease.end(error.message)
        return [*lease.take_done(), (append, lease.lost())]
    except Exception as error:  # noqa: BLE001, it is the outcome
        lease.end(f"an append ended with {error!r}")
        return [*lease.take_done(), (append, error)]
    return []


def _not_claimed(partition: int) -> OwnershipLost:
    return OwnershipLost.of(partition, "it is not claimed")


async def _append_claim(producer: Appender, claim: Outgoing) -> int:
    """Append a claim, and return its offset.

    Raises:
        BrokerUnavailable: The claim, or its offset, is not acknowledged.
    """
    (epoch,) = await producer.acknowledged(await producer.send([claim]))
    if epoch < 0:
        raise BrokerUnavailable(
            f"expected the offset of the claim of partition {claim.partition}, found that the "
            "broker acknowledged the claim without its offset; claim again"
        )
    return epoch


def _outgoing_snapshot(partition: int, key: bytes, snapshot: SnapshotTaken) -> Outgoing:
    value = encode(snapshot)
    if snapshot.state or not key:
        return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, value)
    return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, None, [(_REMOVED, value)])
