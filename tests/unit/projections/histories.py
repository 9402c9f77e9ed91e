"""Histories for tests: a log of workflow records that is written like the real one."""

from dataclasses import dataclass, field

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.projection import Batch, Span
from headwater.projections.workflows.plan import WORKFLOWS, plan_history
from headwater.schemas.codec import encode
from headwater.schemas.history import (
    NO_CAUSE,
    ClaimedWorkflow,
    CommandRejected,
    HistoryAppended,
    InstanceDeleted,
    LogEvent,
    PartitionClaimed,
    PostsSent,
    RunStarted,
    instance_key,
)
from headwater.schemas.topics import WORKFLOW_HISTORY
from tests.fakes.records import appended
from tests.unit.projections.workflow_fold import RETENTION, Fold

START_MS = 1_767_225_600_000
WORKFLOW = "order"


@dataclass(frozen=True)
class Appended:
    """A record as Kafka hands it out."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = b"key"
    topic: str = WORKFLOW_HISTORY
    timestamp: int = START_MS
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Log:
    """The partitions of `workflow-history`, and who owns them.

    Each record is a second later than the one before it; sequences go on by themselves.
    """

    partitions: list[list[HistoryAppended | bytes]] = field(default_factory=lambda: [[]])
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    seconds: int = 0

    def claim(
        self, partition: int = 0, owner: str = "me", workflows: tuple[str, ...] = (WORKFLOW,)
    ) -> int:
        """A new owner; returns its epoch."""
        epoch = self.epochs[partition] = len(self.partitions[partition])
        claim = appended(
            PartitionClaimed(
                owner, tuple(ClaimedWorkflow(workflow, "replay") for workflow in workflows)
            ),
            workflow="",
            instance_id="",
            epoch=epoch,
            at_ms=self._next_ms(),
        )
        self.partitions[partition].append(claim)
        return epoch

    def write(
        self,
        instance_id: str,
        *events: LogEvent,
        workflow: str = WORKFLOW,
        run_number: int = 0,
        partition: int = 0,
        epoch: int | None = None,
        cause: int = NO_CAUSE,
    ) -> "Log":
        """A record of the owner, or, with an epoch, of one that may be an owner no longer."""
        owned = self.epochs.get(partition, -1)
        started = any(isinstance(event, RunStarted) for event in events)
        sequence = 0 if started else self.sequences.get((instance_id, run_number), 0)
        if epoch in (None, owned):
            taken = sum(
                not isinstance(e, CommandRejected | InstanceDeleted | PostsSent) for e in events
            )
            self.sequences[instance_id, run_number] = sequence + taken
        record = appended(
            *events,
            workflow=workflow,
            instance_id=instance_id,
            run_number=run_number,
            sequence=sequence,
            epoch=owned if epoch is None else epoch,
            cause=cause,
            at_ms=self._next_ms(),
        )
        self.partitions[partition].append(record)
        return self

    def _next_ms(self) -> int:
        self.seconds += 1
        return START_MS + self.seconds * 1_000

    def records(self, partition: int = 0, start: int = 0, end: int | None = None) -> list[Appended]:
        """Records as Kafka hands them out."""
        numbered = list(enumerate(self.partitions[partition]))[start:end]
        return [
            Appended(
                partition,
                offset,
                record if isinstance(record, bytes) else encode(record),
                b""
                if isinstance(record, bytes)
                else instance_key(record.workflow, record.instance_id).encode(),
            )
            for offset, record in numbered
        ]

    def fold(self) -> Fold:
        """What the rows must be."""
        fold = Fold()
        for partition, records in enumerate(self.partitions):
            for offset, record in enumerate(records):
                if isinstance(record, HistoryAppended):
                    fold.add(partition, offset, record)
        return fold


class Cutter:
    """Cuts a log into batches, as a projector does."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.reading = [0] * len(log.partitions)
        self.claims = [Claims() for _ in log.partitions]

    def seek(self, partition: int, offset: int, claims: Claims) -> None:
        """Reads on from there."""
        self.reading[partition] = offset
        self.claims[partition] = claims

    def batch(self, *sizes: int) -> Batch:
        """The next records, so many of each partition."""
        records, spans, claims = [], {}, {}
        for partition, size in enumerate(sizes):
            start = self.reading[partition]
            result = self.log.records(partition, start, start + size)
            if not result:
                continue
            position = (WORKFLOW_HISTORY, partition)
            records += WORKFLOWS.read(result, self.claims[partition])
            spans[position] = Span(start, start + len(result))
            held = self.claims[partition]
            claims[position] = Claims(held.epoch, held.cause)
            self.reading[partition] += len(result)
        return Batch(
            records=records, spans=spans, plan=plan_history(records, RETENTION), claims=claims
        )
