"""One run in the hands of a host: its code, run again against what is recorded.

Theory of operation: the author's function runs on a loop of its own (`loop.py`). Where it awaits an
entry that has its result already, the result is not given at once: when nothing else moves, the
recorded result with the lowest sequence among those awaited is given, and so on. So the code sees
the results in the order of the log, now as before the crash, and gather, races and branches take
the same turns. When no recorded result is awaited any more, the run is live.

Joins, races and loops that have their results run their branches again all the same, only for what
they visit (`retelling.py`). Rolling back (`rollback.py`) is a replay too.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.replay.commands import (
    BeginRollback,
    CodeCommand,
    Log,
    Raise,
    Reached,
    RetryPolicy,
    Return,
    Suspend,
)
from headwater.processors.replay.errors import (
    CODE_CHANGED,
    HistoryDivergedError,
    UnserialisableError,
)
from headwater.processors.replay.state import OPEN, UNRESOLVED, Entry, EntryStatus
from headwater.processors.replay.trimming import trim
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.schemas.history import EntryKind, Failure
from headwater.streams.authoring.values import encode
from headwater.streams.engine.host_protocol import Activate, Started
from headwater.streams.replay.branches import end
from headwater.streams.replay.giving_up import come_to_end
from headwater.streams.replay.host_port import Call, Outside, failure_of
from headwater.streams.replay.journal import Record
from headwater.streams.replay.loop import WorkflowLoop
from headwater.streams.replay.rollback import Rollback, to_roll_back
from headwater.streams.replay.workflow import Workflow, WorkflowEvent

if TYPE_CHECKING:
    from headwater.streams.replay.scope import Scope

#: Rollback handlers are tried again as the owner decides.
_NEVER: Final = RetryPolicy(0, 0, "constant")


class Activation:
    """A run in hand."""

    def __init__(
        self,
        begin: Activate,
        workflow: Workflow,
        payload: Any,  # noqa: ANN401, what the author declared
        outside: Outside,
        step_of: Callable[["Activation"], Any],
    ) -> None:
        self.number = begin.activation
        self.begin = begin
        self.workflow = workflow
        self._payload = payload
        self.outside = outside
        self._step_of = step_of
        self.seen = begin.seen
        self.closed = False
        self.calls: dict[str, Call] = {}
        #: Attempts after the first that are run when all that is recorded has been given.
        self._deferred: list[Call] = []
        self._rollback = Rollback(self, begin.rollback) if begin.rollback else None
        #: What the owner will answer soon: while something is owed, the run is not suspended.
        self.owed: set[str] = set()
        self._asked_to_suspend = -1
        self._restart()

    def _restart(self) -> None:
        # What is not implemented raises NotImplementedError: it needs the world outside.
        self.loop = WorkflowLoop()  # type: ignore[abstract]
        self.record = Record(self.begin.entries, self.begin.entries_max)
        # What was cancelled is never given. A loop that is open has the sequence of its commit.
        resolved = [
            each.sequence
            for each in self.entries.values()
            if each.status is not EntryStatus.CANCELLED
            and each.sequence != UNRESOLVED
            and each.sequence <= self.begin.logged_at
        ]
        # As far as the code had come when it logged last, lines are written again; the latest
        # result until then ends that, or else the first rest. Then come those logged behind it.
        self._replay_until = max(resolved, default=0)
        self._replaying = bool(resolved)
        self._lines_again = self.begin.lines
        self.unawaited: dict[int, tuple[Scope, str, Coroutine[Any, Any, Any]]] = {}
        self.handlers: dict[str, Callable[[Any], Any]] = {}
        self.commits: dict[str, asyncio.Future[None]] = {}
        self._ticket = 0
        self._pending: dict[str, asyncio.Future[Entry]] = {}
        self._recorded: list[tuple[int, int, asyncio.Future[Entry], Entry]] = []
        self._outcome: tuple[Any, BaseException | None] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
        """What is recorded of the run."""
        return self.record.entries

    @property
    def ordinal(self) -> int:
        """The place of the next new entry among all."""
        return self.record.ordinal

    @property
    def rolling_back(self) -> bool:
        """Whether the code only runs to find rollback handlers."""
        return self._rollback is not None

    # -- the life of an activation, driven by the host

    def start(self) -> None:
        """Runs the code from its beginning to where it rests."""
        begin = self.begin
        event = WorkflowEvent(
            payload=self._payload,
            timestamp=datetime.fromtimestamp(begin.started_at_ms / 1_000, UTC),
            instance_id=begin.instance_id,
            workflow_name=begin.workflow,
            run_number=begin.run_number,
        )
        self._root = self._step_of(self)
        self.loop.create_task(self._main(event))
        self.pump()

    async def _main(self, event: WorkflowEvent[Any]) -> None:
        try:
            self._outcome = (await self.workflow(event, self._root), None)
        except BaseException as error:  # noqa: BLE001, whatever an author raises ends the run only
            if not self.closed:
                self._outcome = (None, error)

    def pump(self) -> None:
        """Runs the code until it rests, then says what that means."""
        if self.closed:
            return
        recorded = self._recorded
        try:
            if self._outcome is None:
                self.loop.run_ready()
            while recorded and self._outcome is None:
                _, _, future, entry = heapq.heappop(recorded)
                self.come_by(entry)
                if not future.done():
                    future.set_result(entry)
                    self.loop.run_ready()
        except Exception as error:  # noqa: BLE001, the loop refuses: it is the author's code that fails
            self._outcome = (None, error)
        self._replaying = False
        self._lines_again = 0
        self._run_deferred()
        if self._rollback is not None:
            self._rollback.rests()
        elif self._outcome is not None:
            self._finish(*self._outcome)
        else:
            self._rest()

    def _run_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            if self.calls.get(call.reached.key) is call and self._outcome is None:
                self.run_call(call)

    def close(self) -> None:
        """Lets the run go: its code never runs again, not even to clean up, and says no more."""
        self.closed = True
        self.outside.drop(self, None)
        for _, _, coroutine in self.unawaited.values():
            coroutine.close()
        self.unawaited.clear()
        for task in tuple(self.loop.tasks):
            end(task)
        self.loop.forget()
        self._pending.clear()
        self._recorded.clear()

    def _rest(self) -> None:
        """Nothing moves in the code: unless an answer or a step is under way, it is suspended."""
        if self.owed or self.outside.running(self) or self._asked_to_suspend == self.seen:
            return
        self._asked_to_suspend = self.seen
        self.outside.say(self, Suspend(self.seen))

    def ask(self) -> None:
        """Says again whether anything moves."""
        self._asked_to_suspend = -1
        if self.closed or self.rolling_back:
            return
        if self._outcome is None:
            self._rest()
        else:
            self._finish(*self._outcome)

    # -- what the owner tells

    def resolved(self, key: str, entry: Entry) -> None:
        """An entry has its result."""
        self.entries[key] = entry
        self.seen = max(self.seen, entry.sequence)
        call = self.calls.pop(key, None)
        if call is not None and call.started:
            # It is another attempt's: one that was under way in a host that is gone.
            self.outside.drop(self, key)
        self.owed.discard(key)
        future = self._pending.pop(key, None)
        if future is not None and not future.done():
            future.set_result(entry)

    def advanced(self, key: str, sequence: int) -> None:
        """A loop's commit is durable."""
        self.seen = max(self.seen, sequence)
        self.owed.discard(key)
        future = self.commits.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def dropped(self, key: str) -> None:
        """An attempt has failed, whatever its code may still say."""
        self.owed.discard(key)
        call = self.calls.get(key)
        if call is not None:
            call.started = call.returned = False
        self.ask()

    def again(self, attempts: dict[str, int], sequence: int) -> None:
        """Runs the next attempts of steps, by key, as soon as the code has come to them."""
        self.seen = max(self.seen, sequence)
        for key, number in attempts.items():
            entry = self.entries.get(key)
            if entry is not None:
                entry.wake_at_ms, entry.attempts = None, number - 1
        if self._outcome is not None or self.rolling_back:
            return
        for key, number in attempts.items():
            call = self.calls.get(key)
            if call is not None and not call.started:
                call.attempt = number
                self.run_call(call)
        self._rest()

    def roll_back_again(self, key: str, number: int) -> None:
        """Runs the next attempt of a rollback handler."""
        if self._rollback is not None:
            self.entries[key].rollback_attempts = number - 1
            self._rollback.again(key)

    def started(self, key: str) -> Started | None:
        """What is under way for a key, as the owner is told of it."""
        if self.rolling_back:
            reached = Reached(key, key, 0, 0, 0, 0)
            attempt = self.entries[key].rollback_attempts + 1
            return Started(self.number, reached, attempt, _NEVER, rollback=True)
        call = self.calls.get(key)
        if call is None:
            return None
        return Started(self.number, call.reached, call.attempt, call.policy)

    # -- what entries do

    def ticket(self) -> int:
        """The number of the next call of an entry."""
        self._ticket += 1
        return self._ticket

    def come_by(self, entry: Entry) -> None:
        """The code has come to where an entry was resolved, or a loop had its latest commit."""
        if entry.sequence >= self._replay_until:
            self._replaying = False
        if entry.sequence > self.begin.logged_at:
            # Lines that were logged before belong to iterations that do not run again.
            self._lines_again = 0

    def logs_again(self) -> bool:
        """Whether the line that the code is about to log was logged before."""
        if self._replaying or not self._lines_again:
            return self._replaying
        self._lines_again -= 1
        return True

    def say(self, asked: CodeCommand, *, owed: str | None = None) -> None:
        """Tells the owner, unless the run is being rolled back, when only handlers have news.

        Shape:  owed is the key of the entry that will have its result as soon as this is durable.
        """
        logged = isinstance(asked, Log) and asked.attempt is not None
        if self.closed or (self.rolling_back and not logged):
            return
        if owed is not None:
            self.owed.add(owed)
        self.outside.say(self, asked)

    def run_again(self, call: Call) -> None:
        """Runs an attempt that was under way, behind what was recorded before it began."""
        self._deferred.append(call)

    def run_call(self, call: Call) -> None:
        """Runs an attempt of a step."""
        self.calls[call.reached.key] = call
        call.started = True
        self.outside.call(self, call)

    def abandon(self, lost: list[str]) -> list[Reached]:
        """Stops what runs in the branches that lost a race, or of entries that are given up.

        Shape:  gives the steps among them that nothing is recorded of yet.
        """
        prefixes = tuple(f"{scope}/" for scope in lost)
        keys = [key for key in self.calls if key in lost or key.startswith(prefixes)]
        fresh = [self.calls[key].reached for key in keys if key not in self.entries]
        for key in keys:
            if not self.calls.pop(key).returned:
                self.owed.discard(key)
            self.outside.drop(self, key)
        self.record.cancel_beneath(lost)
        return fresh

    def forget_iterations(self, key: str, before: int) -> None:
        """Forgets entries of a loop's old iterations, as the owner does."""
        for each in trim(self.entries, key, before):
            self.handlers.pop(each, None)

    def result(self, key: str) -> asyncio.Future[Entry]:
        """The result of an entry: a recorded one comes in its turn, the others in the future."""
        future: asyncio.Future[Entry] = self.loop.create_future()
        entry = self.entries.get(key)
        if entry is not None and entry.status not in OPEN and entry.sequence != UNRESOLVED:
            if entry.status is not EntryStatus.CANCELLED:
                self._ticket += 1
                heapq.heappush(self._recorded, (entry.sequence, self._ticket, future, entry))
        else:
            self._pending[key] = future
        return future

    def diverged(self, key: str, recorded: str, requested: str) -> HistoryDivergedError:
        """The error of code that does not fit its history."""
        return HistoryDivergedError(key, recorded, requested, CODE_CHANGED)

    # -- the end

    def _finish(self, value: Any, error: BaseException | None) -> None:  # noqa: ANN401
        """The author's function is through."""
        if error is None:
            error = come_to_end(self._root, None) or self._unvisited()
        if error is None:
            try:
                output = encode(value, f"the output of workflow {self.workflow.name}")
            except UnserialisableError as why:
                error = why
            else:
                self._tell_of_failed_tasks()
                self.outside.say(self, Return(output))
                self.close()
                return
        # What still runs has failed with the run. What has returned may have to be rolled back, so
        # its record is waited for.
        self.outside.drop(self, None)
        self._outcome = (None, error)
        if self.owed:
            return
        failure = failure_of(error)
        # Code that does not fit its history cannot say what to undo either.
        if isinstance(error, HistoryDivergedError) or not to_roll_back(self.entries):
            self.outside.say(self, Raise(failure))
            self.close()
            return
        self.outside.say(self, BeginRollback(failure))
        self._begin_rollback(failure)

    def _tell_of_failed_tasks(self) -> None:
        """Logs the failures of tasks that nobody has awaited."""
        for task in self.loop.failed():
            failure = failure_of(task.exception() or asyncio.CancelledError())
            # Names of tasks are not the same on a replay.
            name = getattr(task.get_coro(), "__qualname__", "a coroutine")
            message = f"the task of {name} failed unseen: {failure.name}: {failure.message}"
            line = bounded(message, LOG_MESSAGE_MAX)
            self.outside.say(self, Log("warn", SYSTEM, line, None, None, None, is_replay=False))

    def _begin_rollback(self, failure: Failure) -> None:
        self.calls.clear()
        for task in tuple(self.loop.tasks):
            end(task)
        self.loop.forget()
        self._rollback = Rollback(self, failure)
        self._restart()
        self.start()

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """A rollback handler is through."""
        if self._rollback is not None:
            self._rollback.ended(key, error)

    def handler_done(self, key: str) -> None:
        """That an entry is rolled back is durable."""
        if self._rollback is not None:
            self._rollback.done(key)

    def _unvisited(self) -> HistoryDivergedError | None:
        """The error of strict code that has not come to an entry of its history."""
        for key in self.record.unvisited() if self.workflow.strict else ():
            entry = self.entries[key]
            # What was cancelled might never have been reached: how far a loser gets is chance. The
            # time is no entry that an author could mark as removed.
            if entry.status is not EntryStatus.CANCELLED and entry.kind is not EntryKind.NOW:
                return self.diverged(key, entry.kind.value, "nothing")
        return None
