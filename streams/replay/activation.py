"""Activation of a run in a host: its execution and its rollback.

The code is executed until it rests. If nothing is running then, the run suspends: it notifies the
owner, once for every event that it has seen, and may be evicted. When the code has returned, the
run returns. When the code has failed, steps that have returned may have to be rolled back, so the
run fails only after their results are recorded. Then the rollback begins, or the run ends.
"""

import asyncio
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec

from headwater.processors.code.errors import HistoryDivergedError
from headwater.processors.code.host_messages import (
    Activate,
    Advanced,
    BeginRollback,
    Raise,
    Resolved,
    Return,
    RolledBack,
    Suspend,
)
from headwater.processors.code.lifecycle import CANCELLED_ERROR, is_to_roll_back
from headwater.processors.code.state import Entry
from headwater.processors.runs.decisions import RollbackRaised, StepRaised, StepReturned
from headwater.schemas.history import Failure
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.value_types import result_of_step
from headwater.streams.authoring.values import encode, encode_object
from headwater.streams.replay.execution import Execution
from headwater.streams.replay.host_port import Call, Handler, HostPort
from headwater.streams.replay.workflow import Workflow


def to_roll_back(entries: Mapping[str, Entry]) -> list[str]:
    """Return the steps with handlers that have not run yet, in the order of completion."""
    done = [(entry.sequence, key) for key, entry in entries.items() if is_to_roll_back(entry)]
    return [key for _, key in sorted(done)]


class Rollback:
    """The rollback of a run.

    The author's code is replayed first, without starting anything new: entries without a result
    stay pending. When it rests, every handler that belongs to a completed step is known.

    Args:
        entries: Entries of the run, by key.
        handlers: Handlers by key. The replay adds to them; they are read when one runs.
        host: Host of the run.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        handlers: Mapping[str, Handler],
        host: HostPort,
    ) -> None:
        self._entries = entries
        self._handlers = handlers
        self._host = host
        #: Keys of the entries to roll back, the next one last; None until the code rests.
        self._pending: list[str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether everything is rolled back."""
        return self._pending is not None and not self._pending

    def begin(self) -> None:
        """Start with the last handler, unless started before. All handlers must be known."""
        if self._pending is None:
            self._pending = to_roll_back(self._entries)
            self._call_next()

    def retry(self, key: str, attempt: int) -> None:
        """Call a handler that has failed again."""
        self._entries[key].rollback_attempts = attempt - 1
        if self._is_next(key):
            self._call(key)

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """Handle a handler that has returned or raised."""
        if error is None:
            self._host.send(RolledBack(key))
        else:
            attempt = self._entries[key].rollback_attempts + 1
            self._host.send(RollbackRaised(key, attempt, failure_of(error)))

    def handled(self, key: str) -> None:
        """Record that the rollback of an entry is durable, or its handler has finally failed."""
        if self._pending and self._is_next(key):
            self._pending.pop()
            self._call_next()

    def _is_next(self, key: str) -> bool:
        return bool(self._pending and self._pending[-1] == key)

    def _call_next(self) -> None:
        # The owner decides when a failed handler is called again.
        if self._pending and not self._entries[self._pending[-1]].rollback_at_ms:
            self._call(self._pending[-1])

    def _call(self, key: str) -> None:
        entry = self._entries[key]
        handler = self._handlers.get(key, _NO_LONGER_IN_THE_CODE)
        try:
            output = result_of_step(entry.name, entry.result, handler.declared)
        except TypeError as error:
            self.handler_ended(key, error)
            return
        self._host.call_handler(key, entry.rollback_attempts + 1, handler, output)


#: For a step with a handler that the code no longer has.
_NO_LONGER_IN_THE_CODE: Final = Handler(lambda _: None, 0)


# -- activation

#: Failure of a canceled run if its code raises no other error.
_CANCELED: Final = Failure(CANCELLED_ERROR, "the run was cancelled")
#: Warning about a run that cannot continue. It is stored as a key, so it must not change.
_STUCK: Final = (
    "the code waits for something that no entry will bring: none of its entries is open, so "
    "neither time nor an event can continue it. Usual cause: an asyncio.Event that nothing sets, "
    "a lock that is not released, a future without a result. It waits until it is cancelled, "
    "terminated or restarted"
)
#: Less than any sequence.
_NEVER: Final = -1


class Phase(Enum):
    """Phase of a run in the host. A run only moves to later phases."""

    #: The code runs, or waits for results.
    RUNNING = auto()
    #: The code has failed, and results of steps are not recorded yet.
    FAILING = auto()
    #: The code is replayed to collect its rollback handlers, or these run.
    ROLLING_BACK = auto()
    #: Nothing runs.
    CLOSED = auto()


