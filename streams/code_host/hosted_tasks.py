"""The tasks of a graph run in a host. They involve no workflow code."""

import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from headwater.processors.code.errors import NonRetryableError, UnserialisableError
from headwater.processors.graph.host_messages import CallTasks, TaskCall
from headwater.processors.runs.host_messages import Requested, YieldBack
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.schemas.history import Failure
from headwater.streams.authoring.attempt import ATTEMPT, CurrentAttempt
from headwater.streams.authoring.failures import failure_of, traceback_of
from headwater.streams.authoring.tasks import Task, TaskInfo, task
from headwater.streams.authoring.values import encode
from headwater.streams.code_host.hosted_run import Attempt, HostServices, invoke
from headwater.streams.replay.host_port import Call

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
                attempt.current = CurrentAttempt(key, task_call.attempt, self._instance)
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
        ATTEMPT.set(attempt.current)
        ended: StepReturned | StepRaised
        try:
            function = task_.function
            if task_.takes_info:
                function = partial(function, info=self._info(call))
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

    def _info(self, call: TaskCall) -> TaskInfo:
        run = self._begin
        return TaskInfo(
            workflow_name=run.workflow,
            instance_id=run.instance_id,
            run_number=run.run_number,
            token_id=call.reached.key,
            node_ref=call.reached.name,
            attempt=call.attempt,
            idempotency_token=call.idempotency_token,
        )

    def _send(self, ended: StepReturned | StepRaised) -> None:
        if isinstance(ended, StepRaised):
            failure = ended.failure
            trace = traceback_of(failure) or f"{failure.name}: {failure.message}"
            location = (ended.step.name, ended.step.key, ended.attempt)
            what = "%s: node %s, token %s, attempt %d failed: %s"
            log.warning(what, self._instance, *location, trace.rstrip())
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
