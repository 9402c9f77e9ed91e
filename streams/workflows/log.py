"""The Kafka side of the workflow log: what the owner of a partition reads and writes.

Ownership. `claim` appends a claim to a partition of `workflow-history`; its offset is the epoch of
everything that its writer appends from then on. Kafka refuses no one, so an acknowledgement alone
says nothing: `append` compares the offsets with those it expected. If they follow what we wrote
last, nobody else has written. If they do not, what lies between is read, and a claim in it means
that the partition has another owner: our records are void for every reader, and OwnershipLost says
so before the caller can act on them. `processors.runs.claims` has the fold, ADR 0006 the argument.

Fail-stop. After any error a partition takes nothing more until it is claimed again, for then the
caller's memory may be ahead of the log; claiming means to read it up to the claim. A producer that
has failed a partition is of no more use to that one, and takes no more claims. The others that were
claimed through it go on with it: they may have a leader where that one has none.

Order. Appends may overlap. What the log holds of an epoch is always a beginning of what was handed
over: all of it goes through one producer, batches are queued one call after the other, and the
broker refuses those of a producer whose predecessor is missing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
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
from headwater.schemas.snapshots import SnapshotTaken
from headwater.schemas.topics import (
    MAX_VALUE_BYTES,
    WORKFLOW_HISTORY,
    WORKFLOW_REPLIES,
    WORKFLOW_SNAPSHOTS,
)
from headwater.streams.engine.quarantine import described
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.producers import Producers
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: A record with its offset.
Placed: TypeAlias = tuple[int, HistoryAppended]

#: How long a producer may take to end: longer than an append of its last batches, and bounded
#: because while Kafka is away it would wait for ever.
_STOP_S: Final = 10.0


#: The header of a tombstone that says as of when an instance has no state any more.
_REMOVED: Final = "removed"
#: How often it is tried again to append what not everybody reads yet.
_UNWRITABLE_S: Final = 5.0


#: A reply to a command that nobody has sent.
_NOBODYS: Final = encode(
    ReplySent(command_id="", code="", message="", status="", run_number=0, partition=0, position=0)
)


class OwnershipLost(HeadwaterError):
    """A partition must be claimed before anything can be appended to it.

    What was just appended counts for nobody, or it is not known whether it does. `pause_s` is how
    long to wait before claiming again, because the same would happen at once.
    """

    disposition = Disposition.RETRY
    code = "ownership_lost"

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass(slots=True, eq=False)
class Tenure:
    """A claimed partition, as its claimant knows it.

    Shape:  producer is what it was claimed through; next is the offset at which our next record
            lies if nobody else writes; stopped says why nothing is taken any more, and is empty
            while it is; pause_s how long not to claim it again.
    """

    epoch: int
    producer: Appender
    next: int
    stopped: str = ""
    pause_s: float = 0.0
    #: Records that were handed over.
    taken: int = 0
    #: Held while batches are queued, so that those of one call stay together.
    queueing: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Done when the append before the next one was checked.
    checked: asyncio.Future[None] | None = None

    def stop(self, why: str) -> None:
        """Takes nothing more; the first reason stays."""
        self.stopped = self.stopped or why


class WorkflowLog:
    """The four workflow topics, for the owner of some of their partitions."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        clock: BrokerClock,
    ) -> None:
        """Make it; it connects when it is started.

        Args:
            cluster: The cluster.
            client_id: Names the clients in the broker's logs, and begins the keys of claims.
            clock: Learns the brokers' time from each append.
        """
        self._cluster = cluster
        self._clock = clock
        self._producers = Producers(cluster, f"{client_id}-history", self._clock)
        # A producer of its own: what is no history waits for none, and its errors stop none.
        self._aside = Appender(
            cluster=cluster, client_id=f"{client_id}-aside", broker_clock=self._clock
        )
        self._tenures: dict[int, Tenure] = {}
        self._claimant = client_id.encode()
        self._claims = 0

    async def start(self) -> None:
        """Connects.

        Errors: BrokerUnavailable.
        """
        await self._producers.current.start()
        await self._aside.start()

    async def stop(self) -> None:
        """Gives up all partitions and disconnects."""
        for partition in list(self._tenures):
            self.release(partition)
        await asyncio.gather(self._producers.stop(), self._aside.stop(_STOP_S))

    async def partitions(self) -> int:
        """The number of partitions of the workflow topics.

        Errors: BrokerUnavailable, also when there are no such topics.
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
        """Claims a partition; returns the epoch, which is the offset of the claim.

        The caller reads the partition up to and including its claim before it appends anything.

        Shape:  workflows, params and limits are those of `claim_of`.
        Errors: BrokerUnavailable; the claim may then be in the log, or come there later, and is
                then one more claim that is not ours.
        """
        record = claim_of(owner, workflows or {}, self._clock.now_ms(), params, limits)
        self.release(partition)
        producer = self._producers.producer_for(partition)
        try:
            epoch = await _place(
                producer, Outgoing(WORKFLOW_HISTORY, partition, self._claim_key(), encode(record))
            )
        except BrokerUnavailable:
            self._producers.replace_failed(partition, producer)
            raise
        self.release(partition)
        self._tenures[partition] = Tenure(epoch, producer, epoch + 1)
        return epoch

    def _claim_key(self) -> bytes:
        """A key that no other claim has: none of them is ever superseded."""
        self._claims += 1
        return record_key(self._claimant, self._clock.now().ms, self._claims)

    def release(self, partition: int) -> None:
        """Gives up a partition; appends under way raise OwnershipLost, whatever becomes of them."""
        tenure = self._tenures.pop(partition, None)
        if tenure is not None:
            tenure.stop("it was given up")
            self._producers.leave_partition(partition)

    async def read(self, partition: int, start: int, end: int) -> AsyncGenerator[list[Placed]]:
        """Yields the records from start on and before end, some at a time, with their offsets.

        Shape:  an end that the log has reached; offsets may have holes. Whether a record counts
                is for `Claims` to say.
        Errors: BrokerUnavailable, UndecodableRecord, UnknownSchema; NewerSchema, when all before
                that record was given.
        """
        topics = [WORKFLOW_HISTORY]
        reading = read_partition(self._cluster, topics, partition, start=start, end=end)
        async with aclosing(reading) as batches:
            async for records in batches:
                known, newer = readable(records)
                yield [each for record in known if (each := _decoded(record)) is not None]
                if newer is not None:
                    raise NewerSchema(newer_schema_message(newer))

    async def append(self, partition: int, records: Sequence[tuple[bytes, HistoryAppended]]) -> int:
        """Appends records, each with its instance's key; returns where they begin once they count.

        Shape:  the offset of the first; the others follow it. Calls may overlap; they take effect
                in the order in which they were made.
        Errors: OwnershipLost. InvariantViolation for a record too large for Kafka.
        """
        tenure = self._taking(partition, records)
        checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        firsts: list[int] = []
        try:
            async with tenure.queueing:
                self._taking(partition, records)
                before, tenure.checked = tenure.checked, checked
                outgoing = [_outgoing(partition, key, each, tenure) for key, each in records]
                sent = await tenure.producer.send(outgoing)
            firsts = await tenure.producer.acknowledged(sent)
            if before is not None and not before.done():
                await asyncio.wait((before,))
            await self._check(partition, tenure, firsts, sent)
        except NotYetReadable as error:
            tenure.stop(error.message)
            tenure.pause_s = _UNWRITABLE_S
        except BrokerUnavailable as error:
            tenure.stop(error.message)
            self._producers.replace_failed(partition, tenure.producer)
        except BaseException as error:
            tenure.stop(f"an append ended with {error!r}")
            raise
        finally:
            checked.set_result(None)
        if tenure.stopped:
            raise _lost(partition, tenure.stopped, tenure.pause_s)
        return firsts[0]

    def _taking(
        self, partition: int, records: Iterable[tuple[bytes, HistoryAppended]] = ()
    ) -> Tenure:
        """The tenure of a partition.

        Errors: OwnershipLost, when it takes nothing, or not these records.
        """
        tenure = self._tenures.get(partition)
        if tenure is None:
            raise _lost(partition, "it is not claimed")
        if tenure.stopped:
            raise _lost(partition, tenure.stopped, tenure.pause_s)
        epoch = tenure.epoch
        if any(record.epoch != epoch for _, record in records):
            why = f"the records are of another epoch than its claim at offset {epoch}"
            raise _lost(partition, why)
        return tenure

    async def _check(
        self,
        partition: int,
        tenure: Tenure,
        firsts: Sequence[int],
        sent: Sequence[Sent],
    ) -> None:
        """Compare where records are with where they should be, after all appends before did."""
        for number, (first, batch) in enumerate(zip(firsts, sent, strict=True)):
            if tenure.stopped:
                return
            if first < tenure.next:
                tenure.stop(f"expected offset {tenure.next}, found {first}: the log was cut")
            elif first > tenure.next and number:
                # The caller counts on consecutive offsets; claiming again, it reads the true ones.
                tenure.stop(f"somebody wrote between our records, before offset {first}")
            elif first > tenure.next:
                await self._look_for_claims(partition, tenure, first)
            tenure.next = first + batch.records

    async def _look_for_claims(self, partition: int, tenure: Tenure, end: int) -> None:
        """Stops a tenure if a claim was appended since our last record; ours lies before that."""
        try:
            async for placed in self.read(partition, tenure.next, end):
                for offset, record in placed:
                    claim = record.events[0]
                    if isinstance(claim, PartitionClaimed):
                        tenure.stop(f"{claim.owner} claimed it at offset {offset}")
        except NewerSchema as error:
            tenure.stop(error.message)  # Whoever wrote it has claimed the partition, or will.

    async def settle_time(self) -> None:
        """End a doubt about the time, by a reply that is nobody's; wait for Kafka if it is away.

        What was decided meanwhile might get a time that is hours wrong.
        """
        nothing = [Outgoing(WORKFLOW_REPLIES, 0, None, _NOBODYS)]
        waiting = Retrying(log, "workflows wait, as it is not known what time it is")
        await self._clock.settle(
            lambda: waiting.until_done(lambda: self._aside.append_or_stop(nothing))
        )

    async def write_snapshots(
        self, snapshots: Mapping[int, Sequence[tuple[bytes, SnapshotTaken]]]
    ) -> None:
        """Writes states of instances; tombstones for those that have none any more.

        Shape:  (key, snapshot) by partition. Only of records whose append has returned: a
                snapshot, unlike a record, has no epoch to make it void.
        Errors: OwnershipLost, BrokerUnavailable.
        """
        for partition in snapshots:
            self._taking(partition)
        await self._aside.append_or_stop(
            [
                _of_snapshot(partition, key, snapshot)
                for partition, group in snapshots.items()
                for key, snapshot in group
            ]
        )

    async def read_snapshots(
        self, partition: int
    ) -> AsyncGenerator[tuple[bytes, SnapshotTaken | None]]:
        """Yields all snapshots of a partition by key; of several for one key the last is valid.

        Snapshots are disposable: one that a newer release wrote is one that is not there.
        Errors: BrokerUnavailable, UndecodableRecord, UnknownSchema.
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
    """Return why records cannot be written, by the keys of their instances; those that can are not.

    Args:
        records: Records with the keys of their instances.
    """
    faults: dict[str, str] = {}
    for key, record in records:
        try:
            size = len(encode(record))
        except NotYetReadable:
            continue
        except Exception as error:  # noqa: BLE001, whatever it is, the record has no bytes
            faults[key.decode()] = f"no record can hold what was decided: {described(error)}"
            continue
        if size > MAX_VALUE_BYTES:
            found = f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {size}"
            faults[key.decode()] = f"no record can hold what was decided: {found}"
    return faults


