"""Check whether a workflow's code requests what is recorded of a run, without side effects.

The code is replayed against the recorded entries. No step is called: what the code requests beyond
the recorded entries is only noted. The first difference is reported.

An entry differs if the code does not reach it, although it has seen all recorded results; if it
requests an entry of another kind; if a completed step has lost its rollback handler; or if the
code ends in another way than recorded. Entries beyond the recorded ones are no difference as long
as the code reaches all recorded ones: the run may have been about to request them.
"""

import json
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from headwater.processors.code.errors import HistoryDivergedError
from headwater.processors.code.host_messages import (
    Activate,
    Advance,
    Advanced,
    BeginRollback,
    CodeCommand,
    Open,
    OpenCompleted,
    Raise,
    Return,
)
from headwater.processors.code.replaying import CodeEnd, RecordedRun
from headwater.processors.code.state import Entry
from headwater.schemas.history import Failure
from headwater.schemas.replay_answers import ReplayPoint
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.host_port import Call, Handler
from headwater.streams.replay.workflow import Workflow, read_params

#: Folder of the code that runs authors' code, and the modules that its frames end at.
_OURS: Final = str(Path(__file__).parents[2])
_LOOPS: Final = (f"{_OURS}/streams/replay/loop.py", f"{_OURS}/streams/replay/execution.py")
#: Commits of loops that are acknowledged while recorded entries are still to be reached.
_COMMITS_MAX: Final = 10_000


class Difference(NamedTuple):
    """The first difference between what is recorded of a run and what its code requests."""

    reason: str
    recorded: ReplayPoint | None
    requested: ReplayPoint | None


def location_of(frame: FrameType | None) -> str | None:
    """Return the file and line of the author's code that called a frame, if it is known."""
    while frame is not None and frame.f_code.co_filename not in _LOOPS:
        if not frame.f_code.co_filename.startswith(_OURS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def location_of_error(error: BaseException | None) -> str | None:
    """Return the innermost line of the author's code in the traceback of an error."""
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if not frame.filename.startswith((_OURS, "<"))
    ]
    return lines[-1] if lines else None


class ReplayHost:
    """A host that starts nothing. Implements `HostPort`.

    Attributes:
        first_new: The first request beyond the recorded entries.
        end: The end of the code, if it has ended.
        calls: Step attempts that would be started now.
        commits: Commits of loops that are not acknowledged yet.
        handlers: Rollback handlers that would be called, by key.
    """

    def __init__(self, known: Collection[str], now_ms: int) -> None:
        self._known = frozenset(known)
        self._now_ms = now_ms
        self.first_new: ReplayPoint | None = None
        self.end: CodeEnd | None = None
        self.calls: list[Call] = []
        self.commits: list[Advance] = []
        self.handlers: dict[str, Handler] = {}

    def send(self, command: CodeCommand) -> None:
        """Note a request that shows what the code does."""
        match command:
            case Open(key=key, kind=kind) | OpenCompleted(key=key, kind=kind):
                self._note(key, kind)
            case Advance():
                self.commits.append(command)
            case Return(output):
                self.end = self.end or CodeEnd(-1, output=output)
            case Raise(failure) | BeginRollback(failure):
                self.end = self.end or CodeEnd(-1, failure=failure)
            case _:
                pass

    def _note(self, key: str, kind: EntryKind) -> None:
        if self.first_new is None and key not in self._known:
            location = location_of(sys._getframe(2))  # noqa: SLF001, the only way to the caller
            self.first_new = ReplayPoint(kind=kind.value, name=key, location=location)

    def call(self, call: Call) -> None:
        """Note an attempt of a step."""
        self.calls.append(call)
        self._note(call.reached.key, EntryKind.DO)

    def call_handler(self, key: str, attempt: int, handler: Handler, output: Any) -> None:  # noqa: ANN401
        """Note a rollback handler."""
        self.handlers[key] = handler

    def cancel(self, key: str | None = None) -> None:
        """Do nothing: no attempt is running."""

    def yield_back(self) -> bool:
        """Return False: no attempt was held back."""
        return False

    def is_busy(self) -> bool:
        """Return False: no attempt is running."""
        return False

    def now_ms(self) -> int:
        """Return the time of the replay in Unix milliseconds."""
        return self._now_ms


class Replay:
    """A replay of a run's code.

    Args:
        begin: The recorded part of the run. Its entries are changed.
        workflow: The code.
        now_ms: Time of the replay, Unix milliseconds.

    Attributes:
        host: What the code requested.
        error: The exception that the code raised, if it did.
    """

    def __init__(self, begin: Activate, workflow: Workflow, now_ms: int) -> None:
        #: Recorded kinds and statuses, which the replay changes.
        self.recorded = {key: (entry.kind, entry.status) for key, entry in begin.entries.items()}
        self._rollbacks = [key for key, entry in begin.entries.items() if _has_rollback(entry)]
        self.host = ReplayHost(begin.entries, now_ms)
        self.error: BaseException | None = None
        self.begin = begin
        self.activation: Activation | None = None
        try:
            params = read_params(workflow, begin.params)
            self.activation = Activation(begin, workflow, params, self.host)
            self.activation.proceed()
            self._commit()
        except Exception as error:  # noqa: BLE001, any error would fail the run
            self.error = error
            self.host.end = CodeEnd(-1, failure=failure_of(error))
        if self.activation is not None:
            self.error = self.error or self.activation.error
        if self.error is not None and self.host.end is None:
            # It fails once what it has requested is recorded.
            self.host.end = CodeEnd(-1, failure=failure_of(self.error))

    def _commit(self) -> None:
        """Acknowledge commits of loops until all recorded entries are reached."""
        activation, commits = self.activation, self.host.commits
        assert activation is not None  # noqa: S101, the caller created it
        for _ in range(_COMMITS_MAX):
            if not commits or not activation.not_reached():
                return
            commit = commits.pop(0)
            trimmed = commit.trim_before
            activation.advanced(Advanced(0, commit.key, self.begin.seen, trimmed))

    def missed(self) -> list[str]:
        """Return the recorded entries that the code should have reached but has not."""
        return [] if self.activation is None else self.activation.not_reached()

    def lost_handlers(self) -> list[str]:
        """Return the completed steps that are recorded with a rollback handler and have none."""
        if self.activation is None:
            return []
        return [key for key in self._rollbacks if self.activation.has_lost_handler(key)]

    def close(self) -> None:
        """End the replay. The code never runs again, not even to clean up."""
        if self.activation is not None:
            self.activation.close()


