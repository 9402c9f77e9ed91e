"""What the auditor knows, and continues from after a restart."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headwater.processors.auditor.deliveries import DeliveryState
from headwater.processors.auditor.findings import Findings
from headwater.processors.auditor.histories import HistoryState
from headwater.processors.auditor.logs import LogState, ReadPosition
from headwater.processors.runs.claims import Claims
from headwater.schemas.topics import WEBHOOKS, WORKFLOW_HISTORY

#: Version of the encoding; an auditor that does not know it reads the log from its beginning.
FORMAT: Final = 1


class RowState(msgspec.Struct):
    """Progress of the comparison of rows.

    Attributes:
        compared: Number of rows that were compared.
        next_offsets: Next offset to compare, by topic and partition.
        differing: Differences by the position of the row's record.
    """

    compared: int = 0
    next_offsets: dict[str, dict[int, int]] = {}
    differing: dict[str, str] = {}


class AuditorState(msgspec.Struct):
    """State of all laws after the records up to some positions.

    Attributes:
        since_ms: When the auditor first read the log, or began again, Unix milliseconds.
        positions: Up to where partitions were read, by topic.
        read_to_ms: Until when all deliveries were read, in Unix milliseconds of the brokers.
        deliveries: Deliveries without an outcome.
        claims: Claims of partitions of outcomes.
        ignored: Number of outcomes of superseded owners.
        histories: Histories by partition.
        logs: Ends of all topics.
        rows: Comparison of rows.
        findings: Findings.
        begins: Offsets before which nothing is read, by topic and partition, because topics
            were copied then.
        prefix: Prefix of the topics that were read; None if it is not known.
    """

    since_ms: int = 0
    positions: dict[str, dict[int, ReadPosition]] = {}
    read_to_ms: int = 0
    deliveries: DeliveryState = msgspec.field(default_factory=DeliveryState)
    claims: dict[int, Claims] = {}
    ignored: int = 0
    histories: dict[int, HistoryState] = {}
    logs: LogState = msgspec.field(default_factory=LogState)
    rows: RowState = msgspec.field(default_factory=RowState)
    findings: Findings = msgspec.field(default_factory=Findings)
    begins: dict[str, dict[int, int]] = {}
    prefix: str | None = None

    def begin_of(self, topic: str, partition: int, first: int) -> int:
        """Return where to begin to read a partition, given its first offset."""
        end = self.logs.ends.get(topic, {}).get(partition, 0)
        # A log that was cut since has other records before the offset.
        return max(first, min(end, self.begins.get(topic, {}).get(partition, 0)))

    def is_of_others(self, prefix: str, partitions: int) -> bool:
        """Return whether the topics that were read are not those of now, but were copied to them.

        Args:
            prefix: Prefix of the topics of now.
            partitions: Number of their partitions.
        """
        is_renamed = self.prefix is not None and self.prefix != prefix
        return is_renamed or 0 < len(self.logs.ends.get(WEBHOOKS, ())) < partitions

    def history(self, partition: int) -> HistoryState:
        """Return the state of a partition of the history."""
        return self.histories.setdefault(partition, HistoryState())


def state_at_ends(
    findings: Findings, ends: Mapping[str, tuple[int, ...]], names: Iterable[str], now_ms: int
) -> AuditorState:
    """Return a state that continues at the ends of topics, and knows nothing of what is before.

    Args:
        findings: The findings to keep.
        ends: End offsets of all topics.
        names: Topics that are read.
        now_ms: The time, in Unix milliseconds.
    """
    known = {topic: dict(enumerate(of_topic)) for topic, of_topic in ends.items()}
    begins = {topic: known.get(topic, {}) for topic in names}
    histories = {number: HistoryState(is_whole=False) for number in known.get(WORKFLOW_HISTORY, ())}
    return AuditorState(
        since_ms=now_ms,
        # Leader epochs of other topics would say nothing about these.
        positions={
            topic: {number: ReadPosition(end) for number, end in of_topic.items()}
            for topic, of_topic in begins.items()
        },
        histories=histories,
        logs=LogState(ends=known),
        findings=findings,
        begins={topic: dict(of_topic) for topic, of_topic in begins.items()},
    )


def encode_state(state: AuditorState) -> bytes:
    """Return the state as bytes."""
    return msgspec.msgpack.encode(state)


def encode_within(state: AuditorState, max_bytes: int) -> tuple[bytes, list[str]]:
    """Return the state as bytes, and what was forgotten so that they are not more than allowed.

    What is forgotten is taken as it is when it goes on. Deliveries without an outcome are kept.
    """
    forgotten: list[str] = []
    for name, forget in (
        ("results of steps", _forget_results),
        ("progress of instances", _forget_instances),
        ("parked deliveries", lambda one: one.deliveries.parked.clear()),
    ):
        data = encode_state(state)
        if len(data) <= max_bytes:
            return data, forgotten
        forget(state)
        forgotten.append(name)
    return encode_state(state), forgotten


def _forget_results(state: AuditorState) -> None:
    for history in state.histories.values():
        history.remembered = 0
        for progress in history.instances.values():
            progress.results = None


def _forget_instances(state: AuditorState) -> None:
    for history in state.histories.values():
        history.forget_instances()


def decode_state(data: bytes) -> AuditorState:
    """Return the state of bytes.

    Raises:
        DecodeError: They are no state of this format.
    """
    return msgspec.msgpack.decode(data, type=AuditorState)
