"""A code host: runs authors' code and tasks of graphs, and exchanges messages with owners.

A host makes no decisions about runs and holds nothing that is not recorded, so its state may be
lost at any time. Workflow code runs synchronously, with its own loop for every run. Steps run on
the process's event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.code.errors import NonRetryableError, UnserialisableError
from headwater.processors.code.host_messages import (
    Activate,
    Advanced,
    Cancelled,
    FromHost,
    HandlerDone,
    Raise,
    Resolved,
    RetryHandler,
    RetrySteps,
)
from headwater.processors.code.host_messages import ToHost as ToCodeHost
from headwater.processors.runs.decisions import StepRaised, StepReturned
from headwater.processors.runs.host_messages import (
    AbandonAttempt,
    AllowAttempts,
    AttemptStarted,
    CallTasks,
    DropTasks,
    Evict,
    Ping,
    PollProgress,
    Pong,
    Requested,
    TaskCall,
    ToTaskHost,
    YieldBack,
)
from headwater.processors.runs.limits import DEFAULT_LIMITS, bounded
from headwater.schemas.failures import INVALID_PARAMS, WORKFLOW_NOT_FOUND
from headwater.schemas.history import Failure
from headwater.streams.authoring.failures import failure_of, traceback_of
from headwater.streams.authoring.tasks import Task, TaskInfo, task
from headwater.streams.authoring.values import encode
from headwater.streams.code_host.hosted_run import (
    Allowance,
    Attempt,
    CallSync,
    HostedRun,
    HostServices,
    MayBegin,
    always,
    invoke,
)
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.host_port import Call, CurrentAttempt
from headwater.streams.replay.workflow import Workflow, read_params

log = logging.getLogger(__name__)


@task("noop")
async def _noop(_: Any) -> dict[str, Any]:  # noqa: ANN401, any input
    return {}


#: Tasks that are available in every app.
BUILT_IN: Final[dict[str, Task]] = {_noop.name: _noop}


class HostedTasks:
    """The attempts of a graph run's tasks."""

    def __init__(self, services: HostServices, begin: CallTasks, tasks: Mapping[str, Task]) -> None:
        self._services = services
        self._begin = begin
        self._tasks = tasks
        self.number = begin.activation
        self._instance = f"{begin.workflow}/{begin.instance_id}"
        self._limits = begin.limits or DEFAULT_LIMITS
        self.attempts: dict[str, Attempt] = {}
        self._held = False

    def call(self, calls: Iterable[TaskCall]) -> None:
        """Start attempts, as many as the allowance permits."""
        services = self._services
        for task_call in calls:
            task_ = self._tasks.get(task_call.task)
            key = task_call.reached.key
            if task_ is None:
                self._send(_unknown(task_call, self._tasks))
            elif key in self.attempts:
                pass
            elif not services.allowance.acquire():
                self._held = True
            else:
                call = Call(
                    task_call.reached, task_, task_call.policy, wants_tx=False, rollback=False
                )
                attempt = self.attempts[key] = Attempt(self, key, task_call.attempt, call)
                run = (self._instance, self._begin.run_number, self._begin.trace)
                attempt.current = CurrentAttempt(key, task_call.attempt, *run)
                attempt.task = services.loop.create_task(self._run(attempt, task_call, task_))
                services.fresh.append(attempt)
                services.running.add(attempt)
        self._yield_back()

    def _yield_back(self) -> None:
        """Yield the run back if an attempt could not start and none is running."""
        if self._held and not self.attempts:
            self._held = False
            self._services.emit(YieldBack(self.number))

    async def _run(self, attempt: Attempt, call: TaskCall, task_: Task) -> None:
        attempt.current.enter()
        ended: StepReturned | StepRaised
        try:
            function = task_.function
            if task_.takes_info:
                function = partial(function, info=self._info(call, attempt.current))
            arguments = json.loads(call.input)
            value = await invoke(self._services, self.number, function, arguments)
            what = f'the result of task "{call.task}"'
            text = encode(value, what, self._limits.max_result_bytes, "max_result_bytes")
            ended = StepReturned(call.reached, call.attempt, call.policy, text)
        except BaseException as error:  # noqa: BLE001, whatever a task raises is its failure
            if not attempt.is_current():
                return
            final = isinstance(error, NonRetryableError | UnserialisableError)
            failure = failure_of(error)
            ended = StepRaised(
                call.reached, call.attempt, failure, call.policy, retryable=not final
            )
        if attempt.is_current():
            self._end(attempt)
            self._send(ended)
            self._yield_back()

    def _info(self, call: TaskCall, current: CurrentAttempt) -> TaskInfo:
        run, context = self._begin, current.context()
        return TaskInfo(
            workflow_name=run.workflow,
            instance_id=run.instance_id,
            run_number=run.run_number,
            token_id=call.reached.key,
            node_ref=call.reached.name,
            attempt=call.attempt,
            idempotency_token=call.idempotency_token,
            traceparent=context.traceparent if context else "",
        )

    def _send(self, ended: StepReturned | StepRaised) -> None:
        if isinstance(ended, StepRaised):
            failure = ended.failure
            trace = traceback_of(failure) or f"{failure.name}: {failure.message}"
            location = (ended.step.name, ended.step.key, ended.attempt)
            what = "%s: node %s, token %s, attempt %d failed: %s"
            fields = {
                "instance": self._instance,
                "run": self._begin.run_number,
                "step": ended.step.key,
                "attempt": ended.attempt,
            }
            log.warning(what, self._instance, *location, trace.rstrip(), extra=fields)
        self._services.emit(Requested(self.number, ended))

    def _end(self, attempt: Attempt) -> None:
        del self.attempts[attempt.key]
        self._services.running.discard(attempt)

    def drop(self, keys: Iterable[str]) -> None:
        """Cancel attempts that are no longer needed."""
        for attempt in [self.attempts[key] for key in keys if key in self.attempts]:
            attempt.task.cancel()
            self._end(attempt)

    def close(self) -> None:
        """Cancel all attempts."""
        self.drop(tuple(self.attempts))


