"""Owning a partition, without I/O: what its owner reads, claims, writes, and finds beside it.

Nothing in Kafka keeps a superseded owner from writing: what it sent may arrive late, and a process
that stood still goes on. Its records are void (`processors.epochs`), but a compacted topic keeps
the last record of a key alone, so a void one would end a good one's days. An owner therefore looks
whether the offsets of what it appends follow each other. Where they do not, it reads what came
between, and writes its own state of those keys again; the topics' compaction lag is far longer than
that takes. The same is done for what it finds when it takes the partition.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.epochs import UNCLAIMED, NewestEpoch
from headwater.schemas.epochs import CLAIM, CLAIM_KEY, EPOCH, UNSEEN, epoch_of, is_claim, unseen_of
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.topics import OUTCOMES, WAITING, WIPES
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.pipeline.staged import Mark

#: The topics whose records carry their writer's epoch. Claims of event ids are true whoever writes
#: them; hops, effects, traces and dead letters do not mind being there twice.
FENCED: Final = (*(table.topic for table in ALL_TABLES), WAITING, WIPES, OUTCOMES)

#: Records of one topic, by key, the last of each.
Hidden: TypeAlias = Mapping[str, Mapping[bytes, Incoming]]


class PartitionLost(HeadwaterError):
    """Somebody else owns a partition that this process believed to be its own."""

    disposition = Disposition.HALT
    code = "partition_lost"


class LogCut(PartitionLost):
    """The log is shorter than what the broker had acknowledged: memory of it is worth nothing."""

    code = "log_cut"


class Gap(NamedTuple):
    """Offsets of a topic that somebody else wrote, from `start` up to, without, `end`."""

    topic: str
    start: int
    end: int


class Fold:
    """What counts of the topics of one partition, read in order."""

    def __init__(self, mark: Mark | None = None) -> None:
        mark = mark or Mark()
        self._newest: defaultdict[str, NewestEpoch] = defaultdict(
            NewestEpoch, {topic: NewestEpoch(epoch) for topic, epoch in mark.epochs.items()}
        )
        #: The keys whose last record is void.
        self._hidden: defaultdict[str, dict[bytes, Incoming]] = defaultdict(dict)
        #: Where each topic goes on.
        self.positions: dict[str, int] = dict(mark.positions)
        #: What the last claim said of outcomes: where to begin to look, and the epoch there.
        self.unseen = mark.unseen

    def admit(self, record: Incoming) -> bool:
        """Takes note of a record, and says whether it counts. Claims do not."""
        topic, key = record.topic, record.key or b""
        self.positions[topic] = record.offset + 1
        if is_claim(record.headers):
            if self._newest[topic].admit(epoch_of(record.headers)):
                self.unseen = unseen_of(record.headers) or self.unseen
            return False
        counts = self._newest[topic].admit(epoch_of(record.headers))
        hidden = self._hidden[topic]
        if not counts:
            hidden[key] = record
        elif hidden:
            hidden.pop(key, None)
        return counts

    def begin(self, topic: str, offset: int, epoch: int) -> None:
        """Says where a topic is read from, if that is not its beginning, and the epoch there."""
        self.positions[topic] = offset
        self._newest[topic].admit(epoch)

    @property
    def epoch(self) -> int:
        """The greatest epoch of all."""
        return max((newest.epoch for newest in self._newest.values()), default=UNCLAIMED)

    def mark(self, topics: Iterable[str]) -> Mark | None:
        """How far some topics are folded; None while something hides there."""
        if self.hidden:
            return None
        positions = {topic: self.positions[topic] for topic in topics if topic in self.positions}
        epochs = {topic: newest.epoch for topic, newest in self._newest.items()}
        return Mark(positions, epochs, self.unseen)

    @property
    def hidden(self) -> Hidden:
        """The void records that are the last of their keys, by topic."""
        return {topic: records for topic, records in self._hidden.items() if records}


def claim(
    topic: str,
    partition: int,
    owner: str,
    epoch: int | None = None,
    unseen: tuple[int, int] | None = None,
) -> Outgoing:
    """The record by which an owner takes a partition of a topic.

    Shape:  without an epoch, in the topic whose offset is the epoch; unseen as `Fold` has it.
    """
    headers: Headers = [(CLAIM, owner.encode())]
    if epoch is not None:
        headers.append((EPOCH, b"%d" % epoch))
    if unseen is not None and topic == WAITING:
        headers.append((UNSEEN, b"%d@%d" % unseen))
    return Outgoing(topic, partition, CLAIM_KEY, b"", headers)


_CUT: Final = "usual cause: the broker lost its end, or the topic was made anew"


class Tenure:
    """The time for which somebody owns a partition: it begins with claims, and has an epoch."""

    def __init__(self, partition: int, epoch: int, claims: Mapping[str, int]) -> None:
        self.partition = partition
        self.epoch = epoch
        #: What each record of a fenced topic has.
        self.headers: Headers = [(EPOCH, b"%d" % epoch)]
        self._next = {topic: offset + 1 for topic, offset in claims.items()}
        #: The partition was forgotten: nothing of it is to be written or remembered any more.
        self.over = False
        #: What the last claim said of `unseen`.
        self.said_unseen: tuple[int, int] | None = None

    def appended(self, topic: str, partition: int, first: int, count: int) -> Gap | None:
        """Takes note of an acknowledged batch; returns what somebody else wrote before it.

        Errors: LogCut, if it lies before what was acknowledged earlier.
        """
        expected = self._next.get(topic) if partition == self.partition else None
        if expected is None:
            return None
        if first < expected:
            raise LogCut(
                f"expected what was appended to {topic}/{partition} at {expected} or later, found "
                f"it at {first}; {_CUT}"
            )
        self._next[topic] = first + count
        return Gap(topic, expected, first) if first > expected else None

    def ended(self, topic: str, end: int) -> Gap | None:
        """Takes note of the end of a topic; returns what somebody else wrote there.

        Errors: LogCut, if it lies before what was acknowledged.
        """
        expected = self._next[topic]
        if end < expected:
            raise LogCut(
                f"expected the end of {topic}/{self.partition} at {expected} or later, found it at "
                f"{end}; {_CUT}"
            )
        self._next[topic] = end
        return Gap(topic, expected, end) if end > expected else None

    def mark(self, topics: Iterable[str]) -> Mark:
        """How far some topics are in its memory, when all that it appended is acknowledged."""
        positions = {topic: self._next[topic] for topic in topics if topic in self._next}
        unseen = self.said_unseen or (0, UNCLAIMED)
        return Mark(positions, dict.fromkeys(FENCED, self.epoch), unseen)

    @property
    def unseen(self) -> tuple[int, int]:
        """Where a successor has to begin to look for void outcomes, and the epoch there.

        Shape:  to be asked when all gaps that were found are mended.
        """
        return self._next[OUTCOMES], self.epoch

    def of_others(self, records: Iterable[Incoming]) -> tuple[list[Incoming], Hidden]:
        """Divides the records of a gap: those of no owner, which count, and void ones.

        Errors: PartitionLost.
        """
        counting: list[Incoming] = []
        hidden: defaultdict[str, dict[bytes, Incoming]] = defaultdict(dict)
        for record in records:
            epoch = epoch_of(record.headers)
            if epoch is not None and epoch > self.epoch:
                raise PartitionLost(
                    f"expected {record.topic}/{record.partition} to be ours, claimed as "
                    f"{self.epoch}, found epoch {epoch} at offset {record.offset}: somebody else "
                    "has taken the partition"
                )
            if epoch is None and not is_claim(record.headers):
                counting.append(record)
            elif epoch is not None and epoch < self.epoch and not is_claim(record.headers):
                hidden[record.topic][record.key or b""] = record
        return counting, hidden


def last_of(
    fold: Fold, records: Iterable[Incoming], keys: Container[bytes]
) -> dict[bytes, bytes | None]:
    """The last values of some keys among records that are read with a fold."""
    last: dict[bytes, bytes | None] = {}
    for record in records:
        key = record.key or b""
        if fold.admit(record) and key in keys:
            last[key] = record.value
    return last
