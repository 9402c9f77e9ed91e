"""What an owner has decided and not yet given out."""

from typing import Final, get_args

import msgspec

from processors.replay.state import CodeRun
from processors.runs.decisions import Rejection
from schemas.history import NO_CAUSE, CommandSent, HistoryAppended, LogEvent
from streams.effects import Answer, Batch, Effect, refused, replied
from streams.instances import Hand

#: Characters of authors' values in a record that more events may join. A character takes four bytes
#: at most, and a decision adds a few values of 1 MiB: together they fit into a record of Kafka's.
_JOINED_CHARS_MAX: Final = 1024 * 1024
#: The fields of events that hold authors' values, which are what makes a record large.
_VALUES: Final = {
    kind: [name for name in ("result", "payload", "data", "state") if hasattr(kind, name)]
    for kind in get_args(LogEvent)
}


def _chars(events: tuple[LogEvent, ...]) -> int:
    """The characters of authors' values."""
    return sum(len(getattr(event, name) or "") for event in events for name in _VALUES[type(event)])


class Staging:
    """The batch in the making."""

    def __init__(self) -> None:
        self._batch = Batch()
        #: Records of the batches that were given out.
        self.taken = 0
        #: Instances that may have a record which more events can join.
        self._open: list[Hand] = []

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
        for hand in self._open:
            hand.tail = None
        self._open.clear()
        return batch

    def effect(self, *effects: Effect) -> None:
        """Adds what follows once the records so far are durable."""
        self._batch.effects.extend(effects)

    def append(self, hand: Hand, record: HistoryAppended) -> None:
        """Adds a record of an instance; what it did without a command shares one record."""
        records = self._batch.records
        hand.batch, hand.since_ms = self._batch.number, record.at_ms
        tail = None if hand.tail is None else records[hand.tail]
        chars = _chars(record.events)
        small = hand.tail_chars + chars <= _JOINED_CHARS_MAX
        if tail is not None and small and record.cause == NO_CAUSE and record.at_ms == tail.at_ms:
            hand.tail_chars += chars
            events = tail.events + record.events
            records[hand.tail or 0] = msgspec.structs.replace(tail, events=events)
            return
        if hand.tail is None:
            self._open.append(hand)
        hand.tail = len(records) if record.cause == NO_CAUSE else None
        hand.tail_chars = chars
        records.append(record)

    def refuse(
        self,
        epoch: int,
        offset: int,
        sent: CommandSent,
        rejection: Rejection,
        run: CodeRun | None,
        now_ms: int,
    ) -> None:
        """Adds the refusal of a command."""
        self._batch.records.append(refused(epoch, offset, sent, rejection, run, now_ms))

    def answer(
        self,
        partition: int,
        offset: int,
        sent: CommandSent,
        rejection: Rejection,
        run: CodeRun | None,
    ) -> None:
        """Adds the answer to a command; the latest record has its outcome."""
        reply = replied(sent, rejection, run, partition)
        self.effect(Answer(sent.reply_to, offset, len(self._batch.records) - 1, reply))
