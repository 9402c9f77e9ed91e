"""The Kafka side of the workflow log: what the owner of a partition reads and writes.

Ownership. `claim` appends a claim to a partition of `workflow-history`; its offset is the epoch of
everything that its writer appends from then on. Kafka refuses no one, so an acknowledgement alone
says nothing: `append` compares the offsets with those it expected. If they follow what we wrote
last, nobody else has written. If they do not, what lies between is read, and a claim in it means
that the partition has another owner: our records are void for every reader, and OwnershipLost says
so before the caller can act on them. `processors.runs.claims` has the fold, ADR 0006 the argument.

Fail-stop. After any error a partition takes nothing more until it is claimed again, for then the
caller's memory may be ahead of the log; claiming means to read it up to the claim. An error of the
producer stops all partitions: an idempotent producer that has lost a batch is of no more use.

Order. Appends may overlap. What the log holds of an epoch is always a beginning of what was handed
over: batches are queued one call after the other, and the broker refuses those of a producer whose
predecessor is missing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.processors.runs.claims import claim_of
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import (
    BrokerUnavailable,
    Disposition,
    HeadwaterError,
    InvariantViolation,
    NewerSchema,
    NotYetReadable,
)
from headwater.schemas.history import HistoryAppended, PartitionClaimed, ReplySent
from headwater.schemas.newer import is_newer, readable, why_waits
from headwater.schemas.snapshots import SnapshotTaken
from headwater.schemas.topics import (
    MAX_VALUE_BYTES,
    WORKFLOW_HISTORY,
    WORKFLOW_REPLIES,
    WORKFLOW_SNAPSHOTS,
)
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Outgoing

#: A record with its offset.
Placed: TypeAlias = tuple[int, HistoryAppended]

#: How long a producer may take to end: longer than an append of its last batches, and bounded
#: because while Kafka is away it would wait for ever.
_STOP_S: Final = 10.0


#: How often it is tried again to append what not everybody reads yet.
_UNWRITABLE_S: Final = 5.0


class OwnershipLost(HeadwaterError):
    """Partitions must be claimed before anything can be appended to them.

    What was just appended to `partitions` counts for nobody, or it is not known whether it does.
    `kept` has the first offsets in the other partitions of the same append, which do count.
    `pause_s` is how long to wait before claiming again, because the same would happen at once.
    """

    disposition = Disposition.RETRY
    code = "ownership_lost"

    def __init__(
        self,
        message: str,
        partitions: Iterable[int] = (),
        kept: Mapping[int, int] | None = None,
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.partitions = frozenset(partitions)
        self.kept = dict(kept or {})


@dataclass(slots=True, eq=False)
class Tenure:
    """A claimed partition, as its claimant knows it.

    Shape:  next is the offset at which our next record lies if nobody else writes; stopped says
            why nothing is taken any more, and is empty while it is.
    """

    epoch: int
    next: int
    stopped: str = ""
    #: Done when the append before the next one was checked.
    checked: asyncio.Future[None] | None = None

    def stop(self, why: str) -> None:
        """Takes nothing more; the first reason stays."""
        self.stopped = self.stopped or why


@dataclass(slots=True)
class _Flight:
    """What one append has under way in one partition."""

    tenure: Tenure
    before: asyncio.Future[None] | None
    #: First offset and number of records of each Kafka batch, in order.
    batches: list[tuple[int, int]]
    #: Its records have a form that not everybody reads yet.
    unwritable: bool = False


class WorkflowLog:
    """The four workflow topics, for the owner of some of their partitions."""

    def __init__(self, *, cluster: Cluster, client_id: str, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._history = Appender(cluster=cluster, client_id=f"{client_id}-history")
        # A producer of its own: what is no history waits for none, and its errors stop none.
        self._aside = Appender(cluster=cluster, client_id=f"{client_id}-aside")
        self._tenures: dict[int, Tenure] = {}
        #: Held while batches are queued, so that those of one call stay together.
        self._turn = asyncio.Lock()
        self._broken = False

    async def start(self) -> None:
        """Connects.

        Errors: BrokerUnavailable.
        """
        await self._history.start()
        await self._aside.start()

    async def stop(self) -> None:
        """Gives up all partitions and disconnects."""
        for partition in list(self._tenures):
            self.release(partition)
        await asyncio.gather(self._history.stop(_STOP_S), self._aside.stop(_STOP_S))

    async def partitions(self) -> int:
        """The number of partitions of the workflow topics.

        Errors: BrokerUnavailable, also when there are no such topics.
        """
        return await self._history.partitions(WORKFLOW_HISTORY)

    async def claim(
        self, partition: int, owner: str, workflows: Mapping[str, str] | None = None
    ) -> int:
        """Claims a partition; returns the epoch, which is the offset of the claim.

        The caller reads the partition up to and including its claim before it appends anything.

        Shape:  workflows are the kinds of those that the owner can run, by name.
        Errors: BrokerUnavailable; the claim may then be in the log, or come there later, and is
                then one more claim that is not ours.
        """
        record = claim_of(owner, workflows or {}, self._clock())
        async with self._turn:
            self.release(partition)
            if self._broken:
                await self._replace_producer()
            with self._fail_stop(()):
                sent = await self._history.send(
                    [Outgoing(WORKFLOW_HISTORY, partition, None, encode(record))]
                )
        with self._fail_stop(()):
            (epoch,) = await self._history.acknowledged(sent)
            if epoch < 0:
                raise BrokerUnavailable(
                    f"expected the offset of the claim of partition {partition}, found that the "
                    "broker has the claim and does not know where; claim again"
                )
        self.release(partition)
        self._tenures[partition] = Tenure(epoch, epoch + 1)
        return epoch

    def release(self, partition: int) -> None:
        """Gives up a partition; appends under way raise OwnershipLost, whatever becomes of them."""
        tenure = self._tenures.pop(partition, None)
        if tenure is not None:
            tenure.stop("it was given up")

    async def read(self, partition: int, start: int, end: int) -> AsyncIterator[list[Placed]]:
        """Yields the records from start on and before end, some at a time, with their offsets.

        Shape:  an end that the log has reached; offsets may have holes. Whether a record counts
                is for `Claims` to say.
        Errors: BrokerUnavailable, UndecodableRecord, UnknownSchema; NewerSchema, when all before
                that record was given.
        """
        topics = [WORKFLOW_HISTORY]
        async for records in read_partition(self._cluster, topics, partition, start=start, end=end):
            known, newer = readable(records)
            yield [(record.offset, decode(record.value, HistoryAppended)) for record in known]
            if newer is not None:
                raise NewerSchema(why_waits(newer))

    async def append(
        self, records: Mapping[int, Sequence[tuple[bytes, HistoryAppended]]]
    ) -> dict[int, int]:
        """Appends records; returns where they begin once they are durable and surely count.

        Shape:  (key, record) by partition -> offset of the first record by partition; the others
                follow it. Calls may overlap; they take effect in the order in which they were made.
        Errors: OwnershipLost for the partitions it names; BrokerUnavailable for all of them, and
                all others are stopped as well. InvariantViolation for a record too large for Kafka.
        """
        tenures = {p: self._tenures.get(p) for p, group in records.items() if group}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flights: dict[int, _Flight] = {}
        lost: dict[int, str] = {}
        try:
            async with self._turn:
                for partition, tenure in tenures.items():
                    why = _refusal(tenure, records[partition])
                    if why or tenure is None:
                        lost[partition] = why
                    else:
                        flights[partition] = _Flight(tenure, tenure.checked, [])
                        tenure.checked = done
                with self._fail_stop(flights.values()):
                    sent = await self._send(records, flights)
            with self._fail_stop(flights.values()):
                for batch, first in zip(sent, await self._history.acknowledged(sent), strict=True):
                    flights[batch.partition].batches.append((first, batch.records))
                for partition, flight in flights.items():
                    await self._check(partition, flight)
        finally:
            done.set_result(None)
        lost |= {p: flight.tenure.stopped for p, flight in flights.items() if flight.tenure.stopped}
        kept = {p: flight.batches[0][0] for p, flight in flights.items() if p not in lost}
        if lost:
            unwritable = any(flight.unwritable for flight in flights.values())
            raise _lost(lost, kept, pause_s=_UNWRITABLE_S if unwritable else 0.0)
        return kept

    async def _send(
        self,
        records: Mapping[int, Sequence[tuple[bytes, HistoryAppended]]],
        flights: Mapping[int, _Flight],
    ) -> list[Sent]:
        outgoing = []
        for partition, flight in flights.items():
            try:
                outgoing += [_outgoing(partition, key, each) for key, each in records[partition]]
            except NotYetReadable as error:
                flight.tenure.stop(error.message)
                flight.unwritable = True
        return await self._history.send(outgoing) if outgoing else []

    async def _check(self, partition: int, flight: _Flight) -> None:
        """Compares where records lie with where they should, after all appends before did."""
        tenure = flight.tenure
        if flight.before is not None and not flight.before.done():
            await asyncio.wait((flight.before,))
        for number, (first, count) in enumerate(flight.batches):
            if tenure.stopped:
                return
            if first < tenure.next:
                tenure.stop(f"expected offset {tenure.next}, found {first}: the log was cut")
            elif first > tenure.next and number:
                # The caller counts on consecutive offsets; claiming again, it reads the true ones.
                tenure.stop(f"somebody wrote between our records, before offset {first}")
            elif first > tenure.next:
                await self._look_for_claims(partition, tenure, first)
            tenure.next = first + count

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

    @contextlib.contextmanager
    def _fail_stop(self, flights: Iterable[_Flight]) -> Iterator[None]:
        """Lets no error pass, nor being cancelled, without stopping what it may concern."""
        try:
            yield
        except BrokerUnavailable as error:
            self._broken = True
            for tenure in self._tenures.values():
                tenure.stop(error.message)
            raise
        except BaseException as error:
            for flight in flights:
                flight.tenure.stop(f"an append ended with {error!r}")
            raise

    async def _replace_producer(self) -> None:
        """Makes the next record go through a new producer, and no record through two."""
        for tenure in self._tenures.values():
            tenure.stop("the connection was lost")
        await self._history.stop(_STOP_S)
        self._broken = False

    async def write_snapshots(
        self, snapshots: Mapping[int, Sequence[tuple[bytes, SnapshotTaken | None]]]
    ) -> None:
        """Writes states of instances, or None for those that no longer need one.

        Shape:  (key, snapshot) by partition. Only of records whose append has returned: a
                snapshot, unlike a record, has no epoch to make it void.
        Errors: OwnershipLost, BrokerUnavailable.
        """
        lost = {p: _refusal(self._tenures.get(p)) for p in snapshots}
        if any(lost.values()):
            raise _lost({p: why for p, why in lost.items() if why}, {})
        await self._aside.append_or_stop(
            [
                Outgoing(
                    WORKFLOW_SNAPSHOTS,
                    partition,
                    key,
                    None if snapshot is None else encode(snapshot),
                )
                for partition, group in snapshots.items()
                for key, snapshot in group
            ]
        )

    async def read_snapshots(
        self, partition: int
    ) -> AsyncIterator[tuple[bytes, SnapshotTaken | None]]:
        """Yields all snapshots of a partition by key; of several for one key the last is valid.

        Snapshots are disposable: one that a newer release wrote is one that is not there.
        Errors: BrokerUnavailable, UndecodableRecord, UnknownSchema.
        """
        async for records in read_partition(self._cluster, [WORKFLOW_SNAPSHOTS], partition):
            for record in records:
                value = None if is_newer(record) else record.value
                yield record.key or b"", None if value is None else decode(value, SnapshotTaken)

    async def reply(self, replies: Iterable[tuple[int, ReplySent]]) -> None:
        """Sends outcomes to those who wait for them; returns when they are durable.

        Shape:  (reply_to, reply); those that nobody waits for, or that name no partition of the
                topic, are left out.
        Errors: BrokerUnavailable; some may have been sent, and sending all again does no harm.
        """
        wanted = [(to, reply) for to, reply in replies if to >= 0]
        if wanted:
            count = await self._aside.partitions(WORKFLOW_REPLIES)
            await self._aside.append_or_stop(
                [
                    Outgoing(WORKFLOW_REPLIES, to, None, encode(reply))
                    for to, reply in wanted
                    if to < count
                ]
            )


def _outgoing(partition: int, key: bytes, record: HistoryAppended) -> Outgoing:
    value = encode(record)
    if len(value) > MAX_VALUE_BYTES:
        raise InvariantViolation(
            f"expected a record of at most {MAX_VALUE_BYTES} bytes, found {len(value)} for "
            f"{key.decode()}; usual cause: results that nobody has limited"
        )
    return Outgoing(WORKFLOW_HISTORY, partition, key, value)


def _refusal(tenure: Tenure | None, group: Sequence[tuple[bytes, HistoryAppended]] = ()) -> str:
    """Says why a partition takes nothing, or not these records; empty if it takes them."""
    if tenure is None:
        return "it is not claimed"
    if tenure.stopped:
        return tenure.stopped
    epoch = tenure.epoch
    if any(record.epoch != epoch for _, record in group):
        return f"the records are of another epoch than its claim at offset {epoch}"
    return ""


def _lost(lost: Mapping[int, str], kept: Mapping[int, int], pause_s: float = 0.0) -> OwnershipLost:
    found = "; ".join(f"{partition}: {why}" for partition, why in sorted(lost.items()))
    message = f"expected to own the partitions {sorted(lost)}, found {found}"
    return OwnershipLost(message, lost, kept, pause_s)
