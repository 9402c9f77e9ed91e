"""A run in a host, with the attempts of its steps and of its rollback handlers.

Attempts run on the host's event loop; functions that are not async are called by `call_sync`.
"""

import asyncio
import contextlib
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from headwater.processors.code.errors import NonRetryableError, RollbackError, UnserialisableError
from headwater.processors.code.host_messages import (
    Activate,
    BeginRollback,
    CodeCommand,
    FromHost,
    Raise,
)
from headwater.processors.code.lifecycle import CANCELLED_ERROR
from headwater.processors.runs.decisions import (
    Reached,
    RetryPolicy,
    RollbackRaised,
    StepRaised,
    StepReturned,
)
from headwater.processors.runs.host_messages import AttemptStarted, Requested, YieldBack
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.processors.trace_context import context_of
from headwater.processors.trace_spans import attempt_span
from headwater.schemas.history import Json
from headwater.streams.authoring.failures import failure_of, traceback_of
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import encode, encode_object
from headwater.streams.code_host.threads import end_if_forked
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.host_port import Call, CurrentAttempt, Handler
from headwater.streams.replay.workflow import Workflow
from headwater.streams.telemetry import Telemetry, telemetry

if TYPE_CHECKING:
    from headwater.schemas.history import Failure

log = logging.getLogger(__name__)

#: Calls a function that is not async, possibly in a thread, and returns its result.
CallSync: TypeAlias = Callable[..., Awaitable[Any]]

#: Returns whether code of an activation may start.
MayBegin: TypeAlias = Callable[[int], bool]


def always(_activation: int) -> bool:
    """Permit all code to start."""
    return True


#: Poll interval while code may not start, in seconds.
_LOOK_S: Final = 0.02
#: Message of asyncio when there is no event loop.
_NO_LOOP: Final = re.compile("no (running|current) event loop")
#: Commands that carry a failure.
Failed: TypeAlias = StepRaised | RollbackRaised | BeginRollback | Raise
#: The same as a tuple: isinstance, which runs for every command, is twice as fast with it.
_FAILED: Final = (StepRaised, RollbackRaised, BeginRollback, Raise)
#: Retries of handlers are decided by the owner.
_NO_RETRY: Final = RetryPolicy(0, 0, "constant")


class AttemptOwner(Protocol):
    """The run of an activation, which has running attempts."""

    number: int
    attempts: dict[str, "Attempt"]


class Attempt:
    """A running attempt. The run's `attempts` contains it until it ends or is cancelled."""

    __slots__ = ("call", "current", "key", "number", "run", "task", "timeout_ms", "tx")

    def __init__(
        self,
        run: AttemptOwner,
        key: str,
        number: int,
        call: Call | None = None,
        tx: StepTx | None = None,
        timeout_ms: int = 0,
    ) -> None:
        self.run = run
        self.key = key
        self.number = number
        #: What the code of the attempt sees.
        self.current: CurrentAttempt
        #: None for a rollback handler, which has its own timeout.
        self.call = call
        self.timeout_ms = timeout_ms
        self.task: asyncio.Task[None]
        #: None for a callback without a `tx` parameter.
        self.tx = tx

    def started(self) -> AttemptStarted:
        """Return the message for the owner that the attempt has started."""
        if self.call is not None:
            return AttemptStarted(self.run.number, self.call.reached, self.number, self.call.policy)
        reached = Reached(self.key, self.key, 0, 0, 0, self.timeout_ms)
        return AttemptStarted(self.run.number, reached, self.number, _NO_RETRY, rollback=True)

    def is_current(self) -> bool:
        """Whether the attempt has neither ended nor been cancelled."""
        return self.run.attempts.get(self.key) is self


class Allowance:
    """Number of step attempts that may still start; None if unlimited."""

    def __init__(self) -> None:
        self.left: int | None = None

    @contextlib.contextmanager
    def limited_to(self, attempts: int | None) -> Iterator[None]:
        """Limit the number of attempts within a context."""
        self.left = attempts
        try:
            yield
        finally:
            self.left = None

    def acquire(self) -> bool:
        """Use one attempt. Return whether one was left."""
        if self.left is None:
            return True
        permitted = self.left > 0
        self.left -= permitted
        return permitted