def _unknown(call: TaskCall, tasks: Mapping[str, Task]) -> StepRaised:
    known = ", ".join(sorted(tasks))
    message = f"expected one of the tasks of this app ({known}), found {call.task}"
    failure = Failure("TaskNotFoundError", message)
    return StepRaised(call.reached, call.attempt, failure, call.policy, retryable=False)


# -- the host

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
        emit: Called with every message for owners. The caller batches them into frames.
        now_ms: Returns the current time in Unix milliseconds.
        call_sync: Calls functions that are not async.
        tasks: Tasks by name.
        allowance: Number of attempts that may start; may be shared between hosts.
        may_begin: Returns whether step code of an activation may start now.
        loop: Event loop of the process, on which steps run; by default the one that runs when
            messages are handled.
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
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        refuse_in_workflows()
        self._workflows = dict(workflows)
        self._emit = emit
        self._services = HostServices(emit, now_ms, call_sync, allowance or Allowance(), may_begin)
        self._loop = loop
        self._tasks = {**BUILT_IN, **tasks}
        self._runs: dict[int, HostedRun] = {}
        self._graphs: dict[int, HostedTasks] = {}

    # -- messages of owners

    def handle(self, messages: Iterable[ToHost]) -> None:
        """Handle messages from owners."""
        # Looked up here: while a run executes, the running loop is the run's own.
        self._services.loop = self._loop or asyncio.get_running_loop()
        for message in messages:
            run = self._runs.get(message.activation)
            if run is not None:
                self._handle_run(run, message)
            elif isinstance(message, Activate):
                self._activate(message)
            elif isinstance(message, CallTasks):
                self._call_tasks(message)
            elif isinstance(message, AllowAttempts):
                self._services.allowance.left = message.attempts
            elif isinstance(message, Ping):
                self._emit(Pong(message.activation))
            elif message.activation in self._graphs:
                self._handle_tasks(self._graphs[message.activation], message)

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

    def _handle_run(  # noqa: C901, one branch per message
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
