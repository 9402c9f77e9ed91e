"""Gapless sequences and one result for each step, as a fold of a partition of the history.

Records of superseded owners are ignored by the same fold as in every reader (`runs.claims`). A log
that was compacted has only the beginnings of deleted instances, followed by their deletion: the
last record of an instance is erased first, and its deletion last. So tombstones need no attention.

The state is bounded. What was known of the instances that changed least recently is forgotten;
if such an instance continues, its next record is taken as it is.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from headwater.processors.auditor.findings import Violation
from headwater.processors.runs.claims import Claims
from headwater.schemas.auditor import Law
from headwater.schemas.history import (
    CommandRejected,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
    PartitionClaimed,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    StepCompleted,
    StepFailed,
    TokenCompleted,
)

#: Instances of a partition whose progress is remembered, of some 200 bytes.
_INSTANCES_MAX: Final = 5_000
#: Results of steps in a partition that are remembered, of 9 stored bytes.
_RESULTS_MAX: Final = 50_000
#: Violations of a partition that are remembered.
_BROKEN_MAX: Final = 500
#: Events without a sequence number.
_UNNUMBERED: Final = (
    PostsSent,
    PartitionClaimed,
    CommandRejected,
    InstanceDeleted,
    LeaderEpochNoted,
)
_DIGEST_BYTES: Final = 7


class RunProgress(msgspec.Struct, array_like=True):
    """Progress of an instance.

    Attributes:
        run: Number of its latest run.
        next: Sequence number of the next event.
        results: Digests of the steps with a result, or numbers of tokens; None if they are not
            remembered.
    """

    run: int
    next: int
    results: set[int] | None


class HistoryState(msgspec.Struct):
    """State of `HistoryFold`, which is stored.

    Attributes:
        claims: The claims of the partition.
        is_whole: Whether nothing was forgotten since offset 0, so that an unknown instance begins.
        instances: Progress of instances, the least recently changed first.
        broken: Law and detail of violations, by instance.
        records: Number of records that count.
        ignored: Number of records of superseded owners.
        results: Number of results.
        remembered: Number of results that are remembered.
    """

    claims: Claims = msgspec.field(default_factory=Claims)
    is_whole: bool = True
    instances: dict[str, RunProgress] = {}
    broken: dict[str, tuple[Law, str]] = {}
    records: int = 0
    ignored: int = 0
    results: int = 0
    remembered: int = 0

    def forget_instances(self) -> None:
        """Forget the progress of all instances; the next record of any is taken as it is."""
        self.instances.clear()
        self.remembered = 0
        self.is_whole = False


class HistoryFold:
    """Applies the records of a partition of `workflow-history`, in order.

    Args:
        partition: The partition.
        state: State after the records that were applied before.
    """

    def __init__(self, partition: int, state: HistoryState) -> None:
        self._partition = partition
        self.state = state

    def apply(self, offset: int, record: HistoryAppended) -> None:
        """Apply a record."""
        state, first = self.state, record.events[0]
        if not state.is_whole and state.claims.epoch < record.epoch < offset:
            # Its claim was not read; what seemed to count before may be of an earlier owner.
            state.claims.epoch = record.epoch
            state.forget_instances()
        if not state.claims.admit(offset, record):
            state.ignored += not isinstance(first, PartitionClaimed)
            return
        state.records += 1
        if not record.instance_id:
            return
        name = f"{record.workflow}/{record.instance_id}"
        if isinstance(first, InstanceDeleted):
            self._drop(name)
            state.broken.pop(name, None)
            return
        numbered = sum(not isinstance(event, _UNNUMBERED) for event in record.events)
        if numbered:
            self._continue(name, record, offset, numbered)

    def _continue(self, name: str, record: HistoryAppended, offset: int, numbered: int) -> None:
        state, started = self.state, isinstance(record.events[0], RunStarted)
        progress = state.instances.pop(name, None)
        expected = _expected(progress, started=started, is_whole=state.is_whole)
        found = record.run_number, record.sequence
        if expected is not None and found != expected:
            self._break(
                name,
                Law.SEQUENCE_BROKEN,
                f"expected run {expected[0]}, sequence {expected[1]} next, found run {found[0]}, "
                f"sequence {found[1]} at {self._position(offset)}",
            )
        if progress is None or started or progress.run != record.run_number:
            self._forget_results(progress)
            # Of a run that was not read from its beginning, results are not known.
            progress = RunProgress(record.run_number, 0, set() if started else None)
        progress.next = record.sequence + numbered
        state.instances[name] = progress
        for event in record.events:
            self._take_result(name, progress, event, offset)
        if isinstance(record.events[-1], RunCompleted | RunErrored | RunTerminated):
            self._forget_results(progress)
        self._shrink()

    def _take_result(self, name: str, progress: RunProgress, event: object, offset: int) -> None:
        if isinstance(event, RunStarted):
            for key in event.kept or ():
                self._remember(progress, _digest(key))
            return
        if isinstance(event, StepCompleted) or (
            isinstance(event, StepFailed) and event.retry_at_ms is None
        ):
            step, what = _digest(event.key), f"step {event.key}"
        elif isinstance(event, TokenCompleted):
            step, what = event.token, f"token {event.token}"
        else:
            return
        self.state.results += 1
        if progress.results is not None and step in progress.results:
            self._break(
                name,
                Law.RESULT_REPEATED,
                f"expected one result of {what} in run {progress.run}, found a second one at "
                f"{self._position(offset)}",
            )
        self._remember(progress, step)

    def _remember(self, progress: RunProgress, step: int) -> None:
        if progress.results is not None and step not in progress.results:
            progress.results.add(step)
            self.state.remembered += 1

    def _forget_results(self, progress: RunProgress | None) -> None:
        if progress is not None and progress.results is not None:
            self.state.remembered -= len(progress.results)
            progress.results = None

    def _drop(self, name: str) -> None:
        self._forget_results(self.state.instances.pop(name, None))

    def _shrink(self) -> None:
        state = self.state
        if len(state.instances) > _INSTANCES_MAX:
            self._drop(next(iter(state.instances)))
            state.is_whole = False
        if state.remembered > _RESULTS_MAX:
            for progress in state.instances.values():
                self._forget_results(progress)
                if state.remembered <= _RESULTS_MAX // 2:
                    return

    def _break(self, name: str, law: Law, detail: str) -> None:
        if len(self.state.broken) < _BROKEN_MAX:
            self.state.broken.setdefault(name, (law, detail))

    def _position(self, offset: int) -> str:
        return f"workflow-history/{self._partition}@{offset}"

    def violations(self) -> Iterator[Violation]:
        """Yield the instances whose history violates a law."""
        for name, (law, detail) in self.state.broken.items():
            yield Violation(law, name, detail)


def _expected(
    progress: RunProgress | None, *, started: bool, is_whole: bool
) -> tuple[int, int] | None:
    """Return the expected run and sequence of a record; None if they are not known."""
    if progress is None:
        return (0, 0) if is_whole else None
    return (progress.run + 1, 0) if started else (progress.run, progress.next)


def _digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest())
