"""Batches of decided but not yet appended records of an owner."""

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

#: Numbers of records and effects of a batch at some time.
StagingMark: TypeAlias = tuple[int, int]

#: Bytes of a record that several decisions share. Sharing saves appends; large records do not
#: profit. A single decision may be larger, see `sizes.fitting`.
_JOINED_BYTES_MAX: Final = 1024 * 1024


class Staging:
    """The batch that is being filled. Its records have one epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._batch = Batch()
        #: Number of records in the batches before.
        self.taken = 0
        #: Instances that may have a record to which events can be added.
        self._open: list[LiveInstance] = []
        #: Records to which events were added since the latest mark, in their previous form.
        self._joined: list[tuple[int, HistoryAppended]] = []

    def __bool__(self) -> bool:
        return bool(self._batch)

    @property
    def number(self) -> int:
        """Number of the batch that is being filled."""
        return self._batch.number

    @property
    def has_records(self) -> bool:
        """Whether the batch has records, so that memory is ahead of the log."""
        return bool(self._batch.records)

    def take_batch(self) -> Batch:
        """Return the batch, and start the next one."""
        batch, self._batch = self._batch, Batch(self._batch.number + 1)
        self.taken += len(batch.records)
        for live in self._open:
            live.tail = None
        self._open.clear()
        return batch

    def mark(self) -> StagingMark:
        """Return a mark to which the batch can be rolled back until the next mark."""
        if self._joined:
            self._joined.clear()
        batch = self._batch
        return len(batch.records), len(batch.effects)

    def roll_back(self, mark: StagingMark) -> None:
        """Remove what was staged since the latest mark."""
        batch, (records, effects) = self._batch, mark
        for index, record in reversed(self._joined):
            batch.records[index] = record
        self._joined.clear()
        del batch.records[records:], batch.effects[effects:]

    def effect(self, *effects: Effect) -> None:
        """Add effects that are released when the records so far are durable."""
        self._batch.effects.extend(effects)

    def append(self, live: LiveInstance, record: HistoryAppended) -> None:
        """Add a record of an instance. Events that no command caused share one record."""
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
        """Add a record that is not applied to a run, such as a rejection.

        It does not advance the sequence. For an instance without a run, `names` is its workflow
        and id, or empty if it does not exist.
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
        """Add the answer to a command. Its outcome is in the latest record."""
        records = self._batch.records
        reply = replied(sent, rejection, run, partition, records[-1])
        self.effect(Answer(sent.reply_to, offset, len(records) - 1, reply))
