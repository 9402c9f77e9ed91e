"""A code host: runs authors' code, and exchanges messages with owners.

It makes no decisions about runs and holds nothing that is not recorded, so its state may be lost at
any time. Workflow code runs synchronously, with its own loop for every run. Steps run on the
process's event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.code.commands import Raise
from headwater.processors.code.host_messages import (
    Activate,
    Advanced,
    Cancelled,
    FromHost,
    HandlerDone,
    Resolved,
    RetryHandler,
    RetrySteps,
)
from headwater.processors.code.host_messages import ToHost as ToCodeHost
from headwater.processors.graph.host_messages import CallTasks, DropTasks, ToTaskHost
from headwater.processors.runs.host_messages import (
    AbandonAttempt,
    AllowAttempts,
    AttemptStarted,
    Evict,
    Ping,
    PollProgress,
    Pong,
    Requested,
)
from headwater.processors.runs.limits import bounded
from headwater.schemas.failures import INVALID_PARAMS, WORKFLOW_NOT_FOUND
from headwater.schemas.history import Failure
from headwater.streams.authoring.attempt import CurrentAttempt
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.tasks import Task
from headwater.streams.code_host.hosted_run import (
    Allowance,
    CallSync,
    HostedRun,
    HostServices,
    MayBegin,
    always,
)
from headwater.streams.code_host.hosted_tasks import BUILT_IN, HostedTasks
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.workflow import Workflow, read_params

NO_TASKS: Final[Mapping[str, Task]] = {}
#: Messages from owners to hosts.
ToHost: TypeAlias = ToCodeHost | ToTaskHost


async def call_inline(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function in the current thread."""
    return function(*arguments)


class Host:
    """Runs the workflows of one process, and the tasks of graphs.

    Args:
        workflows: Workflows by name.
        emit: Called with each message for owners. The caller batches them into frames.
        now_ms: Returns the current time in Unix milliseconds.
        call_sync: Calls functions that are not async.
        tasks: Tasks by name.
        allowance: Number of attempts that may start; may be shared between hosts.
        may_begin: Returns whether step code of an activation may start now.
    """

    def __init__(  # noqa: PLR0913, the dependencies of a process
        self,
        workflows: Mapping[str, Workflow],
        *,
        emit: Callable[[FromHost], None],
        now_ms: Callable[[], int],
        call_sync: CallSync = call_inline,
        tasks: Mapping[str, Task] = NO_TASKS,
        allowance: Allowance | None = None,
        may_begin: MayBegin = always,
    ) -> None:
        refuse_in_workflows()
        self._workflows = dict(workflows)
        self._emit = emit
        self._services = HostServices(emit, now_ms, call_sync, allowance or Allowance(), may_begin)
        self._tasks = {**BUILT_IN, **tasks}
        self._runs: dict[int, HostedRun] = {}
        self._graphs: dict[int, HostedTasks] = {}

    # -- messages of owners

    def handle(self, messages: Iterable[ToHost]) -> None:
        """Handle messages from owners."""
        # Looked up here: while a run executes, the running loop is the run's own.
        self._services.loop = asyncio.get_running_loop()
        for message in messages:
            if isinstance(message, Activate):
                self._activate(message)
            elif isinstance(message, CallTasks):
                self._call_tasks(message)
            elif isinstance(message, AllowAttempts):
                self._services.allowance.left = message.attempts
            elif isinstance(message, Ping):
                self._emit(Pong(message.activation))
            elif message.activation in self._graphs:
                self._handle_tasks(self._graphs[message.activation], message)
            else:
                run = self._runs.get(message.activation)
                if run is not None:
                    self._handle_run(run, message)

    def _activate(self, message: Activate) -> None:
        workflow = self._workflows.get(message.workflow)
        if workflow is None:
            known = ", ".join(sorted(self._workflows)) or "none"
            message_text = (
                f"expected one of the workflows of this app ({known}), found {message.workflow}"
            )
            self._refuse(message, Failure(WORKFLOW_NOT_FOUND, message_text))
            return
        try:
            payload = read_params(workflow, message.params)
        except Exception as error:  # noqa: BLE001, authors' types may run their own code
            self._refuse(message, _unreadable(workflow, error))
            return
        run = HostedRun(self._services, message, workflow, payload)
        self._runs[message.activation] = run
        run.activation.proceed()

    def _call_tasks(self, message: CallTasks) -> None:
        hosted = self._graphs.get(message.activation)
        if hosted is None:
            hosted = HostedTasks(self._services, message, self._tasks)
            self._graphs[message.activation] = hosted
        hosted.call(message.calls)

    def _handle_tasks(self, hosted: HostedTasks, message: ToHost) -> None:
        match message:
            case AbandonAttempt():
                hosted.drop((message.key,))
            case DropTasks():
                hosted.drop(message.keys)
            case Evict():
                del self._graphs[message.activation]
                hosted.close()
            case _:
                pass

    def _refuse(self, message: Activate, failure: Failure) -> None:
        self._emit(Requested(message.activation, Raise(failure)))

    def _handle_run(  # noqa: C901, one branch for each message
        self, run: HostedRun, message: ToHost
    ) -> None:
        activation = run.activation
        match message:
            case Resolved():
                activation.resolved(message)
            case Advanced():
                activation.advanced(message)
            case Cancelled():
                activation.cancelled(message.sequence)
            case HandlerDone():
                activation.handler_done(message.key)
            case RetrySteps():
                activation.retry(message.attempts, message.sequence)
            case RetryHandler():
                activation.retry_handler(message.key, message.attempt)
            case AbandonAttempt():
                activation.timed_out(message.key)
            case PollProgress():
                activation.check_rest()
            case Evict():
                del self._runs[message.activation]
                run.close()
            case Activate() | CallTasks() | DropTasks() | AllowAttempts() | Ping():
                pass

    def stop(self) -> None:
        """Cancel all attempts and drop all runs."""
        for run in self._runs.values():
            run.close()
        for tasks in self._graphs.values():
            tasks.close()
        self._runs.clear()
        self._graphs.clear()

    # -- attempts

    def running(self) -> list[CurrentAttempt]:
        """Return the running attempts."""
        return [attempt.current for attempt in self._services.running]

    def still_running(self) -> list[AttemptStarted]:
        """Return running attempts that started since the last call. Owners time them."""
        started = self.starting()
        self._services.fresh.clear()
        return started

    def has_started(self) -> bool:
        """Whether `still_running` would return any."""
        return any(attempt.is_current() for attempt in self._services.fresh)

    def starting(self) -> list[AttemptStarted]:
        """Return what `still_running` would return, without marking it as reported."""
        return [attempt.started() for attempt in self._services.fresh if attempt.is_current()]


def _unreadable(workflow: Workflow, error: Exception) -> Failure:
    """Return the failure for params that do not match their declared type."""
    failure = failure_of(error)
    # A check in the author's type may raise its own exception.
    own = not isinstance(error, msgspec.ValidationError | TypeError)
    detail = f"{failure.name}: {failure.message}" if own else failure.message
    what = f"expected the params of {workflow.name} to be {workflow.params_type()!r}"
    return Failure(
        INVALID_PARAMS, bounded(f"{what}, found: {detail}"), failure.detail if own else None
    )
