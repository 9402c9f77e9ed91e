"""Kafka access to the workflow log, for owners of partitions.

Ownership. `claim` appends a claim to a partition of `workflow-history`; its offset is the epoch of
all further records of its writer. Kafka accepts records of any producer, so an acknowledgement
alone proves nothing: `append` compares the returned offsets with the expected ones. If they follow
the last record, no other process has written. Otherwise the records in between are read. A claim
among them means that the partition has another owner and every reader ignores our records; `append`
then raises OwnershipLost before the caller can act on them. `processors.runs.claims` has the fold,
ADR 0006 the argument.

Fail-stop. After any error, a partition accepts no more records until it is claimed again, because
the caller's memory may be ahead of the log; claiming includes reading the log up to the claim. A
producer that failed a partition is not used for that partition or for new claims. Other partitions
that were claimed through it continue to use it: they may have a leader when the failed one has not.

Order. Appends may overlap. The records of an epoch in the log are always a prefix of what was
passed to `append`: they go through one producer, batches are queued in the order of the calls, and
the broker refuses batches of a producer whose predecessor is missing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from headwater.processors.runs.claims import NO_LIMITS, NO_PARAMS, claim_of
from headwater.processors.runs.slots import Concurrency
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import (
    BrokerUnavailable,
    Disposition,
    HeadwaterError,
    InvariantViolation,
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
from headwater.streams.kafka.appender import Appender, Producers, Sent
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.ownership.leases import Gap, LogCut, PartitionLease

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


#: A reply to a command that does not exist.
_EMPTY_REPLY: Final = encode(
    ReplySent(command_id="", code="", message="", status="", run_number=0, partition=0, position=0)
)


class OwnershipLost(HeadwaterError):
    """A partition must be claimed before anything can be appended to it.

    The last append has no effect, or its effect is unknown.

    Attributes:
        pause_s: How long to wait before claiming again, in seconds, because the same error would
            occur at once.
    """

    disposition = Disposition.RETRY
    code = "ownership_lost"

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class HistoryLease(PartitionLease):
    """The lease of a partition of the history.

    Attributes:
        producer: Producer through which it was claimed.
        pause_s: How long not to claim it again, in seconds.
        taken: Number of records passed to `append`.
        queueing: Held while batches are queued, so that those of one call are consecutive.
        checked: Done when the latest append was checked.
    """

    def __init__(self, partition: int, epoch: int, producer: Appender) -> None:
        super().__init__(partition, epoch, {WORKFLOW_HISTORY: epoch})
        self.producer = producer
        self.pause_s = 0.0
        self.taken = 0
        self.queueing = asyncio.Lock()
        self.checked: asyncio.Future[None] | None = None

    def lost(self) -> OwnershipLost:
        """Return the error of appends after its end."""
        return _lost(self.partition, self.over, self.pause_s)


class WorkflowLog:
    """The four workflow topics, for the owner of some of their partitions."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        clock: BrokerClock,
    ) -> None:
        """Create the log. `start` connects it.

        Args:
            cluster: The cluster.
            client_id: Prefix of client ids in the broker's logs, and of the keys of claims.
            clock: Is updated with the brokers' time by every append.
        """
        self._cluster = cluster
        self._clock = clock
        self._producers = Producers(cluster, f"{client_id}-history", self._clock)
        # A separate producer: other records do not wait for the history, nor fail it.
        self._aside = Appender(
            cluster=cluster, client_id=f"{client_id}-aside", broker_clock=self._clock
        )
        self._leases: dict[int, HistoryLease] = {}
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
        """Release a partition. Appends in flight raise OwnershipLost, whatever their outcome."""
        lease = self._leases.pop(partition, None)
        if lease is not None:
            lease.end("it was released")
            self._producers.leave_partition(partition)

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

    async def append(self, partition: int, records: Sequence[tuple[bytes, HistoryAppended]]) -> int:
        """Append records with their instances' keys. Return their first offset once they count.

        The records have consecutive offsets. Calls may overlap, and take effect in order.

        Raises:
            OwnershipLost: The partition has another owner, or the outcome is not known.
            InvariantViolation: A record is too large for Kafka.
        """
        lease = self._accepting(partition, records)
        checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        firsts: list[int] = []
        try:
            async with lease.queueing:
                self._accepting(partition, records)
                before, lease.checked = lease.checked, checked
                outgoing = [_outgoing(lease, key, record) for key, record in records]
                sent = await lease.producer.send(outgoing)
            firsts = await lease.producer.acknowledged(sent)
            if before is not None and not before.done():
                await asyncio.wait((before,))
            await self._check(lease, firsts, sent)
        except (NotYetReadable, LogCut) as error:
            lease.end(error.message)
            lease.pause_s = _UNWRITABLE_S if isinstance(error, NotYetReadable) else 0.0
        except BrokerUnavailable as error:
            lease.end(error.message)
            self._producers.replace_failed(partition, lease.producer)
        except BaseException as error:
            lease.end(f"an append ended with {error!r}")
            raise
        finally:
            checked.set_result(None)
        if lease.over:
            raise lease.lost()
        return firsts[0]

    def _accepting(
        self, partition: int, records: Iterable[tuple[bytes, HistoryAppended]] = ()
    ) -> HistoryLease:
        """Return the lease of a partition that accepts records.

        Raises:
            OwnershipLost: It accepts none, or not these records.
        """
        lease = self._leases.get(partition)
        if lease is None:
            raise _lost(partition, "it is not claimed")
        if lease.over:
            raise lease.lost()
        epoch = lease.epoch
        if any(record.epoch != epoch for _, record in records):
            reason = f"the records are of another epoch than its claim at offset {epoch}"
            raise _lost(partition, reason)
        return lease

    async def _check(
        self, lease: HistoryLease, firsts: Sequence[int], sent: Sequence[Sent]
    ) -> None:
        """Check for records of other processes before ours, after all earlier appends."""
        for number, (first, batch) in enumerate(zip(firsts, sent, strict=True)):
            if lease.over:
                return
            gap = lease.appended(batch.topic, batch.partition, first, batch.records)
            if gap is not None and number:
                # The caller relies on consecutive offsets. When it claims again, it reads the log.
                lease.end(f"another process wrote between our records, before offset {first}")
            elif gap is not None:
                await self._look_for_claims(lease, gap)

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
            self._accepting(partition)
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


def _outgoing(lease: HistoryLease, key: bytes, record: HistoryAppended) -> Outgoing:
    value = encode(record)
    lease.taken += 1
    if len(value) > MAX_VALUE_BYTES:
        raise InvariantViolation(
            f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {len(value)} for "
            f"{key.decode()}; usual cause: a result without a size limit"
        )
    unique_key = record_key(key, lease.epoch, lease.taken)
    return Outgoing(WORKFLOW_HISTORY, lease.partition, unique_key, value)


def _outgoing_snapshot(partition: int, key: bytes, snapshot: SnapshotTaken) -> Outgoing:
    value = encode(snapshot)
    if snapshot.state or not key:
        return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, value)
    return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, None, [(_REMOVED, value)])


def _lost(partition: int, reason: str, pause_s: float = 0.0) -> OwnershipLost:
    return OwnershipLost(f"expected to own partition {partition}, found: {reason}", pause_s)
