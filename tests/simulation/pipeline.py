"""Intake over a log in memory, with everything that can go wrong drawn from one seed.

Intake is the production one, and so is what it is owned by; only Kafka is played: records in
lists, committed offsets that lag, appends that break off in the middle, workers that die and
restore, workers that go on although somebody else has their partitions, topics that are compacted.
"""

import contextlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.provider import Placement
from headwater.processors.runs.claims import epoch_after
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.epochs import epoch_of, is_claim
from headwater.schemas.records import OutcomeRecorded, WebhookReceived
from headwater.schemas.tables import TABLES, Row
from headwater.schemas.topics import ADMISSIONS, OUTCOMES, TOPICS, WAITING, WEBHOOKS, Cleanup
from headwater.streams.kafka.records import Headers, Incoming, Outgoing, partition_of
from headwater.streams.ownership.leases import Gap, PartitionLost
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_lease import (
    FENCED,
    Fold,
    Hidden,
    PipelineLease,
    claim,
    last_values,
)
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState
from headwater.streams.pipeline.record_batch import phases
from tests.fakes.memory_store import MemoryStore

# Subjects, users and what they replace lie in different ones.
PARTITIONS = 5
PROVIDERS = installed_providers()
USER_PREFIX = "user_"
PLACEMENT = Placement(PROVIDERS, USER_PREFIX)
PARK_FOR_MS = 60_000
INTAKE = Intake(placement=PLACEMENT, partitions=PARTITIONS, park_for_ms=PARK_FOR_MS)
#: Those of the pipeline alone, so that what workflows keep changes no seed.
_COMPACTED = {
    topic.name
    for topic in TOPICS
    if topic.cleanup is Cleanup.COMPACT and not topic.name.startswith("workflow-")
}


class Trusting(Fold):
    """A reader who believes everybody."""

    def admit(self, record: Incoming) -> bool:
        super().admit(record)
        return not is_claim(record.headers)


@dataclass(frozen=True)
class Rules:
    """What everybody keeps to; a world without one of these must be found out."""

    #: Readers pass over what a superseded owner wrote.
    folds: bool = True
    #: Owners write again what such records have hidden.
    mends: bool = True

    def fold(self, checkpoint: PartitionCheckpoint | None = None) -> Fold:
        return Fold(checkpoint) if self.folds else Trusting(checkpoint)


