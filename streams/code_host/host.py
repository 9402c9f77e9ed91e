"""A code host: runs authors' code, and exchanges messages with owners.

It decides nothing about runs and keeps nothing that is not recorded: whatever it holds may be lost
at any time. The workflows' own code runs here synchronously, each run on its own loop; steps run on
the real event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.graph.host_messages import CallTasks, DropTasks, ToTaskHost
from headwater.processors.replay.commands import Raise
from headwater.processors.replay.host_messages import (
    Activate,
    Advanced,
    Cancelled,
    FromHost,
    HandlerDone,
    Resolved,
    RetryHandler,
    RetrySteps,
)
from headwater.processors.replay.host_messages import ToHost as ToCodeHost
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
#: What owners send hosts.
ToHost: TypeAlias = ToCodeHost | ToTaskHost


async def in_place(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Calls a function here and now."""
    return function(*arguments)


class Host:
    """The workflows of one process, and the tasks of graphs.

    Shape:  `emit` is called with each message for owners; who sends them gathers them into frames;
            hosts may share an allowance of attempts; `may_begin` says of an activation whether
            code of its steps may begin now.
    """

    def __init__(  # noqa: PLR0913, what a process has
        self,
        workflows: Mapping[str, Workflow],
        *,
        emit: Callable[[FromHost], None],
        now_ms: Callable[[], int],
        call_sync: CallSync = in_place,
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
        """Does what owners ask for."""
        # Looked up here, because while a run has its turn the running loop is the run's own.
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
                self._pass_on_tasks(self._graphs[message.activation], message)
            else:
                run = self._runs.get(message.activation)
                if run is not None:
                    self._pass_on(run, message)

    def _activate(self, message: Activate) -> None:
        workflow = self._workflows.get(message.workflow)
        if workflow is None:
            known = ", ".join(sorted(self._workflows)) or "none"
            why = f"expected one of the workflows of this app ({known}), found {message.workflow}"
            self._refuse(message, Failure(WORKFLOW_NOT_FOUND, why))
            return
        try:
            payload = read_params(workflow, message.params)
        except Exception as error:  # noqa: BLE001, types of authors have code of theirs, too
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

    def _pass_on_tasks(self, hosted: HostedTasks, message: ToHost) -> None:
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

    def _pass_on(  # noqa: C901, one for each message
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
        """Lets everything go."""
        for run in self._runs.values():
            run.close()
        for tasks in self._graphs.values():
            tasks.close()
        self._runs.clear()
        self._graphs.clear()

    # -- attempts

    def running(self) -> list[CurrentAttempt]:
        """Return the attempts that are under way."""
        return [each.current for each in self._services.running]

    def still_running(self) -> list[AttemptStarted]:
        """The attempts that have started since the last call and not ended; owners time them."""
        found = self.starting()
        self._services.fresh.clear()
        return found

    def has_started(self) -> bool:
        """Whether `still_running` would give any."""
        return any(each.counts() for each in self._services.fresh)

    def starting(self) -> list[AttemptStarted]:
        """What `still_running` would give now: before the first turn of what has started."""
        return [each.started() for each in self._services.fresh if each.counts()]


def _unreadable(workflow: Workflow, error: Exception) -> Failure:
    """Why params are not what their workflow declares: an own check of the type's may say so."""
    found = failure_of(error)
    own = not isinstance(error, msgspec.ValidationError | TypeError)
    said = f"{found.name}: {found.message}" if own else found.message
    what = f"expected the params of {workflow.name} to be {workflow.params_type()!r}"
    return Failure(INVALID_PARAMS, bounded(f"{what}, found: {said}"), found.detail if own else None)
