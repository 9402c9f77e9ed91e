"""A run that a host has taken on: from the owner's first message about it to the last.

Theory of operation: the code is executed until it rests. If nothing is under way then, the run
suspends: it tells the owner, once for every event that it has seen, and may be evicted. When the
code has returned, so has the run. When it has failed, steps that have returned may have to be
rolled back, so the run fails only when their results are recorded; then the rollback begins, or the
run is over.
"""

import asyncio
from enum import Enum, auto
from typing import Any, Final

import msgspec

from headwater.processors.replay.commands import BeginRollback, Raise, Return, Suspend
from headwater.processors.replay.ends import TOLD
from headwater.processors.replay.errors import HistoryDivergedError
from headwater.processors.replay.host_messages import Activate, Advanced, Resolved
from headwater.processors.replay.state import Entry
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.schemas.history import Failure
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.values import encode, encode_object
from headwater.streams.replay.execution import Execution
from headwater.streams.replay.host_port import Call, HostPort
from headwater.streams.replay.rollback import Rollback, to_roll_back
from headwater.streams.replay.workflow import Workflow

#: Why a run fails whose code made nothing of it that the run is cancelled.
_TOLD: Final = Failure(TOLD, "the run was cancelled")
#: What is logged of a run that nothing can continue.
_STUCK: Final = (
    "the code waits for something that no entry will bring: none of its entries is open, so "
    "neither time nor an event can continue it. Usual cause: an asyncio.Event that nothing sets, "
    "a lock that is not released, a future without a result. It waits until it is cancelled, "
    "terminated or restarted"
)
#: Smaller than any sequence.
_NEVER: Final = -1


class Phase(Enum):
    """Where a run stands in the host; it goes from one to a later one only."""

    #: Its code runs, or waits for results.
    RUNNING = auto()
    #: Its code has failed; results of steps are on their way to the log.
    FAILING = auto()
    #: Its code is replayed for its handlers, or these run.
    ROLLING_BACK = auto()
    #: Nothing of it runs any more.
    CLOSED = auto()


