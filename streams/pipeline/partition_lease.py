"""Ownership of a partition, without I/O: claims, appends, staged changes, and blocks.

Nothing in Kafka keeps a superseded owner from writing: its records may arrive late, and a suspended
process resumes. Its records are void (`processors.runs.claims`), but compaction keeps only the last
record of a key, so a void record could remove a valid one. An owner therefore checks whether the
offsets of its appends are contiguous. If they are not, it reads the records in the gap, and
rewrites its own state of their keys; the compaction lag of the topics is far longer than that
takes. It does the same for void records that it reads when it acquires the partition.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
from typing_extensions import override

from headwater.processors.runs.claims import NO_EPOCH, NewestEpoch
from headwater.schemas.codec import write_versions
from headwater.schemas.epochs import CLAIM, CLAIM_KEY, EPOCH, UNSEEN, epoch_of, is_claim, unseen_of
from headwater.schemas.errors import Disposition, HeadwaterError, NotYetReadable
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.newer import Waiting
from headwater.schemas.topics import OUTCOMES, WAITING, WIPES
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.kafka.state_store import Changes, Family

_PAGE = 500


class PartitionCheckpoint(msgspec.Struct, frozen=True):
    """Position of topics in a store.

    Attributes:
        positions: Next offset by topic.
        epochs: Epoch of the newest writer before it, by topic.
        unseen: See `Fold.unseen`.
    """

    positions: dict[str, int] = {}
    epochs: dict[str, int] = {}
    unseen: tuple[int, int] = (0, NO_EPOCH)


class Store(Protocol):
    """Store of a partition's state; see `StateStore`."""

    def positions(self) -> dict[str, int]: ...  # noqa: D102
    def get(self, family: Family, key: bytes) -> bytes | None: ...  # noqa: D102
    def multi_get(  # noqa: D102
        self, family: Family, keys: Sequence[bytes]
    ) -> list[bytes | None]: ...
    def scan(  # noqa: D102
        self, family: Family, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]: ...
    def families(self) -> list[Family]: ...  # noqa: D102
    def write(self, changes: Changes, positions: Mapping[str, int]) -> None: ...  # noqa: D102
    def drop(self, family: Family) -> None: ...  # noqa: D102
    def clear(self) -> None: ...  # noqa: D102
    def purge(  # noqa: D102
        self, family: Family, prefixes: Iterable[bytes] = (b"",)
    ) -> None: ...
    def close(self) -> None: ...  # noqa: D102


