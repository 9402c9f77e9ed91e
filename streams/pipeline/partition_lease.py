"""The claims of a partition of the pipeline, and records of other writers, without I/O.

Nothing in Kafka keeps a superseded owner from writing: its records may arrive late, and a suspended
process resumes. Its records are void (`processors.runs.claims`), but compaction keeps only the last
record of a key, so a void record could remove a valid one. An owner therefore checks whether the
offsets of its appends are contiguous. If they are not, it reads the records in the gap, and
rewrites its own state of their keys; the compaction lag of the topics is far longer than that
takes. It does the same for void records that it reads when it acquires the partition.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Final, TypeAlias

from typing_extensions import override

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.schemas.epochs import CLAIM, CLAIM_KEY, EPOCH, UNSEEN, epoch_of, is_claim, unseen_of
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.topics import OUTCOMES, WAITING, WIPES
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.ownership.leases import Gap, LogCut, PartitionLease, PartitionLost
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState

#: Topics with the writer's epoch in every record. Claims of event ids are valid from any writer;
#: hops, effects, traces and dead letters may be duplicated.
FENCED: Final = (*(table.topic for table in ALL_TABLES), WAITING, WIPES, OUTCOMES)

#: The last void records, by topic and key.
Hidden: TypeAlias = Mapping[str, Mapping[bytes, Incoming]]


class Fold:
    """Which records of a partition are valid, read in order."""

    def __init__(self, checkpoint: PartitionCheckpoint | None = None) -> None:
        checkpoint = checkpoint or PartitionCheckpoint()
        self._claims: defaultdict[str, Claims] = defaultdict(
            Claims, {topic: Claims(epoch) for topic, epoch in checkpoint.epochs.items()}
        )
        #: Keys with a void last record.
        self._hidden: defaultdict[str, dict[bytes, Incoming]] = defaultdict(dict)
        #: Next offset by topic.
        self.positions: dict[str, int] = dict(checkpoint.positions)
        #: From the last claim: where to begin to check outcomes, and the epoch there.
        self.unseen = checkpoint.unseen

    def admit(self, record: Incoming) -> bool:
        """Record position and epoch of a record; return whether it is valid, and no claim."""
        topic, key = record.topic, record.key or b""
        self.positions[topic] = record.offset + 1
        if is_claim(record.headers):
            if self._claims[topic].admit_epoch(epoch_of(record.headers)):
                self.unseen = unseen_of(record.headers) or self.unseen
            return False
        counts = self._claims[topic].admit_epoch(epoch_of(record.headers))
        hidden = self._hidden[topic]
        if not counts:
            hidden[key] = record
        elif hidden:
            hidden.pop(key, None)
        return counts

    def begin(self, topic: str, offset: int, epoch: int) -> None:
        """Set where a topic is read from, if not its beginning, and the epoch there."""
        self.positions[topic] = offset
        self._claims[topic].admit_epoch(epoch)

    @property
    def epoch(self) -> int:
        """Return the greatest epoch of all topics."""
        return max((claims.epoch for claims in self._claims.values()), default=UNCLAIMED)

    def checkpoint(self, topics: Iterable[str]) -> PartitionCheckpoint | None:
        """Return the position of topics; None while void records hide valid ones."""
        if self.hidden:
            return None
        positions = {topic: self.positions[topic] for topic in topics if topic in self.positions}
        epochs = {topic: claims.epoch for topic, claims in self._claims.items()}
        return PartitionCheckpoint(positions, epochs, self.unseen)

    @property
    def hidden(self) -> Hidden:
        """Return the void records that are the last of their keys, by topic."""
        return {topic: records for topic, records in self._hidden.items() if records}


def claim(
    topic: str,
    partition: int,
    owner: str,
    epoch: int | None = None,
    unseen: tuple[int, int] | None = None,
) -> Outgoing:
    """Return the record by which an owner claims a partition of a topic.

    Args:
        topic: The topic.
        partition: The partition.
        owner: Name of the owner, for people.
        epoch: The epoch; None in the topic where the offset of the claim becomes the epoch.
        unseen: See `Fold`.
    """
    headers: Headers = [(CLAIM, owner.encode())]
    if epoch is not None:
        headers.append((EPOCH, b"%d" % epoch))
    if unseen is not None and topic == WAITING:
        headers.append((UNSEEN, b"%d@%d" % unseen))
    return Outgoing(topic, partition, CLAIM_KEY, b"", headers)


class PipelineLease(PartitionLease):
    """The lease of a partition number of the fenced topics.

    Attributes:
        state: State of the partition, restored up to the claims. Open until the lease is over.
        headers: Headers of all records in fenced topics.
        published_unseen: Value of `unseen` in the last claim.
    """

    def __init__(self, state: PartitionState, epoch: int, claims: Mapping[str, int]) -> None:
        super().__init__(state.partition, epoch, claims)
        self.state = state
        self.headers = state.headers
        self.headers[:] = [(EPOCH, b"%d" % epoch)]
        self.published_unseen: tuple[int, int] | None = None

    def write(self, topics: Iterable[str]) -> None:
        """Write the state, once all appends are acknowledged, with its position in some topics.

        Does nothing if the lease is over.
        """
        if not self.over:
            positions = {topic: self._next[topic] for topic in topics if topic in self._next}
            epochs = dict.fromkeys(FENCED, self.epoch)
            unseen = self.published_unseen or (0, UNCLAIMED)
            self.state.write(PartitionCheckpoint(positions, epochs, unseen))

    @override
    def reached(self, topic: str, offset: int) -> Gap | None:
        try:
            return super().reached(topic, offset)
        except LogCut:
            if not self.over:
                self.state.clear()  # It has what the log lost.
            raise

    def apply(self, records: Iterable[Incoming]) -> None:
        """Apply records to the state, unless the lease is over."""
        for record in () if self.over else records:
            self.state.restore_record(record)

    def discard(self) -> None:
        """End the lease, and release the store, which another worker may open from now on."""
        self.end("its state was discarded")
        self.state.close()

    @property
    def unseen(self) -> tuple[int, int]:
        """Return where the next owner has to begin to check outcomes, and the epoch there.

        Valid only when all gaps have been repaired.
        """
        return self._next[OUTCOMES], self.epoch

    def classify(self, records: Iterable[Incoming]) -> tuple[list[Incoming], Hidden]:
        """Divide the records of a gap into valid ones without an owner, and void ones.

        Raises:
            PartitionLost: A record has a later epoch.
        """
        counting: list[Incoming] = []
        hidden: defaultdict[str, dict[bytes, Incoming]] = defaultdict(dict)
        for record in records:
            epoch = epoch_of(record.headers)
            if epoch is not None and epoch > self.epoch:
                raise PartitionLost(
                    f"expected {record.topic}/{record.partition} to be ours, claimed as "
                    f"{self.epoch}, found epoch {epoch} at offset {record.offset}: another process "
                    "has claimed the partition"
                )
            if epoch is None and not is_claim(record.headers):
                counting.append(record)
            elif epoch is not None and epoch < self.epoch and not is_claim(record.headers):
                hidden[record.topic][record.key or b""] = record
        return counting, hidden


def last_values(
    fold: Fold, records: Iterable[Incoming], keys: Container[bytes]
) -> dict[bytes, bytes | None]:
    """Return the last values of keys among records that are read with a fold."""
    last: dict[bytes, bytes | None] = {}
    for record in records:
        key = record.key or b""
        if fold.admit(record) and key in keys:
            last[key] = record.value
    return last
