"""Intake over one batch, as a commit unit of its own."""

from collections.abc import Sequence

from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionState


def emitted_by(
    intake: Intake,
    state: PartitionState,
    records: Sequence[Incoming],
    now_ms: int,
    topic: str = WEBHOOKS,
) -> list[Outgoing]:
    unit = intake.begin(state, now_ms)
    intake.step(unit, topic, records, now_ms)
    return unit.results()
