"""The auditor over a simulated pipeline: in rounds, with its state stored and read in between."""

from collections.abc import Mapping

from headwater.processors.auditor.findings import Violation
from headwater.processors.auditor.state import AuditorState, decode_state, encode_state
from headwater.schemas.codec import decode
from headwater.schemas.records import DuplicateDropped, WebhookReceived
from headwater.schemas.topics import OUTCOMES, TRACES, UNRESOLVED, WEBHOOKS
from headwater.streams.auditor.facts import EVIDENCE, Facts
from tests.simulation.pipeline import PARTITIONS, PLACEMENT, World

DAY_MS = 24 * 60 * 60 * 1000


def may_recur(delivery: WebhookReceived) -> bool:
    kind = PLACEMENT.kind_of(delivery)
    return kind is not None and kind.latest is not None


class WorldAuditor:
    """Reads a world's log."""

    def __init__(self) -> None:
        self.state = AuditorState()
        self.read_to: dict[tuple[str, int], int] = {}

    def round(self, world: World) -> list[Violation]:
        """Read on, and return what is violated; as the auditor does it."""
        self.state = decode_state(encode_state(self.state))
        facts = Facts(self.state, may_recur)
        passed = self._passed(world)
        ends = {
            (topic, number): world.log.end(topic, number)
            for topic in EVIDENCE
            for number in range(PARTITIONS)
        }
        for number in range(PARTITIONS):
            self._read(world, facts, WEBHOOKS, number, world.log.end(WEBHOOKS, number))
        for (topic, number), end in ends.items():
            self._read(world, facts, topic, number, end)
        deliveries = facts.deliveries
        return [
            # Records in memory have the time 0.
            *deliveries.lost(passed, 0),
            *deliveries.late(passed, 0, DAY_MS),
            *deliveries.changed_outcomes(),
        ]

    def _read(self, world: World, facts: Facts, topic: str, number: int, end: int) -> None:
        start = self.read_to.get((topic, number), 0)
        facts.apply(world.log.read(topic, number, start, end))
        self.read_to[topic, number] = end

    @staticmethod
    def _passed(world: World) -> Mapping[int, int]:
        """What was committed, if no hop is on its way."""
        hops = all(
            world.committed[UNRESOLVED, number] >= world.log.end(UNRESOLVED, number)
            for number in range(PARTITIONS)
        )
        return {
            number: world.committed[WEBHOOKS, number] if hops else 0 for number in range(PARTITIONS)
        }


def copied(world: World) -> set[str]:
    """Return the deliveries with a copy that was dropped, or of which one record was."""
    copies: set[str] = set()
    for number in range(PARTITIONS):
        for record in world.log.read(TRACES, number, 0, world.log.end(TRACES, number)):
            dropped = decode(record.value, DuplicateDropped)
            copies.add(dropped.event_id)
            copy = world.log.records[WEBHOOKS, dropped.partition][dropped.offset]
            if copy is not None:
                copies.add((copy.key or b"").decode())
    return copies


def remove_outcome(world: World, event_id: str) -> None:
    """Remove all outcomes of a delivery from the log, as who rewrites the topic does."""
    for number in range(PARTITIONS):
        records = world.log.records[OUTCOMES, number]
        for offset, record in enumerate(records):
            if record is not None and record.key == event_id.encode():
                records[offset] = None
