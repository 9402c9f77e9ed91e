"""A user who connects again while a wipe is ordered keeps that connection, or loses all of it.

What counts is whether the connection is before or after the first order in its partition. When the
other partition reads its orders, and the hop, makes no difference.
"""

import dataclasses
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.providers.provider import Placement
from headwater.processors.wipes import WipeOrder
from headwater.schemas.codec import decode_row
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY
from headwater.schemas.topics import EVENTS, WIPES
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.pipeline.rebuilding import Rebuild
from headwater.streams.pipeline.wiping import order_records
from tests.fakes.memory_store import MemoryStore
from tests.unit.streams.test_intake import (
    AUTH,
    AUTH_OF_1,
    NOW,
    PROVIDERS,
    Owner,
    intake_of,
    on,
    outcomes,
    raw,
    read_back,
    received,
    step,
)

PARTITIONS = 4
USER, SUBJECT = "user_1", "t1"
AT, HOME = partition_of(b"t1", PARTITIONS), partition_of(b"user_1", PARTITIONS)
DAY = (USER, "garmin", "2026-07-01")


def connecting(number: int, **more: object) -> WebhookReceived:
    body = AUTH.replace(b"GARMIN", b"GARMIN%d" % number)
    later = {"sent_at_ms": NOW + number * 1_000, "received_at_ms": NOW + number * 1_000}
    return received(**(AUTH_OF_1 | {"event_id": f"auth{number}", "body": body} | later | more))


class System:
    """Two partitions that read their logs at any pace."""

    def __init__(self) -> None:
        self.owner: Owner = intake_of(partitions=PARTITIONS)
        self.log: dict[int, list[Incoming]] = {AT: [], HOME: []}
        self.position = {AT: 0, HOME: 0}
        self.hops: list[Outgoing] = []
        self.wipes: dict[int, list[Outgoing]] = {AT: [], HOME: []}

    def append(self, partition: int, delivery: WebhookReceived) -> None:
        offset = len(self.log[partition])
        self.log[partition].append(raw(delivery, offset, partition=partition))

    def order(self, fence: Sequence[int], number: int) -> tuple[int, ...]:
        """Append an order; return its positions."""
        at = tuple(len(self.log.get(partition, ())) for partition in range(PARTITIONS))
        for record in order_records(WipeOrder("w", USER, tuple(fence)), number, NOW):
            if record.partition in self.log:
                offset = len(self.log[record.partition])
                self.log[record.partition].append(
                    dataclasses.replace(read_back(record), offset=offset)
                )
        return at

    def read(self, source: str) -> list[Outgoing] | None:
        """Read the next record of a topic; None if there is none."""
        if source == EVENTS:
            if not self.hops:
                return None
            partition, record = HOME, read_back(self.hops.pop(0))
        else:
            partition = AT if source == "at" else HOME
            if self.position[partition] == len(self.log[partition]):
                return None
            record = self.log[partition][self.position[partition]]
            self.position[partition] += 1
        emitted = step(self.owner, record, at=partition)
        self.hops += on(emitted, EVENTS)
        self.wipes[partition] += on(emitted, WIPES)
        return emitted

    def drain(self) -> list[Outgoing]:
        emitted: list[Outgoing] = []
        for source in ("at", "home", EVENTS):
            while (more := self.read(source)) is not None:
                emitted += more
        return emitted

    def rows(self) -> tuple[bool, bool]:
        """Whether there is the connection, and the day."""
        states = self.owner.states
        return (
            states[AT].rows.get(CONNECTIONS, (SUBJECT,)) is not None,
            states[HOME].rows.get(DAILY_SUMMARY, DAY) is not None,
        )

    def rebuilt(self, order: Sequence[int]) -> tuple[bool, bool]:
        """The same after a rebuild that reads the partitions in an order."""
        rebuild = Rebuild(
            Placement(PROVIDERS, "user_"), [MemoryStore() for _ in range(PARTITIONS)], 1_000
        )
        for partition, records in self.wipes.items():
            rebuild.note_accepted(partition, map(read_back, records))
        for partition in order:
            rebuild.apply(rebuild.reader.chunk(self.log[partition]))
        keys = {
            table: {
                decode_row(table, row.after).key
                for row in rebuild.rows(table, [0] * PARTITIONS)
                if row.after is not None
            }
            for table in (CONNECTIONS, DAILY_SUMMARY)
        }
        return (SUBJECT,) in keys[CONNECTIONS], DAY in keys[DAILY_SUMMARY]


@given(
    before=st.integers(0, 2),
    between=st.integers(0, 2),
    after=st.integers(0, 1),
    knows=st.booleans(),
    schedule=st.lists(st.sampled_from(("at", "home", EVENTS)), max_size=14),
)
@settings(max_examples=300, deadline=None)
def test_what_a_user_connects_after_the_first_order_of_a_wipe_is_kept(
    before: int, between: int, after: int, knows: bool, schedule: list[str]
):
    system, numbers = System(), iter(range(1, 9))
    system.append(AT, received(**AUTH_OF_1))
    if knows:
        system.drain()
    fence = [len(system.log.get(partition, ())) for partition in range(PARTITIONS)]
    for _ in range(before):
        system.append(AT, connecting(next(numbers)))
    positions = system.order(fence, 0)
    for _ in range(between):
        system.append(AT, connecting(next(numbers)))
    system.order(positions, 1)
    for _ in range(after):
        system.append(AT, connecting(next(numbers)))
    for source in schedule:
        system.read(source)
    system.drain()
    daily = received(event_id="late", reference=USER, received_at_ms=NOW + 60_000)
    system.append(HOME, daily)
    outcome = outcomes(system.drain())["late"]
    returned = between + after > 0
    assert (outcome.status, outcome.reason == "wiped") == (
        ("processed", False) if returned else ("skipped", True)
    )
    assert system.rows() == (returned, returned)
    for order in ((AT, HOME), (HOME, AT)):
        assert system.rebuilt(order) == (returned, returned)
