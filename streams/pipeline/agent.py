"""The agent: runs intake over the partitions that this worker owns.

The loop: take a partition and restore its state before its first batch, let intake decide,
append what it emits, and only when the broker has acknowledged all of it say that the batch is
done. What somebody else wrote in between is found by the offsets, and mended (`tenure`).
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Final

from headwater.processors.epochs import epoch_after
from headwater.schemas.codec import written_forms
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable
from headwater.schemas.newer import readable, why_waits
from headwater.schemas.topics import ADMISSIONS, OUTCOMES, WAITING
from headwater.streams.kafka.appender import Appender, Sent
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, position_of
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.pipeline._faust import TP, Batch
from headwater.streams.pipeline.emission import phases
from headwater.streams.pipeline.intake import Intake
from headwater.streams.pipeline.partition_state import PartitionState
from headwater.streams.pipeline.staged import Mark, Store
from headwater.streams.pipeline.stopped import Stopped
from headwater.streams.pipeline.sweeps import Sweeps
from headwater.streams.pipeline.tenure import (
    FENCED,
    Fold,
    Gap,
    Hidden,
    LogCut,
    PartitionLost,
    Tenure,
    claim,
    last_of,
)
from headwater.streams.watchdog import Watchdog

log = logging.getLogger(__name__)

#: How often the ends of topics are looked at: far more often than compaction may come by.
_LOOK_EVERY_S: Final = 10.0


class Agent:
    """Runs intake over the partitions that this worker owns.

    Shape:  offsets are asked for the group that reads the sources; check_lease passes, before each
            append, while the partitions are ours; owner is who claims partitions, for people.
    """

    def __init__(  # noqa: PLR0913 (all that it joins)
        self,
        intake: Intake,
        *,
        cluster: Cluster,
        appender: Appender,
        offsets: Offsets,
        check_lease: Callable[[], None],
        watchdog: Watchdog,
        open_store: Callable[[int], Awaitable[Store]],
        clock: BrokerClock,
        owner: str,
    ) -> None:
        self.intake = intake
        self._cluster = cluster
        self._appender = appender
        self._offsets = offsets
        self._watchdog = watchdog
        self._open_store = open_store
        self._check_lease = check_lease
        self._clock = clock
        self._owner = owner
        self._sweeps = Sweeps(cluster=cluster, clock=clock.now_ms, append=self._append_found)
        self._stopped = Stopped()
        self._owned: set[int] = set()
        #: Of the partitions that are ready, or are being made so.
        self._states: dict[int, PartitionState] = {}
        #: Of those that are ready.
        self._tenures: dict[int, Tenure] = {}
        #: Of those that were ready before a rebalance: others may have had them meanwhile.
        self._kept: dict[int, Tenure] = {}
        self._looked_s = -math.inf
        # Batches of a partition, whichever topic they are of, and its ticks never overlap: all of
        # them change its memory.
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def assigned(self, partitions: set[TP]) -> set[int]:
        """Note the partitions that this worker owns from now on, and forget all others.

        The coordinator may not have known all topics yet, and assigns again once it does.

        Returns:
            The partitions to prepare.
        """
        self._owned = set.intersection(
            *(
                {tp.partition for tp in partitions if tp.topic == each}
                for each in self.intake.sources
            )
        )
        for partition in (self._tenures.keys() | self._kept.keys()) - self._owned:
            self._forget(partition)
        for partition in self._owned:
            self._gets_on(partition, "it was assigned")
        return self._owned - self._tenures.keys()

    def revoked(self) -> None:
        """Owns nothing until partitions are assigned anew.

        What stays is kept, and looked at before anything is done with it: a worker that was too
        late for one rebalance has it again after the next, and somebody else had it in between. The
        memory of what has to wait may be ahead of the log, and is read again.
        """
        for partition in self._owned:
            self._watchdog.leave(_name(partition))
            if partition in self._stopped:
                self._forget(partition)
        self._owned = set()
        self._kept |= self._tenures
        self._tenures = {}
        self._stopped.clear()

    def _forget(self, partition: int) -> None:
        self._close(partition)
        for tenures in (self._tenures, self._kept):
            tenure = tenures.pop(partition, None)
            if tenure is not None:
                tenure.over = True

    def _close(self, partition: int) -> None:
        """Lets go the store of a partition that another worker may own from now on."""
        state = self._states.pop(partition, None)
        if state is not None:
            state.close()

    async def prepare(self, partition: int) -> bool:
        """Takes a partition, or sees that it was kept; tells whether it is ready."""
        async with self._turns[partition]:
            return await self._tenure(partition) is not None

    async def process(self, batch: Batch) -> None:
        """Processes a batch; when it returns, everything that it led to is durable.

        From a record on that a newer release wrote, a partition's batches are dropped and never
        done: whoever is assigned the partition next fetches them again.
        """
        async with self._turns[batch.partition]:
            tenure = await self._tenure(batch.partition)
            if tenure is None:
                return
            known, newer = readable(batch.records)
            if newer is not None:
                self._stopped.begin(batch.partition, why_waits(newer))
                before = sum(record.offset < newer.offset for record in batch.records)
                if not before:
                    return
                batch = batch.first(before)
            with self._writable(batch.partition):
                now_ms, state = self._clock.now_ms(), self._states[batch.partition]
                emitted = self.intake.step(state, batch.topic, known, now_ms)
                await self._append(tenure, emitted)
                self._write(tenure)
                batch.done()
            self._gets_on(batch.partition, f"{batch.topic} up to {batch.end}")

    def _gets_on(self, partition: int, how: str) -> None:
        if partition in self._owned:  # else nobody would ever say that it has left
            self._watchdog.gets_on(_name(partition), how)

    async def tick(self) -> None:
        """Does what is due in the partitions of this worker."""
        self._sweeps.check()
        now = self._clock.now()
        looks = now.at_s - self._looked_s >= _LOOK_EVERY_S
        for partition in sorted(self._owned):
            if partition in self._stopped:
                self._gets_on(partition, "it waits for another release")
            elif partition in self._tenures:  # else it is being restored, which may take long
                async with self._turns[partition]:
                    await self._tick(partition, looks=looks)
        self._looked_s = now.at_s if looks else self._looked_s
        self._stopped.check_forms()
        for line in self._stopped.due(now.ms):
            log.warning("%s: %s", self.intake.name, line)

    async def _tick(self, partition: int, *, looks: bool) -> None:
        tenure = self._tenures.get(partition) if partition in self._owned else None
        if tenure is not None and partition not in self._stopped:
            with self._writable(partition):
                state = self._states[partition]
                # Only an append returns the broker's time, and an idle worker makes none.
                await self._clock.settle(partial(self._claim_again, tenure))
                await self._append(tenure, self.intake.tick(state, self._clock.now_ms()))
                if looks:
                    await self._look(tenure)
                self._write(tenure)
                if not tenure.over:
                    self._sweeps.begin(tenure, state)

    async def _append_found(self, tenure: Tenure, found: Callable[[], Sequence[Outgoing]]) -> bool:
        """Appends what a search has found; False if the partition is somebody else's by then."""
        partition = tenure.partition
        async with self._turns[partition]:
            if self._tenures.get(partition) is not tenure or partition in self._stopped:
                return False
            with self._writable(partition):
                await self._append(tenure, found())
                self._write(tenure)
            return not tenure.over

    def _write(self, tenure: Tenure) -> None:
        """Writes what is durable to the store, unless the partition was forgotten meanwhile."""
        if not tenure.over:
            self._states[tenure.partition].write(tenure.mark(self.intake.memory))

    @contextmanager
    def _writable(self, partition: int) -> Iterator[None]:
        """Forgets a partition whose memory has what may not be written yet, or what was not."""
        forms = written_forms()
        try:
            yield
        except NotYetReadable as error:
            self._stopped.begin_to_write(partition, error, forms)
            self._forget(partition)
        except BaseException:
            # Also if it was cancelled: the worker may live on for some ticks, which would write to
            # the store what the log has not, and then it would never be written to the log.
            self._forget(partition)
            raise

    # -- writing

    async def _append(self, tenure: Tenure, emitted: Sequence[Outgoing]) -> None:
        """Append the effects of a batch; take in what others wrote. May raise PartitionLost."""
        for phase in phases(emitted):
            appended = await self._durable(phase)
            with self._clearing(tenure):
                found = [
                    tenure.appended(batch.topic, batch.partition, first, batch.records)
                    for batch, first in appended
                ]
            for gap in filter(None, found):
                for key in await self._mend(tenure, gap):
                    # What was appended lies behind it, and is what the log says now.
                    place = (gap.topic, key)
                    self._take_in(tenure, (own for own in phase if (own.topic, own.key) == place))

    async def _durable(self, records: Sequence[Outgoing]) -> list[tuple[Sent, int]]:
        """Appends records; returns their batches, each with its first offset."""
        self._check_lease()
        if not records:
            return []
        sent = await self._appender.send(records)
        offsets = await self._appender.acknowledged(sent)
        return list(zip(sent, offsets, strict=True))

    @contextmanager
    def _clearing(self, tenure: Tenure) -> Iterator[None]:
        """Empties the store of a partition whose log was cut: it has what the log lost."""
        try:
            yield
        except LogCut:
            self._states[tenure.partition].clear()
            raise

    async def _look(self, tenure: Tenure) -> None:
        """Looks whether others wrote where this owner has written nothing since.

        Without an answer it says nothing, and the watchdog does in time.
        """
        partition, sources = tenure.partition, self.intake.sources
        try:
            # In this order: what is committed may move meanwhile, and then it is not behind.
            ends = await self._offsets.ends((*FENCED, *sources), partition)
            committed = await self._offsets.committed(sources, partition)
        except BrokerUnavailable as error:
            log.warning("%s", error)
            return
        if tenure.over:
            return
        if all(committed[topic] >= ends[topic] for topic in sources):
            self._gets_on(partition, "it was at the end of its topics")
        await self._mend_ends(tenure, ends)
        await self._say_seen(tenure)

    async def _mend_ends(self, tenure: Tenure, ends: Mapping[str, int]) -> None:
        """Repair what others wrote up to the ends of topics; may raise PartitionLost."""
        with self._clearing(tenure):
            gaps = [tenure.ended(topic, ends[topic]) for topic in FENCED]
        for gap in filter(None, gaps):
            await self._mend(tenure, gap)

    async def _say_seen(self, tenure: Tenure) -> None:
        """Says up to where there are no void outcomes, for whoever takes the partition next."""
        if tenure.unseen != tenure.said_unseen:
            await self._claim_again(tenure)

    async def _claim_again(self, tenure: Tenure) -> None:
        again = claim(WAITING, tenure.partition, self._owner, tenure.epoch, tenure.unseen)
        tenure.said_unseen = tenure.unseen
        await self._append(tenure, [again])

    async def _mend(self, tenure: Tenure, gap: Gap) -> set[bytes]:
        """Take in what operators wrote, and write again what a superseded owner has hidden.

        Returns:
            The keys that operators wrote.
        """
        partition = tenure.partition
        records = [
            record
            async for records in self._read(gap.topic, partition, gap.start, gap.end)
            for record in records
        ]
        counting, hidden = tenure.of_others(records)
        if gap.topic in self.intake.memory:
            self._take_in(tenure, counting)
        await self._show(tenure, hidden)
        return {record.key or b"" for record in counting}

    def _take_in(self, tenure: Tenure, records: Iterable[Incoming | Outgoing]) -> None:
        """Takes records into a partition's memory, unless it was forgotten meanwhile."""
        for record in () if tenure.over else records:
            read = record.as_read() if isinstance(record, Outgoing) else record
            self._states[tenure.partition].restored(read)

    async def _show(self, tenure: Tenure, hidden: Hidden) -> None:
        """Appends what void records have hidden, unless the partition was forgotten meanwhile."""
        for topic, records in hidden.items():
            if tenure.over:
                return  # Whoever takes it next finds them, too.
            log.warning(
                "%d records of %s/%d are written again: a worker wrote there that had lost the "
                "partition",
                len(records),
                topic,
                tenure.partition,
            )
            if topic == OUTCOMES:
                again = await self._outcomes(tenure, records)
            else:
                again = self._states[tenure.partition].again(topic, records)
            await self._append(tenure, again)

    async def _outcomes(self, tenure: Tenure, hidden: Container[bytes]) -> list[Outgoing]:
        """Outcomes that were hidden; no memory has them, so the topic is read."""
        fold, last = Fold(), dict[bytes, bytes | None]()
        async with aclosing(self._read(OUTCOMES, tenure.partition)) as batches:
            async for records in batches:
                self._gets_on(tenure.partition, f"looked at {position_of(records[-1])}")
                last.update(last_of(fold, records, hidden))
        partition, headers = tenure.partition, tenure.headers
        return [Outgoing(OUTCOMES, partition, key, value, headers) for key, value in last.items()]

    # -- taking a partition

    async def _tenure(self, partition: int) -> Tenure | None:
        """The tenure of a partition, which begins now if need be; None while it has to wait."""
        if partition in self._owned and partition in self._kept:
            with self._writable(partition):
                await self._look_at_kept(partition)
        if partition not in self._owned or partition in self._stopped or partition in self._kept:
            return None
        tenure = self._tenures.get(partition) or await self._take(partition)
        if tenure is None:
            self._close(partition)  # Its store is for whoever goes on with it.
        return tenure

    async def _look_at_kept(self, partition: int) -> None:
        """Goes on with a partition that was kept over a rebalance, if nobody had it meanwhile.

        Whoever takes a partition claims it before anything else.
        """
        owned, kept = self._owned, self._kept[partition]
        asking = Retrying(log, f"waiting for Kafka to go on with {_name(partition)}")
        ends = await asking.until_done(lambda: self._offsets.ends(FENCED, partition))
        try:
            await self._mend_ends(kept, ends)
        except PartitionLost as error:
            log.warning("%s is taken anew: %s", _name(partition), error)
            self._forget(partition)
        if owned is self._owned and not kept.over:
            self._tenures[partition] = self._kept.pop(partition)

    async def _take(self, partition: int) -> Tenure | None:
        """Restores a partition's memory, and claims it; None if it has to wait, or is gone."""
        owned = self._owned
        self._close(partition)
        fold = Fold(await self._open(partition))
        # Its offset is greater than that of any claim before, whoever comes to read it first.
        admissions = await self._claim([ADMISSIONS], partition)
        start = dict(fold.positions)
        reading = read_partition(self._cluster, self.intake.memory, partition, start=start)
        if not await self._restore(partition, fold, owned, reading):
            return None
        epoch = epoch_after(admissions[ADMISSIONS], fold.epoch)
        claims = await self._claim(FENCED, partition, epoch, fold.unseen)
        # What came before the claim counts, also if it came while the rest was read.
        fold.begin(OUTCOMES, *fold.unseen)
        for topic in (*self.intake.memory, OUTCOMES):
            begin, end = fold.positions.get(topic, 0), claims.get(topic, 0)
            reading = self._read(topic, partition, begin, end)
            if not await self._restore(partition, fold, owned, reading):
                return None
        if fold.epoch > epoch:
            raise PartitionLost(
                f"expected to take partition {partition} as {epoch}, found that it was claimed as "
                f"{fold.epoch} meanwhile"
            )
        tenure = Tenure(partition, epoch, admissions | claims)
        self._states[partition].headers[:] = tenure.headers
        await self._show(tenure, fold.hidden)
        await self._say_seen(tenure)
        self._write(tenure)
        if owned is not self._owned:
            return None
        self._tenures[partition] = tenure
        return tenure

    async def _open(self, partition: int) -> Mark:
        """Opens a partition's store; one that is ahead of the topics is of others, and emptied."""
        store = await self._open_store(partition)
        state = self._states[partition] = PartitionState(partition, store)
        mark = state.mark()
        ends = await self._offsets.ends(self.intake.memory, partition)
        ahead = [topic for topic, offset in mark.positions.items() if offset > ends[topic]]
        if not ahead:
            return mark
        log.warning("partition %d is read anew: its store is ahead of %s", partition, ahead)
        store.clear()
        self._states[partition] = PartitionState(partition, store)
        return Mark()

    async def _claim(
        self,
        topics: Sequence[str],
        partition: int,
        epoch: int | None = None,
        unseen: tuple[int, int] | None = None,
    ) -> dict[str, int]:
        """Claims a partition of topics; returns the offset of each claim."""
        claims = [claim(topic, partition, self._owner, epoch, unseen) for topic in topics]
        return {batch.topic: offset for batch, offset in await self._durable(claims)}

    async def _restore(
        self,
        partition: int,
        fold: Fold,
        owned: set[int],
        reading: AsyncGenerator[list[Incoming]],
    ) -> bool:
        """Takes in what is read of a partition's memory; False if it is to be read no further."""
        async with aclosing(reading) as batches:
            async for records in batches:
                if owned is not self._owned:
                    return False  # A rebalance: others may write on what was read so far.
                self._gets_on(partition, f"restored {position_of(records[-1])}")
                known, newer = readable(records)
                if newer is not None:
                    self._stopped.begin(partition, why_waits(newer))
                    return False
                for record in known:
                    if fold.admit(record) and record.topic != OUTCOMES:
                        self._states[partition].restored(record)
                mark = fold.mark(self.intake.memory)
                if mark is not None:  # else it is written once what hides there is mended
                    self._states[partition].write(mark)
        return owned is self._owned

    def _read(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None
    ) -> AsyncGenerator[list[Incoming]]:
        return read_partition(self._cluster, [topic], partition, start=start, end=end)


def _name(partition: int) -> str:
    return f"partition {partition}"