class Activation:
    """A run in a host.

    Attributes:
        error: The exception with which its code has failed, if it has.
    """

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
        #: Sequence of the latest event that the code has seen, and its value at the last
        #: suspension.
        self._seen = begin.seen
        self._suspended_at = _NEVER
        #: The failure, and whether it is a divergence from the history.
        self._failure = begin.rollback
        self._diverged = False
        self.error: BaseException | None = None
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
        """Execute the code until it rests, and act on the result."""
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
        """Stop everything. The code never runs again, not even to clean up, and sends nothing."""
        self._phase = Phase.CLOSED
        self._host.cancel()
        self._run.close()

    # -- comparison with the history

    def not_reached(self) -> list[str]:
        """Return the recorded entries that the code should have reached but has not.

        During a rollback, code only runs to collect its handlers, and need not reach any.
        """
        if self._phase is Phase.ROLLING_BACK:
            return []
        entries = self._entries
        return [key for key in self._execution.not_reached() if not entries[key].excused]

    def has_lost_handler(self, key: str) -> bool:
        """Whether the code has reached a step, and gave it no rollback handler."""
        return key in self._run.journal.visited and key not in self._run.handlers

    # -- messages of the owner

    def resolved(self, message: Resolved) -> None:
        """Deliver the result of an entry."""
        self._see(message.sequence)
        self._run.resolve(message.key, self._entry(message))
        self.proceed()

    def _see(self, sequence: int) -> None:
        self._seen = max(self._seen, sequence)
        self._run.lines.see(sequence)

    def _entry(self, message: Resolved) -> Entry:
        """Return the entry as updated by the message."""
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
        """Record that a loop's commit is durable."""
        self._see(message.sequence)
        self._run.pending.discard(message.key)
        self._run.forget_iterations(message.key, message.trim_before)
        self._run.results.resolve_commit(message.key)
        self.proceed()

    def cancelled(self, sequence: int) -> None:
        """Cancel the run: the code receives the cancellation if it has not ended."""
        self._see(sequence)
        self._run.cancelled_at = sequence
        self._begin = msgspec.structs.replace(self._begin, cancelled_at=sequence)
        self.proceed()

    def timed_out(self, key: str) -> None:
        """Time out an attempt, ignoring what its code still returns."""
        self._run.pending.discard(key)
        self._run.calls.timed_out(key)
        self.check_rest()

    def retry(self, attempts: dict[str, int], sequence: int) -> None:
        """Start the next attempts of steps, by key, when the code has reached them."""
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
        """Start the next attempt of a rollback handler."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.retry(key, attempt)

    def handler_done(self, key: str) -> None:
        """Record that the rollback of an entry is durable, or its handler has finally failed."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.handled(key)
            self._end_rollback()

    def check_rest(self) -> None:
        """Check again whether the run rests, without running code."""
        if self._phase is Phase.RUNNING:
            self._suspended_at = _NEVER
            self._suspend()
        elif self._phase is Phase.FAILING:
            self._fail()

    # -- ends of attempts

    def step_ended(self, call: Call, command: StepReturned | StepRaised) -> None:
        """Handle an attempt of a step that has returned or raised."""
        call.started = False
        if self._phase is Phase.CLOSED:
            return
        if isinstance(command, StepReturned):
            self._run.pending.add(call.reached.key)
            call.returned = True
        self._host.send(command)
        self.check_rest()

    def handler_ended(self, key: str, error: BaseException | None) -> None:
        """Handle an attempt of a rollback handler that has returned or raised."""
        if self._phase is Phase.ROLLING_BACK:
            self._rollback.handler_ended(key, error)

    # -- transitions between phases

    def _suspend(self) -> None:
        """Suspend if no result or attempt is outstanding and the owner was not notified yet."""
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
        """Handle the return or error of the author's function."""
        if self._run.cancel_delivered:
            # A canceled run never completes, whatever its code returns.
            self._finish_canceled(error)
            return
        if error is None:
            error = self._execution.return_error()
        if error is None:
            try:
                what = f"the output of workflow {self._workflow.name}"
                write = encode if self._workflow.result_type().is_plain else encode_object
                output = write(value, what, self._run.limits.max_result_bytes, "max_result_bytes")
            except Exception as raised:  # noqa: BLE001, encoding may run an author's code
                error = raised
            else:
                self._run.log_failed(self._run.loop.take_failed(past=False))
                self._host.send(Return(output))
                self.close()
                return
        self._begin_to_fail(failure_of(error), error)

    def _finish_canceled(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, asyncio.CancelledError):
            self._begin_to_fail(_CANCELED, error)
        else:
            self._begin_to_fail(failure_of(error), error)

    def _begin_to_fail(self, failure: Failure, error: BaseException | None) -> None:
        # Attempts that still run fail with the run.
        self._host.cancel()
        # The outcome of a loop's commit changes nothing now, and there may be none: the owner
        # refuses a commit that does not know of a cancellation.
        self._run.pending -= self._run.results.awaited_commits()
        self._failure, self.error = failure, error
        self._diverged = isinstance(error, HistoryDivergedError)
        self._phase = Phase.FAILING
        self._fail()

    def _fail(self) -> None:
        if self._run.pending:
            return
        failure = self._failure_reason()
        # Code that diverges from its history cannot name the right handlers.
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
            self._host.send(Raise(self._failure_reason()))
            self.close()

    def _failure_reason(self) -> Failure:
        if self._failure is None:
            raise AssertionError("a run fails for a reason")
        return self._failure
