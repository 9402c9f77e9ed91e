"""The stage over a log in memory, with everything that can go wrong drawn from one seed.

The stage is the production one; only Kafka is played: records in lists, committed offsets that
lag, appends that break off in the middle, workers that die and restore, topics that are compacted.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headwater.gateway.providers import installed_providers
from headwater.processors.providers.placement import Placement
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.records import OutcomeRecorded, WebhookReceived
from headwater.schemas.tables import TABLES, Row
from headwater.schemas.topics import OUTCOMES, TOPICS, WEBHOOKS, Cleanup
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.pipeline.intake import Intake
from headwater.streams.pipeline.stage import phases

# Subjects, users and what they replace lie in different ones.
PARTITIONS = 5
PROVIDERS = installed_providers()
USER_PREFIX = "user_"
PLACEMENT = Placement(PROVIDERS, USER_PREFIX)
PARK_FOR_MS = 60_000
_COMPACTED = {topic.name for topic in TOPICS if topic.cleanup is Cleanup.COMPACT}


@dataclass
class Log:
    """Topics in memory; an offset is an index."""

    records: dict[tuple[str, int], list[Outgoing]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def append(self, record: Outgoing) -> None:
        self.records[record.topic, record.partition].append(record)

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Incoming]:
        found = self.records[topic, partition][start : start + count]
        return [_incoming(record, start + number) for number, record in enumerate(found)]

    def compacted(self, topic: str, partition: int) -> list[Incoming]:
        """What a compaction would leave: the last record of each key, in order."""
        records = self.read(topic, partition, 0, len(self.records[topic, partition]))
        last = {record.key: record.offset for record in records}
        return [record for record in records if last[record.key] == record.offset]

    def latest(self, topic: str) -> dict[bytes, bytes]:
        """The last value of every key of a topic."""
        found: dict[bytes, bytes] = {}
        homes: dict[bytes, int] = {}
        for partition in range(PARTITIONS):
            for record in self.records[topic, partition]:
                home = homes.setdefault(record.key, partition)
                assert home == partition, f"{record.key} is in {topic}/{home} and /{partition}"
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
        return found


def _incoming(record: Outgoing, offset: int) -> Incoming:
    key, value = record.key or b"", record.value
    headers = tuple(record.headers or ())
    return Incoming(
        record.topic, record.partition, offset, 0, 0, key, value, None, len(key), 0, headers
    )


class World:
    """A gateway that appended some deliveries, and workers that come and go."""

    def __init__(self, seed: int, deliveries: Iterable[WebhookReceived]) -> None:
        self.random = random.Random(seed)
        self.log = Log()
        self.now_ms = 1_783_000_000_000
        self.trace: list[str] = []
        self.committed: dict[tuple[str, int], int] = defaultdict(int)
        self.position: dict[tuple[str, int], int] = {}
        self.restored: set[int] = set()
        # Gateways of another release may place a delivery elsewhere; its copies with it.
        elsewhere = self.random.random() < 0.3
        for delivery in deliveries:
            key = delivery.event_id.encode()
            owner = key if elsewhere else PLACEMENT.owner_of(delivery).encode()
            partition = partition_of(owner, PARTITIONS)
            self.log.append(Outgoing(WEBHOOKS, partition, key, encode(delivery)))
        self._start()

    def _start(self) -> None:
        self.stage = Intake(placement=PLACEMENT, partitions=PARTITIONS, park_for_ms=PARK_FOR_MS)
        self.position = {}
        self.restored = set()

    def crash(self) -> None:
        """All workers die at once; what was not committed is read again."""
        self.trace.append("crash")
        self._start()

    def rebalance(self) -> None:
        """One partition moves to another worker, which restores it."""
        partition = self.random.randrange(PARTITIONS)
        self.trace.append(f"rebalance {partition}")
        self.stage.forget(partition)
        self.restored.discard(partition)
        for topic in self.stage.sources:
            self.position.pop((topic, partition), None)

    def step(self, *, faults: bool) -> bool:
        """One batch of one topic; tells whether there was any work."""
        busy = [
            (topic, partition)
            for topic in self.stage.sources
            for partition in range(PARTITIONS)
            if self._where(topic, partition) < len(self.log.records[topic, partition])
        ]
        if not busy:
            return False
        topic, partition = self.random.choice(busy)
        self._restore(partition)
        start = self._where(topic, partition)
        batch = self.log.read(topic, partition, start, self.random.randint(1, 5))
        self.now_ms += 1
        emitted = self.stage.step(topic, partition, batch, self.now_ms)
        self.trace.append(f"{topic}/{partition} {start}+{len(batch)} -> {len(emitted)}")
        if faults and self.random.random() < 0.1:
            self._append_some(emitted)
            self.crash()
            return True
        self._append(emitted)
        self.position[topic, partition] = start + len(batch)
        if not faults or self.random.random() < 0.5:
            self.committed[topic, partition] = start + len(batch)
        if faults and self.random.random() < 0.05:
            self.rebalance()
        return True

    def tick(self) -> None:
        """The stage does what is due in every partition."""
        for partition in range(PARTITIONS):
            self._restore(partition)
            self._append(self.stage.tick(partition, self.now_ms))

    def drain(self) -> None:
        """Works without faults until nothing is left."""
        while self.step(faults=False):
            pass

    def _where(self, topic: str, partition: int) -> int:
        where = (topic, partition)
        return self.position.get(where, self.committed[where])

    def _restore(self, partition: int) -> None:
        if partition not in self.restored:
            for topic in self.stage.memory:
                for record in self._memory(topic, partition):
                    self.stage.restored(record)
            self.restored.add(partition)

    def _memory(self, topic: str, partition: int) -> list[Incoming]:
        if topic in _COMPACTED and self.random.random() < 0.5:
            return self.log.compacted(topic, partition)
        return self.log.read(topic, partition, 0, len(self.log.records[topic, partition]))

    def _append(self, emitted: Iterable[Outgoing]) -> None:
        for phase in phases(list(emitted)):
            for record in phase:
                self.log.append(record)

    def _append_some(self, emitted: list[Outgoing]) -> None:
        """What is left of an append that broke off: a beginning of every partition's records."""
        first, then = phases(emitted)
        broken = self.random.choice([first, then])
        if broken is then:
            self._append(first)
        by_partition: dict[tuple[str, int], list[Outgoing]] = defaultdict(list)
        for record in broken:
            by_partition[record.topic, record.partition].append(record)
        for records in by_partition.values():
            self._append(records[: self.random.randint(0, len(records))])

    def rows(self) -> dict[str, dict[tuple[str, ...], Row]]:
        """The projection tables as their topics hold them."""
        return {
            table.name: {
                row.key: row
                for value in self.log.latest(table.topic).values()
                for row in [decode_row(table, value)]
            }
            for table in TABLES
        }

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """The last outcome of every delivery."""
        found = (decode(value, OutcomeRecorded) for value in self.log.latest(OUTCOMES).values())
        return {outcome.event_id: (outcome.status, outcome.reason) for outcome in found}

    def raw(self) -> list[tuple[int, int, WebhookReceived]]:
        """The topic `webhooks`, as the fold takes it."""
        return [
            (partition, offset, decode(record.value, WebhookReceived))
            for partition in range(PARTITIONS)
            for offset, record in enumerate(self.log.records[WEBHOOKS, partition])
        ]
