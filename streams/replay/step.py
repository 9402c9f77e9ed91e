"""`step`: the API of workflow code. Every call is an entry of the run's history."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, overload

from typing_extensions import TypeVar

from headwater.processors.code.errors import (
    ChildWorkflowError,
    EventTimeoutError,
    RollbackCheckpointError,
)
from headwater.processors.code.state import Entry
from headwater.processors.runs.decisions import Reached
from headwater.processors.runs.durations import Duration, timeout_of
from headwater.processors.runs.limits import name_problem
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus
from headwater.streams.authoring.arguments import (
    check_callable,
    check_rollback,
    checked_event_types,
    default_child_id,
    received_event,
    require_async,
    retry_policy,
    sleep_length,
    step_error,
    wait_timeout_ms,
    wants_tx,
)
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.value_types import (
    ValueType,
    output_of,
    result_of_step,
    step_result_type,
)
from headwater.streams.authoring.values import decode, encode_params
from headwater.streams.authoring.workflow_values import (
    Break,
    Continue,
    Named,
    ReceivedEvent,
    Retry,
    Won,
    WorkflowOf,
    name_of,
)
from headwater.streams.replay import joins, loops
from headwater.streams.replay.branches import Branch
from headwater.streams.replay.hooks import Hook, hook_of
from headwater.streams.replay.host_port import ATTEMPT, Call, Handler
from headwater.streams.replay.markers import Markers
from headwater.streams.replay.step_log import StepLog

T = TypeVar("T")
R = TypeVar("R")
#: State and result of a loop.
S = TypeVar("S", default=Any)
V = TypeVar("V", default=Any)

_TIMEOUT: Final = "10 minutes"
_POLICY: Final = Retry().policy()


class Step(Markers):
    """The entries of one scope: the workflow itself, a branch, or an iteration of a loop."""

    @property
    def log(self) -> StepLog:
        """Log lines of the run. Every call must be awaited."""
        # Created on every use: stored, it and its scope would form a reference cycle.
        return StepLog(self)

    @property
    def traceparent(self) -> str:
        """W3C trace context, for requests to other services.

        Within a callback it is that of the attempt, elsewhere that of the run.
        """
        attempt = None if self.run.loop.is_executing() else ATTEMPT.get()
        context = None if attempt is None else attempt.context()
        return (self.run.begin.trace if context is None else context.text).partition(" ")[0]

    @overload
    def do(
        self,
        name: str,
        callback: Callable[[], Awaitable[T]],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,
        rollback: Callable[[T], object] | None = None,
        rollback_timeout: Duration = _TIMEOUT,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str,
        callback: Callable[[StepTx], Awaitable[T]],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,
        rollback: Callable[[T], object] | None = None,
        rollback_timeout: Duration = _TIMEOUT,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str,
        callback: Callable[[], T],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,
        rollback: Callable[[T], object] | None = None,
        rollback_timeout: Duration = _TIMEOUT,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str,
        callback: Callable[[StepTx], T],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,
        rollback: Callable[[T], object] | None = None,
        rollback_timeout: Duration = _TIMEOUT,
    ) -> Coroutine[Any, Any, T]: ...

    def do(
        self,
        name: str,
        callback: Callable[..., Any],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,
        rollback: Callable[[Any], object] | None = None,
        rollback_timeout: Duration = _TIMEOUT,
    ) -> Coroutine[Any, Any, Any]:
        """Call a sync or async function once, durably, and return its result, which is JSON.

        `callback` takes no argument, or a StepTx. `rollback` takes the step's result and undoes the
        step. `timeout` and `rollback_timeout` limit an attempt of either.

        Raises:
            StepFailedError: The last attempt failed.
            RollbackError: The callback raised it.
            DuplicateStepError: A call with the same name is still running.
            HistoryDivergedError: The history has another kind of entry under this name.
            RollbackCheckpointError: The step has a rollback and no checkpoint before it.
        """
        declared = step_result_type(callback)  # Resolves local types in the caller's frame.
        ticket = self.run.ticket()
        return self.track(
            ticket,
            name,
            self._do(
                ticket, name, callback, declared, retries, timeout, rollback, rollback_timeout
            ),
        )

    async def _do(  # noqa: PLR0913, PLR0917
        self,
        ticket: int,
        name: str,
        callback: Callable[..., Any],
        declared: ValueType | None,
        retries: Retry | None,
        timeout: Duration,  # noqa: ASYNC109
        rollback: Callable[[Any], Any] | None,
        rollback_timeout: Duration,
    ) -> Any:  # noqa: ANN401
        run = self.run
        key, entry = self.enter(ticket, name, EntryKind.DO)
        try:
            check_callable(name, callback)
            if rollback is not None:
                if not self.checkpointed:
                    raise RollbackCheckpointError(
                        f'expected `await step.checkpoint(...)` before the step "{name}", which '
                        "has a rollback; found none"
                    )
                what = f'the rollback_timeout of the step "{name}"'
                timeout_ms = timeout_of(what, rollback_timeout)
                run.handlers[key] = Handler(rollback, timeout_ms, declared)
            if entry is None or entry.status in OPEN:
                self._call(key, name, callback, declared, retries, timeout, rollback, entry)
            entry = await self.result_or_abandon(key)
        finally:
            self.leave(key)
        if entry.status is EntryStatus.COMPLETED:
            return result_of_step(name, entry.result, declared)
        raise step_error(name, entry)

    def _call(  # noqa: PLR0913, PLR0917
        self,
        key: str,
        name: str,
        callback: Callable[..., Any],
        declared: ValueType | None,
        retries: Retry | None,
        timeout: Duration,
        rollback: Callable[[Any], Any] | None,
        entry: Entry | None,
    ) -> None:
        run = self.run
        policy = _POLICY if retries is None else retry_policy(name, retries)
        timeout_ms = timeout_of(f'the timeout of the step "{name}"', timeout)
        tx = wants_tx(name, callback)
        if rollback is not None:
            check_rollback(name, rollback)
        if self.only_replays:
            return
        reached = Reached(
            key,
            name,
            run.journal.new_ordinal(key) if entry is None else entry.ordinal,
            run.host.now_ms() if entry is None else entry.created_at_ms,
            policy.limit + 1,
            timeout_ms,
        )
        call = Call(
            reached, callback, policy, wants_tx=tx, rollback=rollback is not None, declared=declared
        )
        if entry is None:
            call.attempt = 1
            run.calls.start(call)
        elif entry.wake_at_ms is None:
            call.attempt = entry.attempts + 1
            run.calls.start_after_replay(call, entry.last_attempt_at_ms or 0)
        else:
            run.calls.add(call)

    def sleep(self, name: str, duration: Duration) -> Coroutine[Any, Any, None]:
        """Sleep durably, at most 365 days or `max_sleep_days`."""
        ticket = self.run.ticket()
        return self.track(ticket, name, self._sleep(ticket, name, duration, until=False))

    def sleep_until(self, name: str, moment: datetime | float) -> Coroutine[Any, Any, None]:
        """Sleep until an aware datetime, or a Unix time in milliseconds."""
        ticket = self.run.ticket()
        return self.track(ticket, name, self._sleep(ticket, name, moment, until=True))

    async def _sleep(
        self, ticket: int, name: str, length: Duration | datetime, *, until: bool
    ) -> None:
        key, entry = self.enter(ticket, name, EntryKind.SLEEP)
        try:
            if entry is None:
                now_ms, days = self.run.host.now_ms(), self.run.limits.max_sleep_days
                wait_ms, until_ms = sleep_length(name, length, now_ms, days, until=until)
                self.open(key, name, EntryKind.SLEEP, wait_ms=wait_ms, wake_at_ms=until_ms)
            await self.result_or_abandon(key)
        finally:
            self.leave(key)

    def wait_for_event(
        self,
        name: str,
        *,
        type: str,  # noqa: A002, the name of the contract
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, ReceivedEvent]:
        """Wait for an event of a type, by default for 24 hours.

        Raises:
            EventTimeoutError: No event arrived in time.
            ValueError: The timeout is less than 1 second or more than 365 days.
        """
        ticket = self.run.ticket()
        return self.track(ticket, name, self._wait(ticket, name, (type,), None, timeout))

    def wait_for_events(
        self,
        name: str,
        *,
        types: Sequence[str],
        limit: int = 1,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, list[ReceivedEvent]]:
        """Wait for at least one event of some types. Return up to `limit` events, or []."""
        ticket = self.run.ticket()
        return self.track(ticket, name, self._wait(ticket, name, types, limit, timeout))

    def hook(self, name: str, *, timeout: Duration = "24 hours") -> Coroutine[Any, Any, Hook]:
        """Create a URL to which anyone who has it can send this run one event, until a timeout.

        Raises:
            NonRetryableError: No key of hooks is configured.
        """
        timeout_ms = timeout_of(f'the timeout of the hook "{name}"', timeout)

        def create() -> Hook:
            return hook_of(self.run, self.key(name), timeout_ms)

        return self.do(name, create)

    async def _wait(
        self,
        ticket: int,
        name: str,
        types: Sequence[str],
        limit: int | None,
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Any:  # noqa: ANN401
        key, entry = self.enter(ticket, name, EntryKind.WAIT)
        try:
            if entry is None:
                event_types = checked_event_types(name, types, self.run.limits)
                self.open(
                    key,
                    name,
                    EntryKind.WAIT,
                    wait_ms=wait_timeout_ms(name, event_types, limit, timeout),
                    event_types=event_types,
                    limit=limit,
                )
            entry = await self.result_or_abandon(key)
        finally:
            self.leave(key)
        if entry.failure is not None:
            raise EventTimeoutError(entry.failure.message)
        result = decode(entry.result or "null")
        return received_event(result) if limit is None else [received_event(e) for e in result]

    @overload
    def run_workflow(
        self,
        name: str,
        workflow: WorkflowOf[Any, R],
        *,
        id: str | None = None,
        params: object = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def run_workflow(
        self,
        name: str,
        workflow: str | Named,
        *,
        id: str | None = None,
        params: object = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, Any]: ...

    def run_workflow(
        self,
        name: str,
        workflow: str | Named,
        *,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: object = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a child workflow and return its output. The child ends with this run.

        Raises:
            ChildWorkflowError: The child failed, was ended, existed already, or took too long.
        """
        ticket = self.run.ticket()
        return self.track(ticket, name, self._child(ticket, name, workflow, id, params, timeout))

    async def _child(
        self,
        ticket: int,
        name: str,
        workflow: str | Named,
        instance_id: str | None,
        params: Any,  # noqa: ANN401
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Any:  # noqa: ANN401
        run = self.run
        child = name_of(workflow)
        key, entry = self.enter(ticket, name, EntryKind.CHILD)
        try:
            if entry is None:
                child_id = instance_id or default_child_id(
                    run.begin.workflow, run.begin.instance_id, key
                )
                longest = run.limits.max_workflow_name
                error = name_problem("the name of a workflow", child, longest, "max_workflow_name")
                longest = run.limits.max_instance_id
                error = error or name_problem(
                    "an instance id", child_id, longest, "max_instance_id"
                )
                if error:
                    raise ValueError(error)
                wait_ms = None
                if timeout is not None:
                    wait_ms = timeout_of(f'the timeout of "{name}"', timeout)
                self.open(
                    key,
                    name,
                    EntryKind.CHILD,
                    wait_ms=wait_ms,
                    child_workflow=child,
                    child_id=child_id,
                    value=encode_params(params, child, run.limits.max_params_bytes),
                )
            entry = await self.result_or_abandon(key)
        finally:
            self.leave(key)
        if entry.failure is not None:
            raise ChildWorkflowError(entry.failure.message)
        return output_of(workflow, decode(entry.result or "null"))

    def join(
        self, name: str, /, **branches: Callable[["Step"], Awaitable[T]]
    ) -> Coroutine[Any, Any, dict[str, T]]:
        """Run branches concurrently, wait until all settle, and return their values by name.

        Raises:
            JoinError: A branch failed. It has the failures by name.
        """
        ticket = self.run.ticket()
        return self.track(ticket, name, joins.join(self, ticket, name, _async_branches(branches)))

    def race(
        self, name: str, /, **branches: Callable[["Step"], Awaitable[T]]
    ) -> Coroutine[Any, Any, Won[T]]:
        """Run branches concurrently. The first that completes wins; the others are cancelled.

        Raises:
            RaceError: All branches failed.
        """
        ticket = self.run.ticket()
        return self.track(ticket, name, joins.race(self, ticket, name, _async_branches(branches)))

    @overload
    def loop(
        self,
        name: str,
        body: Callable[["Step", S], Awaitable[Continue[S] | Break[V]]],
        *,
        state: S,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Coroutine[Any, Any, V]: ...

    @overload
    def loop(
        self,
        name: str,
        body: Callable[["Step", None], Awaitable[Continue[None] | Break[V]]],
        *,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Coroutine[Any, Any, V]: ...

    def loop(
        self,
        name: str,
        body: Callable[["Step", Any], Awaitable[Any]],
        *,
        state: Any = None,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Coroutine[Any, Any, Any]:
        """Call a body with a state until it returns Break, and return that value.

        `body` is async (step, state) and returns Continue(state) or Break(value). The state is
        recorded every `commit_interval` iterations; a replay starts there. Entries of old
        iterations are trimmed every `history_every`, except for the `history_keep` last.
        """
        pace = loops.Pace(commit_interval, history_every, history_keep)
        ticket = self.run.ticket()
        body = require_async(f'the body of the loop "{name}"', body)
        return self.track(ticket, name, loops.loop(self, ticket, name, body, state, pace))


def _async_branches(branches: Mapping[str, Any]) -> dict[str, Branch["Step"]]:
    return {
        name: require_async(f'the branch "{name}"', branch) if callable(branch) else branch
        for name, branch in branches.items()
    }
