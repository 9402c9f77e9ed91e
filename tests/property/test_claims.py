"""Claims of event ids are put without a look at what is there: whoever wrote them, they agree."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.providers.provider import Placement
from headwater.schemas.codec import decode, encode
from headwater.schemas.records import DuplicateDropped, WebhookReceived, WebhooksClaimed
from headwater.schemas.topics import ADMISSIONS, TRACES, WEBHOOKS
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState
from tests.commit_units import emitted_by
from tests.fakes.memory_store import MemoryStore

NOW_MS = 1_783_000_000_000


class Batch(NamedTuple):
    """What a worker read, what it claimed of that, and the copies that it dropped."""

    end: int
    claims: list[Outgoing]
    dropped: set[int]


class Worker:
    """A worker that begins with the claims it has read."""

    def __init__(self, claims: list[Outgoing]) -> None:
        self.intake = Intake(placement=Placement({}, "user_"), partitions=1, park_for_ms=1_000)
        self.state = PartitionState(0, MemoryStore())
        for claim in claims:
            self.state.restore_record(incoming(ADMISSIONS, claim.key, claim.value, 0))
        self.state.write(PartitionCheckpoint())

    def process(self, log: list[str], start: int, sizes: list[int]) -> list[Batch]:
        """Reads a log from an offset to its end, in batches of some sizes."""
        batches = []
        for size in [*sizes, len(log)]:
            end = min(start + size, len(log))
            records = [delivery(log[offset], offset) for offset in range(start, end)]
            if records:
                batches.append(self._step(end, records))
            start = end
        return batches

    def _step(self, end: int, records: list[Incoming]) -> Batch:
        emitted = emitted_by(self.intake, self.state, records, NOW_MS)
        self.state.write(PartitionCheckpoint())
        traces = [decode(item.value, DuplicateDropped) for item in emitted if item.topic == TRACES]
        claims = [item for item in emitted if item.topic == ADMISSIONS]
        return Batch(end, claims, {trace.offset for trace in traces})


def incoming(topic: str, key: bytes | None, value: bytes | None, offset: int) -> Incoming:
    return Incoming(topic, 0, offset, NOW_MS, 0, key, value, None, 0, 0, ())


def delivery(event_id: str, offset: int) -> Incoming:
    received = WebhookReceived(
        event_id=event_id,
        request_id=f"r{offset}",
        source="nobody",
        type="daily",
        subject="s",
        reference=None,
        sent_at_ms=NOW_MS,
        updated_at_ms=0,
        received_at_ms=NOW_MS,
        body=b"{}",
    )
    return incoming(WEBHOOKS, event_id.encode(), encode(received), offset)


def copies(log: list[str], start: int = 0) -> set[int]:
    """The offsets of deliveries that came before, from an offset on."""
    return {offset for offset in range(start, len(log)) if log[offset] in log[:offset]}


SIZES = st.lists(st.integers(1, 6), max_size=6)


@settings(max_examples=40)
@given(
    log=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=24),
    old_sizes=SIZES,
    new_sizes=SIZES,
    draw=st.data(),
)
def test_a_superseded_worker_and_its_successor_claim_the_same_first_offsets(
    log: list[str], old_sizes: list[int], new_sizes: list[int], draw: st.DataObject
):
    superseded = Worker([]).process(log, 0, old_sizes)
    # Claims are durable in order, and what is committed is no further than they are.
    durable = draw.draw(st.integers(0, len(superseded)), "batches durable at the takeover")
    committed = draw.draw(st.sampled_from([0, *(item.end for item in superseded[:durable])]))
    admitted = [claim for batch in superseded[:durable] for claim in batch.claims]
    late = [claim for batch in superseded[durable:] for claim in batch.claims]

    successor = Worker(admitted).process(log, committed, new_sizes)
    for claim in (claim for batch in successor for claim in batch.claims):
        while late and draw.draw(st.booleans(), "an old claim arrives late"):
            admitted.append(late.pop(0))
        admitted.append(claim)
    admitted += late

    dropped = set().union(*(batch.dropped for batch in successor))
    assert dropped == copies(log, committed)
    firsts: dict[str, set[int]] = {}
    for claim in admitted:
        claimed = decode(claim.value, WebhooksClaimed)
        for event_id, offset in zip(claimed.event_ids, claimed.offsets, strict=True):
            firsts.setdefault(event_id, set()).add(offset)
    assert firsts == {event_id: {log.index(event_id)} for event_id in log}
    # So whoever restores all of them, in the order of the log, drops every copy and no more.
    third = Worker(admitted).process(log, 0, [len(log)])
    assert set().union(*(batch.dropped for batch in third)) == copies(log)
