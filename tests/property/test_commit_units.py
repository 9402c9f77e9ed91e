"""Where commit units begin and end changes nothing: rows, outcomes and store are the same."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.providers.provider import Placement
from headwater.processors.wipes import SOURCE, TYPE, WipeOrder
from headwater.schemas.codec import decode, encode, encode_row
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.records import RowRebuilt, Stamp, UserForgotten, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, Row
from headwater.schemas.topics import EVENTS, OUTCOMES, UNRESOLVED, WAITING, WEBHOOKS, WIPES
from headwater.streams.kafka.dead_letters import REPLAY_OF
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import Family
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState
from headwater.streams.pipeline.processing import admitted
from headwater.streams.pipeline.record_batch import phases
from tests.fakes.memory_store import MemoryStore
from tests.simulation.pipeline import PLACEMENT, PROVIDERS
from tests.simulation.test_pipeline import delivery

NOW_MS = 1_783_000_000_000
KINDS = ["auth", "daily", "daily", "sleep", "deauth", "user_reauth", "odd"]
SUBJECTS = ["t1", "t1", "t2", "o1"]
WIPED = Family("x")
#: The last record of a key counts.
COMPACTED = {*(table.topic for table in ALL_TABLES), OUTCOMES, WAITING, WIPES}


class Arrival(NamedTuple):
    topic: str
    records: list[Incoming]
    now_ms: int


class Result(NamedTuple):
    latest: dict[tuple[str, bytes], object]
    others: dict[str, list[Outgoing]]
    store: dict[str, dict[bytes, bytes]]


def arrivals(draw: random.Random) -> list[Arrival]:
    """Batches of one partition: deliveries, copies, replays, hops, wipes and rebuilt rows."""
    known: list[WebhookReceived] = []
    offsets: defaultdict[str, int] = defaultdict(int)
    batches = []
    for number in range(draw.randint(2, 8)):
        topic = draw.choice([WEBHOOKS, WEBHOOKS, WEBHOOKS, EVENTS, UNRESOLVED])
        records = []
        for _ in range(draw.randint(1, 4)):
            record = _record(draw, topic, offsets, known)
            offsets[topic] += 1
            records.append(record)
        batches.append(Arrival(topic, records, NOW_MS + number))
    return batches


def _record(
    draw: random.Random, topic: str, offsets: dict[str, int], known: list[WebhookReceived]
) -> Incoming:
    offset = offsets[topic]
    if topic == EVENTS and draw.random() < 0.3:
        return _rebuilt(draw, offset, offsets[WEBHOOKS])
    if topic == WEBHOOKS and draw.random() < 0.1:
        return _incoming(WEBHOOKS, offset, *_order(offset, draw.randint(0, offset)))
    one = delivery(draw, draw.choice(KINDS), draw.choice(SUBJECTS), len(known))
    if known and draw.random() < 0.4:
        one = draw.choice(known)
    known.append(one)
    key = one.event_id.encode()
    if topic == WEBHOOKS:
        headers = ((REPLAY_OF, b"0@0"),) if draw.random() < 0.2 else ()
        return _incoming(WEBHOOKS, offset, key, encode(one), headers)
    position = _incoming(WEBHOOKS, draw.randint(0, offsets[WEBHOOKS]), key, b"")
    event = admitted(one, position, PLACEMENT.user_of(one), position.offset, NOW_MS)
    if topic == EVENTS:
        return _incoming(EVENTS, offset, key, encode(event))
    return _incoming(UNRESOLVED, offset, msgspec.json.encode((one.subject, one.event_id)),
                     encode(event))  # fmt: skip


def _rebuilt(draw: random.Random, offset: int, end: int) -> Incoming:
    subject, row = draw.choice(SUBJECTS), None
    key = CONNECTIONS.row_key((subject,))
    if draw.random() < 0.5:
        stamp = Stamp(0, NOW_MS, 0, "rebuilt", 0, 0)
        values = tuple("user_1" if n == "user_id" else None for n in CONNECTIONS.column_names)
        stamps = tuple(None if value is None else stamp for value in values)
        row = encode_row(CONNECTIONS, Row((subject,), values, stamps))
    rebuilt = RowRebuilt(rebuild="r", table=CONNECTIONS.name, row=row, ends=[end])
    return _incoming(EVENTS, offset, key, encode(rebuilt))


def _order(offset: int, fence: int) -> tuple[bytes, bytes]:
    body = msgspec.json.encode(WipeOrder(f"w{offset}", "user_1", (fence,)))
    wipe = WebhookReceived(
        event_id=f"wipe-{offset}", request_id="w", source=SOURCE, type=TYPE, subject="user_1",
        sent_at_ms=NOW_MS, updated_at_ms=0, received_at_ms=NOW_MS, body=body,
    )  # fmt: skip
    return wipe.event_id.encode(), encode(wipe)


def _incoming(
    topic: str, offset: int, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...] = ()
) -> Incoming:
    return Incoming(topic, 0, offset, NOW_MS, 0, key, value, None, len(key), len(value), headers)


def processed(units: Sequence[Sequence[Arrival]]) -> Result:
    intake = Intake(placement=Placement(PROVIDERS, "user_"), partitions=1, park_for_ms=10**9)
    store = MemoryStore()
    state = PartitionState(0, store)
    latest: dict[tuple[str, bytes], object] = {}
    others: defaultdict[str, list[Outgoing]] = defaultdict(list)
    for batches in units:
        unit = intake.begin(state, batches[0].now_ms)
        for batch in batches:
            intake.step(unit, batch.topic, batch.records, batch.now_ms)
        for record in (record for phase in phases(unit.results()) for record in phase):
            if record.topic in COMPACTED:
                latest[record.topic, record.key or b""] = _unordered(record.topic, record.value)
            elif record.value is not None and record.key is not None:
                others[record.topic].append(record)
        state.write(PartitionCheckpoint())
    families = {family: dict(store.scan(family, limit=10**6)) for family in store.families()}
    families.pop(WIPED, None)  # It has the same as its topic.
    return Result(latest, dict(others), families)


def _unordered(topic: str, value: bytes | None) -> object:
    """A record without the order of its names, which is that of a scan."""
    if topic != WIPES or value is None:
        return value
    wipe = decode(value, UserForgotten)
    names, digests = sorted(wipe.names), sorted(wipe.digests)
    return msgspec.structs.replace(wipe, names=names, digests=digests)


@given(st.integers(0, 2**32), st.lists(st.booleans(), min_size=8, max_size=8))
def test_units_of_any_size_come_to_what_single_batches_come_to(seed: int, cuts: list[bool]):
    batches = arrivals(random.Random(seed))
    units: list[list[Arrival]] = [[]]
    for batch, cut in zip(batches, cuts, strict=False):
        if cut and units[-1]:
            units.append([])
        units[-1].append(batch)
    assert processed(units) == processed([[batch] for batch in batches])