def _decoded(record: Incoming) -> Placed | None:
    """Return a record with its offset; None for one that is deleted, or that nobody can read."""
    if record.value is None:
        return None
    try:
        return record.offset, decode(record.value, HistoryAppended)
    except (UndecodableRecord, UnknownSchema) as error:
        # Readers of all kinds pass over it; if events depend on it, its instance is quarantined.
        log.error("a record of the history cannot be read: %s", error)  # noqa: TRY400
        return None


def _snapshot(value: bytes | None) -> SnapshotTaken | None:
    """Return a snapshot; None for one that nobody can read, as if it were not there."""
    try:
        return decode(value, SnapshotTaken)
    except (UndecodableRecord, UnknownSchema):
        return None


async def _place(producer: Appender, claim: Outgoing) -> int:
    """Appends a claim; returns its offset.

    Errors: BrokerUnavailable.
    """
    (epoch,) = await producer.acknowledged(await producer.send([claim]))
    if epoch < 0:
        raise BrokerUnavailable(
            f"expected the offset of the claim of partition {claim.partition}, found that the "
            "broker has the claim and does not know where; claim again"
        )
    return epoch


def _outgoing(partition: int, key: bytes, record: HistoryAppended, tenure: Tenure) -> Outgoing:
    value = encode(record)
    tenure.taken += 1
    if len(value) > MAX_VALUE_BYTES:
        raise InvariantViolation(
            f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {len(value)} for "
            f"{key.decode()}; usual cause: results that nobody has limited"
        )
    return Outgoing(WORKFLOW_HISTORY, partition, record_key(key, tenure.epoch, tenure.taken), value)


def _of_snapshot(partition: int, key: bytes, snapshot: SnapshotTaken) -> Outgoing:
    value = encode(snapshot)
    if snapshot.state or not key:
        return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, value)
    return Outgoing(WORKFLOW_SNAPSHOTS, partition, key, None, [(_REMOVED, value)])


def _lost(partition: int, why: str, pause_s: float = 0.0) -> OwnershipLost:
    return OwnershipLost(f"expected to own partition {partition}, found: {why}", pause_s)