class Activation:
    """A run in a host."""

    def __init__(
        self,
        begin: Activate,
        workflow: Workflow,
        payload: Any,  # noqa: ANN401, what the author declared
        host: HostPort,
    ) -> None:
        self._begin = begin
        self._workflow = workflow
        self._payload = payload
        self._host = host
        self._entries = begin.entries
        #: The sequence of the latest event that the code has seen, and what it was when the run
        #: suspended last.
        self._seen = begin.seen
        self._suspended_at = _NEVER
        #: Why it fails, and whether because it does not fit its history.
        self._failure = begin.rollback
        self._diverged = False
        self._phase = Phase.RUNNING if begin.rollback is None else Phase.ROLLING_BACK
        self._execute()

    def _execute(self) -> None:
        self._execution = Execution(
            self._begin,
            self._workflow,
            self._payload,
            self._host,
            rolling_back=self._phase is Phase.ROLLING_BACK,
        )
        self._run = self._execution.run
        self._rollback = Rollback(self._entries, self._run.handlers, self._host)

    def proceed(self) -> None:
        """Runs the code until it rests, and does what follows from that."""
        match self._phase:
            case Phase.RUNNING:
                self._execution.run_until_rest()
                if self._execution.outcome is None:
                    self._suspend()
                else:
                    self._finish(*self._execution.outcome)
            case Phase.FAILING:
                self._fail()
            case Phase.ROLLING_BACK:
                self._execution.run_until_rest()
                self._rollback.begin()
                self._end_rollback()
            case Phase.CLOSED:
                pass

    def close(self) -> None:
        """Ends everything: the code never runs again, not even to clean up, and sends no more."""
        self._phase = Phase.CLOSED
        self._host.cancel()
        self._run.close()

    # -- messages of the owner

    def resolved(self, message: Resolved) -> None:
        """An entry has its result."""
        self._see(message.sequence)
        self._run.resolve(message.key, self._entry(message))
        self.proceed()

    def _see(self, sequence: int) -> None:
        self._seen = max(self._seen, sequence)
        self._run.lines.see(sequence)

    def _entry(self, message: Resolved) -> Entry:
        """The entry as the message leaves it."""
        entry = self._entries.get(message.key)
        if entry is None:
            call = self._run.calls.get(message.key)
            entry = Entry(
                name=message.key,
                kind=EntryKind.DO,
                status=EntryStatus.PENDING,
                ordinal=call.reached.ordinal if call else self._run.journal.ordinal,
                created_at_ms=0,
                updated_at_ms=0,
            )
        entry.status = EntryStatus.COMPLETED if message.failure is None else EntryStatus.ERRORED
        entry.sequence = message.sequence
        entry.attempts = message.attempts
        entry.result, entry.failure = message.result, message.failure
        entry.rollback = message.rollback
        return entry

    def advanced(self, message: Advanced) -> None:
        """A loop's commit is durable."""
        self._see(message.sequence)
        self._run.pending.discard(message.key)
        self._run.forget_iterations(message.key, message.trim_before)
        self._run.results.resolve_commit(message.key)
        self.proceed()

    def cancelled(self, sequence: int) -> None:
        """The run is cancelled: the code is told, if it has not ended."""
        self._see(sequence)
        self._run.cancelled_at = sequence
        self._begin = msgspec.structs.replace(self._begin, cancelled_at=sequence)
        self.proceed()

    def timed_out(self, key: str) -> None:
        """An attempt has failed, whatever its code still returns."""
        self._run.pending.discard(key)
        self._run.calls.timed_out(key)
        self.check_rest()

    def retry(self, attempts: dict[str, int], sequence: int) -> None:
        """Begins the next attempts of steps, by key, as soon as the code has come to them."""
        self._seen = max(self._seen, sequence)
        for key, number in attempts.items():
            entry = self._entries.get(key)
            if entry is not None:
                entry.wake_at_ms, entry.attempts = None, number - 1
        if self._phase is Phase.RUNNING:
            for key, number in attempts.items():
                self._run.calls.retry(key, number)
            self._suspend()

    def retry_handler(self, key: str, attempt: int) -> None:
        """Begins the next attempt of a rollback handler."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.retry(key, attempt)

    def handler_done(self, key: str) -> None:
        """It is durable that an entry is rolled back, or that its handler is given up."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.handled(key)
            self._end_rollback()

    def check_rest(self) -> None:
        """Checks again whether the run rests, without running code."""
        if self._phase is Phase.RUNNING:
            self._suspended_at = _NEVER
            self._suspend()
        elif self._phase is Phase.FAILING:
            self._fail()

    # -- what attempts come to

    def step_ended(self, call: Call, command: StepReturned | StepRaised) -> None:
        """An attempt of a step has returned or raised."""
        call.started = False
        if self._phase is Phase.CLOSED:
            return
        if isinstance(command, StepReturned):
            self._run.pending.add(call.reached.key)
            call.returned = True
        self._host.send(command)
        self.check_rest()

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """An attempt of a rollback handler has returned or raised."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.handler_ended(key, error)

    # -- from one phase to the next

    def _suspend(self) -> None:
        """Suspends, if no result and no attempt is under way, and if that was not said before."""
        if self._run.pending or self._host.is_busy() or self._suspended_at == self._seen:
            return
        self._suspended_at = self._seen
        if self._host.yield_back():
            return
        is_open = any(entry.status in OPEN for entry in self._entries.values())
        if not is_open and not self._run.calls:
            self._run.warn(_STUCK, _STUCK)
        self._host.send(Suspend(self._seen))

    def _finish(self, value: Any, error: BaseException | None) -> None:  # noqa: ANN401
        """The author's function has returned or raised."""
        if self._run.told:
            # However it ended, the run does not end by that.
            self._end_told(error)
            return
        if error is None:
            error = self._execution.return_fault()
        if error is None:
            try:
                what = f"the output of workflow {self._workflow.name}"
                write = encode if self._workflow.result_type().is_plain else encode_object
                output = write(value, what, self._run.limits.max_result_bytes, "max_result_bytes")
            except Exception as why:  # noqa: BLE001, an author's dict may raise anything, too
                error = why
            else:
                self._run.log_failed(self._run.loop.take_failed(past=False))
                self._host.send(Return(output))
                self.close()
                return
        self._begin_to_fail(failure_of(error), error)

    def _end_told(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, asyncio.CancelledError):
            self._begin_to_fail(_TOLD, error)
        else:
            self._begin_to_fail(failure_of(error), error)

    def _begin_to_fail(self, failure: Failure, error: BaseException | None) -> None:
        # What still runs has failed with the run.
        self._host.cancel()
        self._failure = failure
        self._diverged = isinstance(error, HistoryDivergedError)
        self._phase = Phase.FAILING
        self._fail()

    def _fail(self) -> None:
        if self._run.pending:
            return
        failure = self._why()
        # Code that does not fit its history cannot say what to undo either.
        if self._diverged or not to_roll_back(self._entries):
            self._host.send(Raise(failure))
            self.close()
            return
        self._host.send(BeginRollback(failure))
        self._run.close()
        self._phase = Phase.ROLLING_BACK
        self._execute()
        self.proceed()

    def _end_rollback(self) -> None:
        if self._rollback.is_over:
            self._host.send(Raise(self._why()))
            self.close()

    def _why(self) -> Failure:
        if self._failure is None:
            raise AssertionError("a run fails for a reason")
        return self._failure
