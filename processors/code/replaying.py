"""The recorded part of a code run, as its code is replayed against it.

A run that has ended is replayed up to where its code ended, so that the end that the code requests
can be compared with the recorded one.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.processors.code import appliers
from headwater.processors.code.host_messages import Activate, activate
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.schemas.failures import (
    HOST_LOST,
    INTERNAL,
    RECORD_TOO_LARGE,
    RUN_TOO_LARGE,
    SLOT_QUEUE_FULL,
    WORKFLOW_NOT_FOUND,
)
from headwater.schemas.history import (
    CommandRejected,
    EntriesCancelled,
    Failure,
    HistoryAppended,
    InstanceDeleted,
    Json,
    LeaderEpochNoted,
    LogEvent,
    PartitionClaimed,
    PostsSent,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    StepFailed,
)

if TYPE_CHECKING:
    from headwater.processors.code.state import CodeRun

#: Failures that a run's owner assigns, which no replay of the code can reproduce.
_OF_OWNERS: Final = frozenset(
    {HOST_LOST, INTERNAL, RECORD_TOO_LARGE, RUN_TOO_LARGE, SLOT_QUEUE_FULL, WORKFLOW_NOT_FOUND}
)
_ENDS: Final = (RunCompleted, RunErrored, RunTerminated)
_OF_NO_RUN: Final = (CommandRejected, InstanceDeleted, LeaderEpochNoted, PartitionClaimed)


class CodeEnd(NamedTuple):
    """How the code of a run ended: with an output, or with a failure.

    Attributes:
        sequence: Number of the event.
    """

    sequence: int
    output: Json | None = None
    failure: Failure | None = None


class RecordedRun(NamedTuple):
    """What is recorded of a run.

    Attributes:
        begin: Activates the run, as far as it is replayed.
        sequences: Number of the first event of every entry, by key.
        end: How its code ended; None if it has not, or was ended from outside.
    """

    begin: Activate
    sequences: Mapping[str, int]
    end: CodeEnd | None = None


class _Fold:
    """Folds the records of an instance up to the end of the code of one of its runs."""

    def __init__(self, number: int, before: int | None, *, whole: bool) -> None:
        self.run: CodeRun | None = None
        self.sequences: dict[str, int] = {}
        self.end: CodeEnd | None = None
        self._number = number
        self._before = before
        self._whole = whole
        self._over = False

    def apply(self, record: HistoryAppended, event: LogEvent, sequence: int) -> None:
        """Apply an event, or only note it if it follows the part that is replayed."""
        if isinstance(event, RunStarted):
            self.run = appliers.begin(self.run, record)
        elif self.run is not None:
            if record.run_number == self._number and not self._whole:
                self._over = self._over or _ends_code(event) or sequence == self._before
                self.end = self.end or _end_of(event, sequence)
            if not self._over:
                self._note(record.run_number, event, sequence)
                appliers.apply(self.run, event, record.at_ms)

    def _note(self, number: int, event: LogEvent, sequence: int) -> None:
        key = getattr(event, "key", None)
        if number == self._number and isinstance(key, str):
            self.sequences.setdefault(key, sequence)


def recorded_run(
    records: Iterable[HistoryAppended], number: int, before: int | None = None
) -> RecordedRun | None:
    """Fold the records of an instance to what is recorded of one of its runs.

    Args:
        records: Records of the instance that count, in order, from its first one, or from that of
            the first of the runs that this one retries.
        number: Number of the run.
        before: Number of the first event to leave out; None for none. A run whose code has ended
            is folded up to that, except while it is rolled back.

    Returns:
        None if the records do not have the run.
    """
    known = [record for record in records if record.run_number <= number]
    fold = _Fold(number, before, whole=before is None and _rolls_back(known, number))
    for record, event, sequence in _numbered(known):
        fold.apply(record, event, sequence)
    if fold.run is None or fold.run.run_number != number:
        return None
    return RecordedRun(activate(0, fold.run, ENTRIES_MAX), fold.sequences, fold.end)


def failed_step(records: Iterable[HistoryAppended], number: int) -> tuple[str, int] | None:
    """Return the step whose last attempt failed latest in a run, and the number of that event."""
    failed = [
        (event.key, sequence)
        for record, event, sequence in _numbered(records)
        if record.run_number == number
        and isinstance(event, StepFailed)
        and event.retry_at_ms is None
    ]
    return failed[-1] if failed else None


def _numbered(
    records: Iterable[HistoryAppended],
) -> Iterable[tuple[HistoryAppended, LogEvent, int]]:
    """Yield the events of runs with their records and numbers."""
    for record in records:
        sequence = record.sequence
        for event in record.events:
            if not isinstance(event, _OF_NO_RUN):
                yield record, event, sequence
                sequence += not isinstance(event, PostsSent)


def _rolls_back(records: Iterable[HistoryAppended], number: int) -> bool:
    """Return whether a run is being rolled back, and has not ended."""
    events = [event for record, event, _ in _numbered(records) if record.run_number == number]
    return any(isinstance(event, RollbackStarted) for event in events) and not any(
        isinstance(event, _ENDS) for event in events
    )


def _ends_code(event: LogEvent) -> bool:
    if isinstance(event, EntriesCancelled):
        return event.ended
    return isinstance(event, (RollbackStarted, *_ENDS))


def _end_of(event: LogEvent, sequence: int) -> CodeEnd | None:
    match event:
        case RunCompleted(output):
            return CodeEnd(sequence, output=output)
        case RunErrored(failure) if failure.name not in _OF_OWNERS:
            return CodeEnd(sequence, failure=failure)
        case RollbackStarted(failure, cut_off=False):
            return CodeEnd(sequence, failure=failure)
        case _:
            return None