class Staged:
    """A store and the changes to be written to it.

    Changes of a batch must not reach the store before the broker has acknowledged them, but the
    batch itself has to see them. So they are staged, and written when their owner reports them as
    durable.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._changes: defaultdict[Family, dict[bytes, bytes | None]] = defaultdict(dict)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, with staged changes."""
        changes = self._changes[family]
        return changes[key] if key in changes else self.store.get(family, key)

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        """Stage the change of a key; None deletes it."""
        self._changes[family][key] = value

    def put_all(self, family: Family, values: Mapping[bytes, bytes | None]) -> None:
        """Stage changes of many keys, which costs less than one by one."""
        self._changes[family].update(values)

    def scan(
        self, family: Family, prefix: bytes = b"", *, until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with a prefix and their values, unordered; `until` is exclusive."""
        changes = dict(self._changes[family])
        for key, value in changes.items():
            if value is not None and key.startswith(prefix) and (until is None or key < until):
                yield key, value
        after: bytes | None = None
        while page := self.store.scan(family, prefix, after=after, limit=_PAGE):
            for key, value in page:
                if until is not None and key >= until:
                    return
                if key not in changes:
                    yield key, value
            after = page[-1][0]

    def write(self, positions: Mapping[str, int]) -> None:
        """Write the staged changes, all of them durable, and the positions of topics."""
        self.store.write(self._changes, positions)
        self._changes.clear()


# -- blocks


class SchemaVersionsChanged(HeadwaterError):
    """Records that could not be written may be written now: restart and restore partitions."""

    disposition = Disposition.HALT
    code = "forms_changed"


_NONE: Final = object()


class BlockedPartitions(Waiting):
    """Partitions that are blocked by a record to read, or to write."""

    def __init__(self) -> None:
        super().__init__()
        #: The schema versions in use when the first partition was blocked.
        self._forms: object = _NONE

    def block_writes(self, partition: int, error: NotYetReadable, forms: object) -> None:
        """Record that a partition may not write a record under the given schema versions."""
        # Keep those of the first blocked partition: any later change counts.
        if self._forms is _NONE:
            self._forms = forms
        self.begin(partition, f"partition {partition} waits: {error}")

    def check_versions(self) -> None:
        """Check whether the schema versions are still those that blocked partitions.

        Raises:
            SchemaVersionsChanged: They have changed.
        """
        if self._forms is not _NONE and self._forms is not write_versions():
            raise SchemaVersionsChanged(
                "expected the schema versions that block some partitions, found others"
            )

    @override
    def clear(self) -> None:
        super().clear()
        self._forms = _NONE


# -- ownership

#: Topics with the writer's epoch in every record. Claims of event ids are valid from any writer;
#: hops, effects, traces and dead letters may be duplicated.
FENCED: Final = (*(table.topic for table in ALL_TABLES), WAITING, WIPES, OUTCOMES)

#: The last void records, by topic and key.
Hidden: TypeAlias = Mapping[str, Mapping[bytes, Incoming]]


class PartitionLost(HeadwaterError):
    """Another process owns a partition that this process considered its own."""

    disposition = Disposition.HALT
    code = "partition_lost"


class LogCut(PartitionLost):
    """The log lost acknowledged records: state derived from them is invalid."""

    code = "log_cut"


class Gap(NamedTuple):
    """Offsets of a topic that other processes wrote: `start` inclusive, `end` exclusive."""

    topic: str
    start: int
    end: int


class Fold:
    """Which records of a partition are valid, read in order."""

    def __init__(self, checkpoint: PartitionCheckpoint | None = None) -> None:
        checkpoint = checkpoint or PartitionCheckpoint()
        self._newest: defaultdict[str, NewestEpoch] = defaultdict(
            NewestEpoch, {topic: NewestEpoch(epoch) for topic, epoch in checkpoint.epochs.items()}
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
        """Set where a topic is read from, if not its beginning, and the epoch there."""
        self.positions[topic] = offset
        self._newest[topic].admit(epoch)

    @property
    def epoch(self) -> int:
        """Return the greatest epoch of all topics."""
        return max((newest.epoch for newest in self._newest.values()), default=NO_EPOCH)

    def checkpoint(self, topics: Iterable[str]) -> PartitionCheckpoint | None:
        """Return the position of topics; None while void records hide valid ones."""
        if self.hidden:
            return None
        positions = {topic: self.positions[topic] for topic in topics if topic in self.positions}
        epochs = {topic: newest.epoch for topic, newest in self._newest.items()}
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


_CUT: Final = "usual cause: the broker lost its end, or the topic was created again"


class PartitionLease:
    """Ownership of a partition, from its claims on, under one epoch.

    Attributes:
        partition: The partition.
        epoch: The epoch.
        headers: Headers of all records in fenced topics.
        over: Whether the partition was discarded: nothing of it may be written or kept any more.
        published_unseen: Value of `unseen` in the last claim.
    """

    def __init__(self, partition: int, epoch: int, claims: Mapping[str, int]) -> None:
        self.partition = partition
        self.epoch = epoch
        self.headers: Headers = [(EPOCH, b"%d" % epoch)]
        self._next = {topic: offset + 1 for topic, offset in claims.items()}
        self.over = False
        self.published_unseen: tuple[int, int] | None = None

    def appended(self, topic: str, partition: int, first: int, count: int) -> Gap | None:
        """Record an acknowledged batch; return the gap that other processes wrote before it.

        Raises:
            LogCut: The batch precedes what was acknowledged earlier.
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
        """Record the end of a topic; return the gap that other processes wrote there.

        Raises:
            LogCut: The end precedes what was acknowledged.
        """
        expected = self._next[topic]
        if end < expected:
            raise LogCut(
                f"expected the end of {topic}/{self.partition} at {expected} or later, found it at "
                f"{end}; {_CUT}"
            )
        self._next[topic] = end
        return Gap(topic, expected, end) if end > expected else None

    def checkpoint(self, topics: Iterable[str]) -> PartitionCheckpoint:
        """Return the position of topics in the state, once all appends are acknowledged."""
        positions = {topic: self._next[topic] for topic in topics if topic in self._next}
        unseen = self.published_unseen or (0, NO_EPOCH)
        return PartitionCheckpoint(positions, dict.fromkeys(FENCED, self.epoch), unseen)

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
