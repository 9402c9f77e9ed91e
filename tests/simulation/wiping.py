"""Worlds in which a user is wiped: orders among the deliveries, and owners that look for records.

As in production, the order is a delivery in each partition, behind the fence that it names; an
owner forgets rows and waits when it reads it, and then reads its topics whole, one by one, while
batches go on. Whoever dies amid that is followed by somebody who begins again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from headwater.processors.wipes import WipeOrder
from headwater.schemas.codec import decode, decode_row
from headwater.schemas.epochs import CLAIM_KEY
from headwater.schemas.records import UserForgotten, WebhookReceived
from headwater.schemas.tables import TABLES, Row
from headwater.schemas.topics import ADMISSIONS, OUTCOMES, TOPICS, TRACES, WEBHOOKS, WIPES
from headwater.streams.pipeline.rebuilding import Rebuild
from headwater.streams.pipeline.wiping import SWEPT_TOPICS, WipeSearch, order_records
from tests.fakes.memory_store import MemoryStore
from tests.simulation.pipeline import PARK_FOR_MS, PARTITIONS, PLACEMENT, World

if TYPE_CHECKING:
    from headwater.streams.kafka.records import Outgoing

#: They have ids and digests alone, and stay.
_STAY = {ADMISSIONS, TRACES}
#: A topic is looked through; what was found is counted, and then removed.
MOVES = [
    *(("look", topic) for topic in SWEPT_TOPICS),
    ("exclude", OUTCOMES),
    ("count", ""),
    *(("remove", topic) for topic in reversed(SWEPT_TOPICS)),
]


class WipingWorld(World):
    """A world whose owners carry out wipes."""

    def __init__(
        self, seed: int, deliveries: Iterable[WebhookReceived], *, searches: bool = True
    ) -> None:
        super().__init__(seed, deliveries)
        # Where else they lay nobody would know the subjects of a user.
        self._elsewhere = False
        # Deliveries lie for a week before they are compacted; a wipe may go on for longer.
        if self.random.random() < 0.5:
            self.compacted = self.compacted - {WEBHOOKS}
        #: Whether owners look for records; a world in which they do not must be found out.
        self._searches = searches
        #: Under way, with the tenure that each belongs to.
        self._searching: dict[int, tuple[object, WipeSearch, Iterator[tuple[str, str]]]] = {}

    def order(
        self, user: str, wipe_id: str, between: Iterable[WebhookReceived] = ()
    ) -> tuple[int, ...]:
        """Orders a wipe twice; returns its last fence.

        Some deliveries come between the first fence and its order.
        """
        ordered_ms = self.now_ms
        fence = tuple(self.log.end(WEBHOOKS, partition) for partition in range(PARTITIONS))
        for number in range(2):
            self.trace.append(f"wipe {wipe_id} of {user} before {fence}")
            for one in between if number == 0 else ():
                self.deliver(one)
            at = tuple(self.log.end(WEBHOOKS, partition) for partition in range(PARTITIONS))
            for record in order_records(WipeOrder(wipe_id, user, fence), number, ordered_ms):
                self.log.append(record)
            if number == 0:
                fence = at
            for _ in range(self.random.randint(0, 10)):
                self.step(faults=True)
        return fence

    def has_taken_in(self, wipe_id: str, fence: Sequence[int]) -> bool:
        """Whether every partition has read the order with a fence."""
        return all(
            any(
                record
                and record.value
                and (wipe := decode(record.value, UserForgotten)).wipe_id == wipe_id
                and wipe.fence == list(fence)
                for record in self.log.records[WIPES, partition]
                if record and record.key != CLAIM_KEY
            )
            for partition in range(PARTITIONS)
        )

    @override
    def step(self, *, faults: bool) -> bool:
        if faults and self.random.random() < 0.3:
            self._search(self.random.randrange(PARTITIONS))
        return super().step(faults=faults)

    @override
    def drain(self) -> None:
        super().drain()
        for partition in range(PARTITIONS):
            while self._search(partition):
                pass
        super().drain()
        for partition in range(PARTITIONS):
            self.log.compact(WEBHOOKS, partition, self.log.end(WEBHOOKS, partition))

    def _search(self, partition: int) -> bool:
        """Looks through the next topic of a partition; tells whether there was any."""
        tenure = self._tenure(self.worker, partition)
        wipes = self.worker.states[partition].wipes
        expected = wipes.pending() if self._searches else []
        if not expected:
            return False
        begun = self._searching.get(partition)
        if begun is None or begun[0] is not tenure:
            begun = tenure, WipeSearch(expected[0], partition), iter(MOVES)
            self._searching[partition] = begun
        _, search, moves = begun
        move, topic = next(moves, ("end", ""))
        result: list[Outgoing] = []
        if move == "look":
            search.examine(
                topic, self.log.read(topic, partition, 0, self.log.end(topic, partition))
            )
        elif move == "exclude":
            search.exclude(self.log.read(topic, partition, 0, self.log.end(topic, partition)))
        elif move == "count":
            result = wipes.record_found(search.counted())
        elif move == "remove":
            result = search.removals(topic, tenure.headers)
            self.trace.append(f"wiped {len(result)} of {topic}/{partition}")
        else:
            self.trace.append(f"partition {partition} has wiped {search.wipe.wipe_id}")
            result = wipes.record_found(search.done(self.now_ms))
            del self._searching[partition]
        self._durable(self.worker, partition, result)
        return True

    def counted(self, name: str) -> int:
        """How many of something all partitions say that they have removed."""
        total = 0
        for partition in range(PARTITIONS):
            said = [
                decode(record.value, UserForgotten)
                for record in self.log.records[WIPES, partition]
                if record and record.value and record.key != CLAIM_KEY
            ]
            total += dict(zip(said[-1].found, said[-1].counts, strict=True)).get(name, 0)
        return total

    def left(self, text: bytes) -> list[str]:
        """Where records have a text once all topics are compacted."""
        result = []
        for topic in (item.name for item in TOPICS if item.name not in _STAY):
            for partition in range(PARTITIONS):
                last: dict[bytes | None, tuple[int, bytes]] = {}
                for at, record in enumerate(self.log.records[topic, partition]):
                    if record is not None:
                        last[record.key] = at, record.value or b""
                result += [
                    f"{topic}/{partition}@{at}"
                    for key, (at, value) in last.items()
                    if value and text in b"%b %b" % (key or b"", value)
                ]
        return result

    def rebuilt(self) -> dict[str, dict[tuple[str, ...], Row]]:
        """The rows of all tables, made again from what the log has by now."""
        rebuild = Rebuild(PLACEMENT, [MemoryStore() for _ in range(PARTITIONS)], PARK_FOR_MS)
        for partition in range(PARTITIONS):
            records = self.log.read(WEBHOOKS, partition, 0, self.log.end(WEBHOOKS, partition))
            if records:
                rebuild.apply(rebuild.reader.chunk(records))
        return {
            table.name: {
                (row := decode_row(table, rebuilt.after)).key: row
                for rebuilt in rebuild.rows(table, [0] * PARTITIONS)
                if rebuilt.is_changed and rebuilt.after is not None
            }
            for table in TABLES
        }