class HostServices:
    """Dependencies that the runs of a host share.

    Attributes:
        fresh: Attempts that were not reported to the owner yet.
        running: All running attempts.
        may_begin: Returns whether step code of an activation may start now, that is whether the
            worker certainly still owns its partition.
    """

    def __init__(
        self,
        emit: Callable[[FromHost], None],
        now_ms: Callable[[], int],
        call_sync: CallSync,
        allowance: Allowance,
        may_begin: MayBegin,
    ) -> None:
        self.emit = emit
        self.may_begin = may_begin
        self.allowance = allowance
        self.now_ms = now_ms
        self.call_sync = call_sync
        self.loop: asyncio.AbstractEventLoop
        self.fresh: list[Attempt] = []
        self.running: set[Attempt] = set()


class HostedRun:
    """A run in a host. Implements `HostPort` for its activation."""

    def __init__(
        self,
        services: HostServices,
        begin: Activate,
        workflow: Workflow,
        payload: Any,  # noqa: ANN401, what the author declared
    ) -> None:
        self._services = services
        self._begin = begin
        self.number = begin.activation
        self._limits = begin.limits or DEFAULT_LIMITS
        self._publishes = workflow.publishes
        self._instance = f"{begin.workflow}/{begin.instance_id}"
        self._logged: Failure | None = None
        self._held = False
        self.attempts: dict[str, Attempt] = {}
        self.activation = Activation(begin, workflow, payload, self)

    def close(self) -> None:
        """Close the activation."""
        self.activation.close()
        # Breaks a reference cycle, which only the garbage collector would free.
        del self.activation

    # -- the port

    def send(self, command: CodeCommand) -> None:
        """Send a command to the owner, and write a failure to the process's log."""
        if isinstance(command, _FAILED):
            self._log(command)
        self._services.emit(Requested(self.number, command))

    def _log(self, command: Failed) -> None:
        failure = command.failure
        # Code that ends because it was cancelled does not fail.
        ends = isinstance(command, BeginRollback | Raise)
        if failure is self._logged or (ends and failure.name == CANCELLED_ERROR):
            return
        self._logged = failure
        what = f"run {self._begin.run_number}"
        fields: dict[str, object] = {"instance": self._instance, "run": self._begin.run_number}
        if isinstance(command, StepRaised):
            what = f'step "{command.step.key}", attempt {command.attempt}'
            fields |= {"step": command.step.key, "attempt": command.attempt}
        elif isinstance(command, RollbackRaised):
            what = f'rollback of "{command.key}"'
            fields["step"] = command.key
        trace = traceback_of(failure) or f"{failure.name}: {failure.message}"
        log.warning("%s: %s failed: %s", self._instance, what, trace.rstrip(), extra=fields)

    def is_busy(self) -> bool:
        """Whether attempts are running."""
        return bool(self.attempts)

    def yield_back(self) -> bool:
        """Yield the run back if one of its attempts could not start. Return whether it did."""
        if self._held:
            self._services.emit(YieldBack(self.number))
        return self._held

    def now_ms(self) -> int:
        """Return the host's time in Unix milliseconds."""
        return self._services.now_ms()

    def cancel(self, key: str | None = None) -> None:
        """Cancel the attempt of a key, or all attempts."""
        for attempt in list(self.attempts.values()) if self.attempts else ():
            if key in (None, attempt.key):
                attempt.task.cancel()
                if attempt.tx is not None:
                    # A thread cannot be cancelled; the callback in it may poll `tx.cancelled()`.
                    attempt.tx.abandon()
                self._end(attempt)

    def call(self, call: Call) -> None:
        """Start an attempt of a step, unless the allowance is used up."""
        if not self._services.allowance.acquire():
            self._held, call.started = True, False
            return
        tx = StepTx(self._limits, self._publishes) if call.wants_tx else None
        attempt = Attempt(self, call.reached.key, call.attempt, call, tx)
        self._start(attempt, self._run_step(attempt, call))

    def call_handler(
        self,
        key: str,
        attempt: int,
        handler: Handler,
        output: Any,  # noqa: ANN401
    ) -> None:
        """Start an attempt of a rollback handler."""
        begun = Attempt(self, key, attempt, timeout_ms=handler.timeout_ms)
        self._start(begun, self._run_handler(begun, handler.function, output))

    # -- attempts

    def _start(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        services = self._services
        run = (self._instance, self._begin.run_number, self._begin.trace)
        attempt.current = CurrentAttempt(attempt.key, attempt.number, *run)
        attempt.task = services.loop.create_task(work)
        self.attempts[attempt.key] = attempt
        services.fresh.append(attempt)
        services.running.add(attempt)

    def _end(self, attempt: Attempt) -> None:
        del self.attempts[attempt.key]
        self._services.running.discard(attempt)

    async def _run_step(self, attempt: Attempt, call: Call) -> None:
        number, exporter = attempt.number, telemetry()
        began_ms = self.now_ms() if exporter else 0
        attempt.current.enter()
        tx = attempt.tx
        command: StepReturned | StepRaised
        try:
            arguments = () if tx is None else (tx,)
            value = await invoke(self._services, self.number, call.callback, *arguments)
            if tx is not None:
                tx.close()
            command = StepReturned(
                call.reached,
                number,
                call.policy,
                self._result(value, call),
                call.rollback,
                tuple(tx.posts) if tx else (),
                tuple(tx.statements) if tx else (),
            )
        except BaseException as error:  # noqa: BLE001, whatever a step raises is the step's failure
            if not attempt.is_current():
                return
            command = _raised(call, number, error)
        if attempt.is_current():
            if exporter is not None:
                self._export(exporter, call, command, began_ms)
            self._end(attempt)
            self.activation.step_ended(call, command)

    def _export(
        self, exporter: Telemetry, call: Call, command: StepReturned | StepRaised, began_ms: int
    ) -> None:
        """Export the span of an attempt that has ended, if the trace of its run is recorded."""
        begin, context = self._begin, context_of(self._begin.trace)
        if context is None or not context.is_sampled:
            return
        run = (begin.workflow, begin.instance_id, begin.run_number)
        step = (call.reached.key, call.reached.name, command.attempt)
        failure = command.failure if isinstance(command, StepRaised) else None
        times_ms = (began_ms, self.now_ms())
        exporter.emit_all([attempt_span(run, context, step, times_ms, failure)])

    def _result(self, value: Any, call: Call) -> Json:  # noqa: ANN401
        most = self._limits.max_result_bytes
        what = f'the result of step "{call.reached.name}"'
        declared = call.declared
        if declared is None:
            return encode(value, what, most, "max_result_bytes")
        text = encode_object(value, what, most, "max_result_bytes")
        try:
            declared.read(text)
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise UnserialisableError(
                f"expected {what} to be {declared!r}, as its function is annotated, found: {error}"
            ) from error
        return text

    async def _run_handler(
        self,
        attempt: Attempt,
        handler: Callable[[Any], Any],
        output: Any,  # noqa: ANN401
    ) -> None:
        failure: BaseException | None = None
        attempt.current.enter()
        try:
            await invoke(self._services, self.number, handler, output)
        except BaseException as error:  # noqa: BLE001, as for steps
            failure = error
        if attempt.is_current():
            self._end(attempt)
            self.activation.handler_ended(attempt.key, failure)


class _NotOwned(BaseException):
    """The partition was no longer certainly owned when a thread became free."""


async def invoke(
    services: HostServices,
    activation: int,
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Call an author's function, async or not, without blocking the event loop.

    It starts only while the worker certainly owns the partition: since the call was requested, this
    process may have been suspended, or may have waited for a free thread.
    """
    try:
        if _is_async(function) and services.may_begin(activation):
            return await function(*arguments)
        return await _invoked(services, activation, function, arguments)
    finally:
        end_if_forked()


def _is_async(function: Callable[..., Any]) -> bool:
    """Return what `inspect.iscoroutinefunction` returns, at a third of the cost."""
    if isinstance(function, FunctionType) and not function.__dict__:
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function)


async def _invoked(
    services: HostServices,
    activation: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:  # noqa: ANN401
    while True:
        while not services.may_begin(activation):  # noqa: ASYNC110, another process allows it
            await asyncio.sleep(_LOOK_S)
        if _is_async(function):
            return await function(*arguments)
        try:
            value = await services.call_sync(_begin, services, activation, function, arguments)
        except _NotOwned:
            continue
        except RuntimeError as error:
            if not _NO_LOOP.search(str(error)):
                raise
            # The thread has no event loop. A function that needs one, such as
            # `lambda: asyncio.gather(...)`, is called here, where it does not block.
            value = function(*arguments)
        # A lambda that calls an async function returns its coroutine.
        return await value if inspect.isawaitable(value) else value


def _begin(
    services: HostServices,
    activation: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:  # noqa: ANN401
    if not services.may_begin(activation):
        raise _NotOwned
    return function(*arguments)


def _raised(call: Call, number: int, error: BaseException) -> StepRaised:
    failure = failure_of(error)
    if isinstance(error, RollbackError):
        # This name identifies it when it is raised into the workflow.
        failure = msgspec.structs.replace(failure, name=RollbackError.__name__)
    final = isinstance(error, NonRetryableError | RollbackError | UnserialisableError)
    return StepRaised(call.reached, number, failure, call.policy, retryable=not final)