@dataclass
class Worker:
    """A process: the partitions that it believes to own, and how far it has read."""

    disk: dict[int, MemoryStore]
    #: What it was about to append to the log when it was stopped.
    sending: tuple[int, list[Outgoing]] | None = None
    leases: dict[int, PipelineLease] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)
    position: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class Log:
    """Topics in memory; an offset is an index, and None a hole that compaction has left."""

    records: dict[tuple[str, int], list[Outgoing | None]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def append(self, record: Outgoing) -> int:
        result = self.records[record.topic, record.partition]
        result.append(record)
        return len(result) - 1

    def end(self, topic: str, partition: int) -> int:
        return len(self.records[topic, partition])

    def read(self, topic: str, partition: int, start: int, end: int) -> list[Incoming]:
        result = self.records[topic, partition][start:end]
        return [_incoming(record, start + at) for at, record in enumerate(result) if record]

    def compact(self, topic: str, partition: int, end: int) -> None:
        """Leaves of what lies before an offset the last record of each key."""
        records = self.records[topic, partition]
        last = {record.key: at for at, record in enumerate(records[:end]) if record}
        for at, record in enumerate(records[:end]):
            if record and last[record.key] != at:
                records[at] = None

    def latest(self, topic: str, rules: Rules) -> dict[bytes, bytes]:
        """The last value of every key of a topic, as a reader sees it."""
        result: dict[bytes, bytes] = {}
        homes: dict[bytes, int] = {}
        for partition in range(PARTITIONS):
            fold = rules.fold()
            for record in self.read(topic, partition, 0, self.end(topic, partition)):
                if not fold.admit(record):
                    continue
                home = homes.setdefault(record.key, partition)
                assert home == partition, f"{record.key} is in {topic}/{home} and /{partition}"
                if record.value is None:
                    result.pop(record.key, None)
                else:
                    result[record.key] = record.value
        return result


def _incoming(record: Outgoing, offset: int) -> Incoming:
    key, value = record.key or b"", record.value
    headers = tuple(record.headers or ())
    return Incoming(
        record.topic, record.partition, offset, 0, 0, key, value, None, len(key), 0, headers
    )


class World:
    """A gateway that appended some deliveries, and workers that come and go."""

    def __init__(
        self, seed: int, deliveries: Iterable[WebhookReceived], rules: Rules | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.rules = rules or Rules()
        self.log = Log()
        self.now_ms = 1_783_000_000_000
        self.trace: list[str] = []
        #: The topics that are compacted while things go on.
        self.compacted = _COMPACTED
        self.committed: dict[tuple[str, int], int] = defaultdict(int)
        #: How far owners have looked at their topics: compaction is not as fast as they are.
        self.looked: dict[tuple[str, int], int] = defaultdict(int)
        self.zombies: list[Worker] = []
        #: What lies on the disks of machines: stores of partitions, however old.
        self.disks: list[dict[int, MemoryStore]] = []
        # Gateways of another release may place a delivery elsewhere; its copies with it.
        self._elsewhere = self.random.random() < 0.3
        for delivery in deliveries:
            self.deliver(delivery)
        self.worker = self._worker()

    def deliver(self, delivery: WebhookReceived, headers: Headers | None = None) -> tuple[int, int]:
        """Appends a delivery; returns its place."""
        key = delivery.event_id.encode()
        owner = key if self._elsewhere else PLACEMENT.owner_of(delivery).encode()
        partition = partition_of(owner, PARTITIONS)
        record = Outgoing(WEBHOOKS, partition, key, encode(delivery), headers)
        return partition, self.log.append(record)

    def _worker(self) -> Worker:
        free = [disk for disk in self.disks if all(disk is not z.disk for z in self.zombies)]
        disk = self.random.choice(free) if free and self.random.random() < 0.8 else {}
        if not any(disk is item for item in self.disks):
            self.disks.append(disk)
        return Worker(disk)

    def crash(self) -> None:
        """All partitions get another owner; what was not committed is read again.

        Their old one is dead, or stands still and will go on: it knows of nothing.
        """
        self.trace.append("crash")
        if self.random.random() < 0.5:
            self.zombies.append(self.worker)
        self.worker = self._worker()

    def rebalance(self) -> None:
        """One partition moves to another worker, which restores it."""
        partition = self.random.randrange(PARTITIONS)
        self.trace.append(f"rebalance {partition}")
        self.worker.states.pop(partition, None)
        self.worker.leases.pop(partition, None)
        for topic in Intake.sources:
            self.worker.position.pop((topic, partition), None)

    def step(self, *, faults: bool) -> bool:
        """One unit of one partition; tells whether there was any work."""
        if faults and self.zombies and self.random.random() < 0.2:
            self._late(self.zombies.pop(self.random.randrange(len(self.zombies))))
        if faults and self.random.random() < 0.3:
            self._compact()
        busy = [
            partition
            for topic in Intake.sources
            for partition in range(PARTITIONS)
            if self._where(self.worker, topic, partition) < self.log.end(topic, partition)
        ]
        if not busy:
            return False
        partition = self.random.choice(busy)
        self._tenure(self.worker, partition)
        emitted, ends = self._decide(self.worker, partition)
        if faults and self.random.random() < 0.1:
            self._append_some(emitted)
            self.worker.sending = (partition, emitted)
            self.crash()
            return True
        self._durable(self.worker, partition, emitted)
        for topic, end in ends.items():
            self.worker.position[topic, partition] = end
            if not faults or self.random.random() < 0.5:
                self.committed[topic, partition] = end
        if faults and self.random.random() < 0.05:
            self.rebalance()
        return True

    def _decide(self, worker: Worker, partition: int) -> tuple[list[Outgoing], dict[str, int]]:
        """Decides a unit of some batches; returns its records, and the ends of topics."""
        unit, ends = INTAKE.begin(worker.states[partition], self.now_ms), dict[str, int]()
        for _ in range(self.random.randint(1, 3)):
            topic = self.random.choice(Intake.sources)
            start = ends.get(topic, self._where(worker, topic, partition))
            end = min(start + self.random.randint(1, 5), self.log.end(topic, partition))
            batch = self.log.read(topic, partition, start, end)
            self.now_ms += 1
            INTAKE.step(unit, topic, batch, self.now_ms)
            ends[topic] = end
            self.trace.append(f"{topic}/{partition} {start}+{len(batch)}")
        return unit.results(), ends

    def _late(self, worker: Worker) -> None:
        """Somebody goes on who may have lost his partitions, until he finds out, and ends."""
        batches = [] if worker.sending is None else [worker.sending]
        with contextlib.suppress(PartitionLost):
            for partition, emitted in batches:
                self.trace.append(f"{len(emitted)} come late to {partition}")
                self._durable(worker, partition, emitted)
            for partition, lease in list(worker.leases.items()):
                self.trace.append(f"epoch {lease.epoch} of {partition} goes on")
                emitted, _ = self._decide(worker, partition)
                self._durable(worker, partition, emitted)

    def _durable(self, worker: Worker, partition: int, emitted: list[Outgoing]) -> None:
        lease = worker.leases[partition]
        self._append(worker, lease, emitted)
        lease.write(Intake.memory)

    def tick(self) -> None:
        """Intake does what is due in every partition."""
        for partition in range(PARTITIONS):
            self._tenure(self.worker, partition)
            due = INTAKE.tick(self.worker.states[partition], self.now_ms)
            self._durable(self.worker, partition, due)

    def drain(self) -> None:
        """Works without faults until nothing is left, and until all has been looked at."""
        while self.zombies:
            self._late(self.zombies.pop())
        while self.step(faults=False):
            pass
        for partition in range(PARTITIONS):
            self._look(self.worker, self._tenure(self.worker, partition))
        self._compact(all_of_it=True)

    def _compact(self, *, all_of_it: bool = False) -> None:
        for topic in sorted(self.compacted):
            for partition in range(PARTITIONS):
                if all_of_it or self.random.random() < 0.3:
                    self.log.compact(topic, partition, self.looked[topic, partition])

    def _where(self, worker: Worker, topic: str, partition: int) -> int:
        where = (topic, partition)
        return worker.position.get(where, self.committed[where])

    # -- owning partitions, as the agent does

    def _tenure(self, worker: Worker, partition: int) -> PipelineLease:
        if partition not in worker.leases:
            self._take(worker, partition)
        return worker.leases[partition]

    def _take(self, worker: Worker, partition: int) -> None:
        store = worker.disk.setdefault(partition, MemoryStore())
        state = worker.states[partition] = PartitionState(partition, store)
        fold = self.rules.fold(state.checkpoint())
        offset = self.log.append(claim(ADMISSIONS, partition, "somebody"))
        self._restore(worker, partition, fold, Intake.memory)
        if self.zombies and self.random.random() < 0.2:
            self._late(self.zombies.pop())
        epoch = epoch_after(offset, fold.epoch)
        claims = {ADMISSIONS: offset} | {
            topic: self.log.append(claim(topic, partition, "somebody", epoch, fold.unseen))
            for topic in FENCED
        }
        fold.begin(OUTCOMES, *fold.unseen)
        self._restore(worker, partition, fold, (*Intake.memory, OUTCOMES))
        lease = worker.leases[partition] = PipelineLease(state, epoch, claims)
        self._show(worker, lease, fold.hidden)
        self._say_seen(worker, lease)
        lease.write(Intake.memory)

    def _say_seen(self, worker: Worker, lease: PipelineLease) -> None:
        again = claim(WAITING, lease.partition, "somebody", lease.epoch, lease.unseen)
        self._append(worker, lease, [again])

    def _restore(self, worker: Worker, partition: int, fold: Fold, topics: Sequence[str]) -> None:
        for topic in topics:
            start, end = fold.positions.get(topic, 0), self.log.end(topic, partition)
            for record in self.log.read(topic, partition, start, end):
                if fold.admit(record) and topic != OUTCOMES:
                    worker.states[partition].restore_record(record)
                checkpoint = fold.checkpoint(Intake.memory)
                if checkpoint is not None and self.random.random() < 0.2:
                    worker.states[partition].write(checkpoint)

    def _append(self, worker: Worker, lease: PipelineLease, emitted: Iterable[Outgoing]) -> None:
        for phase in phases(list(emitted)):
            for record in phase:
                if record.topic in FENCED and record.partition == lease.partition:
                    assert epoch_of(record.headers or ()) == lease.epoch, record
                first = self.log.append(record)
                gap = lease.appended(record.topic, record.partition, first, 1)
                if gap is not None:
                    self._mend(worker, lease, gap)
                if record.partition == lease.partition:
                    self.looked[record.topic, record.partition] = first + 1

    def _look(self, worker: Worker, lease: PipelineLease) -> None:
        for topic in FENCED:
            gap = lease.reached(topic, self.log.end(topic, lease.partition))
            if gap is not None:
                self._mend(worker, lease, gap)
            self.looked[topic, lease.partition] = self.log.end(topic, lease.partition)
        self._say_seen(worker, lease)

    def _mend(self, worker: Worker, lease: PipelineLease, gap: Gap) -> None:
        counting, hidden = lease.classify(
            self.log.read(gap.topic, lease.partition, gap.start, gap.end)
        )
        for record in counting:
            worker.states[lease.partition].restore_record(record)
        self._show(worker, lease, hidden)

    def _show(self, worker: Worker, lease: PipelineLease, hidden: Hidden) -> None:
        partition = lease.partition
        for topic, records in hidden.items():
            self.trace.append(f"{topic}/{partition}: {len(records)} were hidden")
            if not self.rules.mends:
                continue
            if topic == OUTCOMES:
                known = self.log.read(topic, partition, 0, self.log.end(topic, partition))
                again = [
                    Outgoing(OUTCOMES, partition, key, value, lease.headers)
                    for key, value in last_values(Fold(), known, records).items()
                ]
            else:
                again = worker.states[partition].current(topic, records)
            self._append(worker, lease, again)

    def _append_some(self, emitted: list[Outgoing]) -> None:
        """What is left of an append that broke off: a beginning of every partition's records."""
        first, then = phases(emitted)
        broken = self.random.choice([first, then])
        if broken is then:
            for record in first:
                self.log.append(record)
        by_partition: dict[tuple[str, int], list[Outgoing]] = defaultdict(list)
        for record in broken:
            by_partition[record.topic, record.partition].append(record)
        for records in by_partition.values():
            for record in records[: self.random.randint(0, len(records))]:
                self.log.append(record)

    def rows(self) -> dict[str, dict[tuple[str, ...], Row]]:
        """The projection tables as their topics hold them."""
        return {
            table.name: {
                row.key: msgspec.structs.replace(row, state=None)
                for value in self.log.latest(table.topic, self.rules).values()
                for row in [decode_row(table, value)]
                if not row.is_hidden
            }
            for table in TABLES
        }

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """The last outcome of every delivery."""
        latest = self.log.latest(OUTCOMES, self.rules)
        result = (decode(value, OutcomeRecorded) for value in latest.values())
        return {outcome.event_id: (outcome.status, outcome.reason) for outcome in result}

    def raw(self) -> list[tuple[int, int, WebhookReceived]]:
        """The topic `webhooks`, as the fold takes it."""
        return [
            (partition, offset, decode(record.value, WebhookReceived))
            for partition in range(PARTITIONS)
            for offset, record in enumerate(self.log.records[WEBHOOKS, partition])
            if record is not None and record.value is not None
        ]