def _has_rollback(entry: Entry) -> bool:
    return entry.rollback and not entry.rolled_back and entry.status is EntryStatus.COMPLETED


# -- differences

_NOTHING: Final = ReplayPoint(kind="nothing")


def difference(
    recorded: RecordedRun, workflow: Workflow, now_ms: int, *, exact: bool = True
) -> Difference | None:
    """Return the first difference between a recorded run and the code; None if it fits.

    Args:
        recorded: The run.
        workflow: The code.
        now_ms: Time of the replay, Unix milliseconds.
        exact: Whether outputs are compared, too. Those of redacted histories may differ.
    """
    replay = Replay(recorded.begin, workflow, now_ms)
    try:
        return difference_of(replay, recorded, exact=exact)
    finally:
        replay.close()


def difference_of(
    replay: Replay, recorded: RecordedRun, *, exact: bool = True
) -> Difference | None:
    """Return the first difference of a replay, or None."""
    if recorded.begin.rollback is not None:
        # The code has failed already. It only runs to collect its handlers.
        return _lost_handler(replay, recorded)
    error = replay.error
    if isinstance(error, HistoryDivergedError):
        location = location_of_error(error)
        return Difference(
            str(error),
            _recorded(recorded, error.key, error.recorded),
            ReplayPoint(kind=error.requested, name=error.key, location=location),
        )
    missed = _first(replay.missed(), recorded)
    if missed is not None:
        kind = replay.recorded[missed][0]
        return Difference(
            f"the code does not reach {missed}, which is recorded",
            _recorded(recorded, missed, kind.value),
            _requested(replay),
        )
    return _other_end(replay, recorded, exact=exact) or _lost_handler(replay, recorded)


def _first(keys: Collection[str], recorded: RecordedRun) -> str | None:
    """Return the entry that was recorded first."""
    sequences = recorded.sequences
    return min(keys, key=lambda key: sequences.get(key, -1), default=None)


def _recorded(recorded: RecordedRun, key: str, kind: str) -> ReplayPoint:
    return ReplayPoint(kind=kind, name=key, sequence=recorded.sequences.get(key))


def _requested(replay: Replay) -> ReplayPoint:
    """Return what the code requests instead of an entry that it does not reach."""
    return replay.host.first_new or _end_point(replay, replay.host.end) or _NOTHING


def _end_point(replay: Replay, end: CodeEnd | None) -> ReplayPoint | None:
    if end is None:
        return None
    if end.failure is None:
        return ReplayPoint(kind="complete")
    location = location_of_error(replay.error)
    return ReplayPoint(kind="error", name=_error_text(end.failure), location=location)


def _error_text(failure: Failure) -> str:
    return f"{failure.name}: {failure.message}"


def _other_end(replay: Replay, recorded: RecordedRun, *, exact: bool) -> Difference | None:
    """Return how the end of the code differs from the recorded one, or None."""
    end, requested = recorded.end, replay.host.end
    if end is None:
        if requested is None or requested.failure is None or recorded.begin.cancelled_at:
            return None
        return Difference(
            f"the code fails: {_error_text(requested.failure)}",
            None,
            _end_point(replay, requested),
        )
    if requested is not None and _is_same_end(end, requested, exact=exact):
        return None
    kind = "complete" if end.failure is None else "error"
    name = "" if end.failure is None else _error_text(end.failure)
    if requested is None:
        reason = "the code continues where the run has ended"
    elif requested.failure is not None:
        reason = f"the code fails: {_error_text(requested.failure)}"
    else:
        reason = "the code returns another output, or returns where the run has failed"
    point = ReplayPoint(kind=kind, name=name, sequence=end.sequence)
    return Difference(reason, point, _requested(replay))


def _is_same_end(end: CodeEnd, requested: CodeEnd, *, exact: bool) -> bool:
    if end.failure is not None and requested.failure is not None:
        return end.failure.name == requested.failure.name
    if end.output is None or requested.output is None:
        return False
    return (
        not exact
        or end.output == requested.output
        or json.loads(end.output) == json.loads(requested.output)
    )


def _lost_handler(replay: Replay, recorded: RecordedRun) -> Difference | None:
    key = _first(replay.lost_handlers(), recorded)
    if key is None:
        return None
    return Difference(
        f"the step {key} is recorded with a rollback handler, and the code has none",
        _recorded(recorded, key, "do with rollback"),
        ReplayPoint(kind="do without rollback", name=key),
    )
