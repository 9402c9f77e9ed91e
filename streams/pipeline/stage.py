"""What an agent runs: a stage takes a batch and says what to append.

A stage does no I/O but for its store on disk, so it is tested as plain code; the agent gives it
batches, appends what it returns, and only then writes the store and lets the batch be committed.
Its memory of a partition comes from compacted topics, record by record, before the first batch. An
error in `step` ends the worker: memory that
may be ahead of the log is thrown away with the process and restored from what is durable. What may
not be written yet, because members of an older release could not read it, stops one partition until
all read it; then the worker starts again in the same way.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from headwater.schemas.records import UserForgotten
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.pipeline.staged import Mark, Store


class Stage(Protocol):
    """What is done with the batches of some topics, by partition."""

    #: Names the stage in logs and dead letters.
    name: ClassVar[str]
    #: The topics it consumes, partitioned alike: it has one memory for a partition of all of them.
    sources: ClassVar[tuple[str, ...]]
    #: The topics, partitioned like the sources, that hold its memory.
    memory: ClassVar[tuple[str, ...]]

    def opened(self, partition: int, store: Store) -> Mark:
        """Takes the store that its memory of a partition lies in; says how far that is."""

    def restored(self, record: Incoming) -> None:
        """Takes in one record of its memory."""

    def write(self, partition: int, mark: Mark) -> None:
        """Writes what it knows of a partition to the store: all of it is in the topics by now."""

    def clear(self, partition: int) -> None:
        """Empties the store of a partition, which has what the log has lost."""

    def forget(self, partition: int) -> None:
        """Closes the store of a partition that another worker may own from now on."""

    def owned(self, partition: int, headers: Headers) -> None:
        """Says with which headers the records of a partition are written from now on."""

    def again(self, partition: int, topic: str, keys: Iterable[bytes]) -> list[Outgoing]:
        """The records that say what its memory has of some keys of a topic."""

    def step(
        self, topic: str, partition: int, records: Sequence[Incoming], now_ms: int
    ) -> list[Outgoing]:
        """Processes a batch: everything it returns is durable before the batch is committed."""

    def wanted(self, partition: int) -> list[UserForgotten]:
        """The wipes whose records are still to be looked for in the topics of a partition."""

    def found(self, partition: int, wipe: UserForgotten) -> list[Outgoing]:
        """The records that say what of a wipe was found, or that all of it is done."""

    def purge(self, partition: int, wipe: UserForgotten) -> None:
        """Has the store of a partition give up the bytes of what was wiped."""

    def tick(self, partition: int, now_ms: int) -> list[Outgoing]:
        """Does what is due without a record: everything it returns is to be appended."""


def phases(emitted: Sequence[Outgoing]) -> tuple[list[Outgoing], list[Outgoing]]:
    """Splits what a stage emitted into what is appended first and what only then.

    An append to several partitions can break off in the middle. A tombstone forgets something that
    another record of the same batch carries on, such as a wait whose delivery is released: it must
    not become durable before that.
    """
    first = [record for record in emitted if record.value is not None]
    return first, [record for record in emitted if record.value is None]
