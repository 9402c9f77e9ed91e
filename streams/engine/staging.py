"""What an owner has decided and not yet given out."""

from typing import Final, TypeAlias

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.sizes import bytes_max
from headwater.processors.runs.state import Run
from headwater.schemas.history import (
    NO_CAUSE,
    CommandRejected,
    CommandSent,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
)
from headwater.streams.engine.effects import Answer, Batch, Effect, replied
from headwater.streams.engine.live_instances import LiveInstance

#: How many records and effects a batch had at some time.
StagingMark: TypeAlias = tuple[int, int]

#: Bytes of a record that several decisions share: it saves appends, which large ones cost anyway.
#: One decision may have more, `sizes.fitting` says how many.
_JOINED_BYTES_MAX: Final = 1024 * 1024


class Staging:
    """The batch in the making; its records are of one epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._batch = Batch()
        #: Records of the batches that were given out.
        self.taken = 0
        #: Instances that may have a record which more events can join.
        self._open: list[LiveInstance] = []
        #: Records to which events were joined since the latest mark, as they were before.
        self._joined: list[tuple[int, HistoryAppended]] = []

    def __bool__(self) -> bool:
        return bool(self._batch)

    @property
    def number(self) -> int:
        """The number of the batch in the making."""
        return self._batch.number

    @property
    def has_records(self) -> bool:
        """Whether memory is ahead of what was given out."""
        return bool(self._batch.records)

    def take(self) -> Batch:
        """Gives the batch, and begins the next."""
        batch, self._batch = self._batch, Batch(self._batch.number + 1)
        self.taken += len(batch.records)
        for live in self._open:
            live.tail = None
        self._open.clear()
        return batch

    def mark(self) -> StagingMark:
        """Return a mark to which the batch can be rolled back, until the next mark."""
        if self._joined:
            self._joined.clear()
        batch = self._batch
        return len(batch.records), len(batch.effects)

    def roll_back(self, mark: StagingMark) -> None:
        """Take out what was staged since the latest mark."""
        batch, (records, effects) = self._batch, mark
        for place, record in reversed(self._joined):
            batch.records[place] = record
        self._joined.clear()
        del batch.records[records:], batch.effects[effects:]

    def effect(self, *effects: Effect) -> None:
        """Adds what follows once the records so far are durable."""
        self._batch.effects.extend(effects)

    def append(self, live: LiveInstance, record: HistoryAppended) -> None:
        """Adds a record of an instance; what it did without a command shares one record."""
        records = self._batch.records
        live.batch, live.since_ms = self._batch.number, record.at_ms
        tail = None if live.tail is None else records[live.tail]
        size = bytes_max(record.events)
        small = live.tail_bytes + size <= _JOINED_BYTES_MAX
        if tail is not None and small and record.cause == NO_CAUSE and record.at_ms == tail.at_ms:
            live.tail_bytes += size
            events = tail.events + record.events
            self._joined.append((live.tail or 0, tail))
            records[live.tail or 0] = msgspec.structs.replace(tail, events=events)
            return
        if live.tail is None:
            self._open.append(live)
        live.tail = len(records) if record.cause == NO_CAUSE else None
        live.tail_bytes = size
        records.append(record)

    def note(
        self,
        cause: int,
        run: Run | None,
        now_ms: int,
        event: CommandRejected | InstanceDeleted | LeaderEpochNoted,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """Add a record that no run applies, such as a refusal.

        It takes no sequence. Of an instance without a run the log has the workflow and the id in
        `names`, which are empty for one that is not there.
        """
        record = HistoryAppended(
            workflow=run.workflow if run else names[0],
            instance_id=run.instance_id if run else names[1],
            run_number=run.run_number if run else 0,
            sequence=run.sequence if run else 0,
            epoch=self._epoch,
            cause=cause,
            at_ms=now_ms,
            events=(event,),
        )
        self._batch.records.append(record)

    def answer(
        self,
        partition: int,
        offset: int,
        sent: CommandSent,
        rejection: Rejection | None,
        run: Run | None,
    ) -> None:
        """Adds the answer to a command; the latest record has its outcome."""
        records = self._batch.records
        reply = replied(sent, rejection, run, partition, records[-1])
        self.effect(Answer(sent.reply_to, offset, len(records) - 1, reply))
