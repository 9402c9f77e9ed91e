"""What an author's code holds: `step`, whose every call is an entry of the run's history."""

import asyncio
import inspect
import random
import types
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from processors.replay.commands import Log, Mark, Open, Reached
from processors.replay.errors import (
    ChildWorkflowError,
    DuplicateStepError,
    EventTimeoutError,
    NonDeterministicError,
    RollbackCheckpointError,
    RollbackError,
    StepFailedError,
    UniqueConstraintError,
)
from processors.replay.state import OPEN, Entry, EntryStatus
from processors.runs.durations import Duration, milliseconds
from processors.runs.limits import (
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    LOG_CATEGORY_MAX,
    LOG_MESSAGE_MAX,
    SLEEP_MAX_MS,
    STEP_NAME_MAX,
    SYSTEM,
    WAIT_DEFAULT_MS,
    WAIT_MAX_MS,
    WAIT_MIN_MS,
    name_fault,
)
from schemas.history import EntryKind, Failure
from streams.code_host import scopes
from streams.code_host.activation import Activation, Call
from streams.code_host.attempt import ATTEMPT
from streams.code_host.definition import ReceivedEvent, Retry, Won
from streams.code_host.values import decode, encode

_TIMEOUT: Final = "10 minutes"
_KINDS: Final = {
    "step": EntryKind.DO,
    "loop": EntryKind.LOOP,
    "sleep": EntryKind.SLEEP,
    "message": EntryKind.WAIT,
    "join": EntryKind.JOIN,
    "race": EntryKind.RACE,
    "child": EntryKind.CHILD,
    "checkpoint": EntryKind.CHECKPOINT,
}


class Suspended(BaseException):
    """The run was let go while its code was running: nothing of it matters any more."""


class Step:
    """The entries of one scope: the workflow itself, a branch, or an iteration of a loop."""

    def __init__(self, run: Activation, scope: str = "", *, above: "Step | None" = None) -> None:
        self.run = run
        self.scope = scope
        self.above = above
        self.lost = False
        self.checkpointed = above.checkpointed if above else False
        self._values: dict[str, int] = {}
        self.log = StepLog(self)

    # -- entries

    def do(
        self,
        name: str,
        callback: Callable[..., Any],
        *,
        retries: Retry | None = None,
        timeout: Duration = _TIMEOUT,  # noqa: ASYNC109, it is recorded and kept by the owner
        rollback: Callable[[Any], Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Calls a sync or async function once, durably, and gives its result.

        Shape:  callback takes no argument, or one: a StepTx. Its result is JSON.
        Units:  timeout, of each attempt.
        Errors: StepFailedError when no attempt is left; RollbackError as it was raised;
                DuplicateStepError, HistoryDivergedError, RollbackCheckpointError.
        """
        ticket = self.run.ticket()
        return self._track(
            ticket, name, self._do(ticket, name, callback, retries or Retry(), timeout, rollback)
        )

    async def _do(  # noqa: PLR0913, what an author may say of a step
        self,
        ticket: int,
        name: str,
        callback: Callable[..., Any],
        retries: Retry,
        timeout: Duration,  # noqa: ASYNC109
        rollback: Callable[[Any], Any] | None,
    ) -> Any:  # noqa: ANN401
        run = self.run
        key, entry = self.enter(ticket, name, EntryKind.DO)
        try:
            if rollback is not None:
                if not self.checkpointed:
                    raise RollbackCheckpointError(
                        f'expected `await step.checkpoint(...)` before the step "{name}", which '
                        "has a rollback; found none"
                    )
                run.handlers[key] = rollback
            if entry is None or entry.status in OPEN:
                self._call(key, name, callback, retries, timeout, rollback is not None, entry)
            else:
                run.next_ordinal(entry)
            entry = await run.result(key)
        finally:
            run.busy.discard(key)
        if entry.status is EntryStatus.COMPLETED:
            return decode(entry.result or "null")
        raise _step_error(name, entry)

    def _call(  # noqa: PLR0913
        self,
        key: str,
        name: str,
        callback: Callable[..., Any],
        retries: Retry,
        timeout: Duration,
        rollback: bool,  # noqa: FBT001
        entry: Entry | None,
    ) -> None:
        run = self.run
        policy = retries.policy()
        reached = Reached(
            key,
            name,
            run.next_ordinal(entry),
            run.outside.now_ms() if entry is None else entry.created_at_ms,
            policy.limit + 1,
            milliseconds(timeout),
        )
        call = Call(reached, callback, policy, wants_tx=wants_tx(callback), rollback=rollback)
        run.calls[key] = call
        if entry is None or entry.attempts == 0:
            call.attempt = 1
            run.run_call(call)
        elif entry.wake_at_ms is None:
            call.attempt = entry.attempts + 1
            run.run_call(call)

    def sleep(self, name: str, duration: Duration) -> Coroutine[Any, Any, None]:
        """Sleeps durably; at most 365 days."""
        ticket = self.run.ticket()
        return self._track(ticket, name, self._sleep(ticket, name, duration, None))

    def sleep_until(self, name: str, moment: datetime | float) -> Coroutine[Any, Any, None]:
        """Sleeps until an aware datetime, or a Unix time in milliseconds."""
        ticket = self.run.ticket()
        return self._track(ticket, name, self._sleep(ticket, name, None, moment))

    async def _sleep(
        self, ticket: int, name: str, duration: Duration | None, moment: datetime | float | None
    ) -> None:
        key, entry = self.enter(ticket, name, EntryKind.SLEEP)
        try:
            if entry is None:
                wait_ms = None if duration is None else milliseconds(duration)
                until_ms = None if moment is None else _moment_ms(moment)
                length_ms = wait_ms or (until_ms or 0) - self.run.outside.now_ms()
                if length_ms > SLEEP_MAX_MS:
                    raise ValueError(
                        f'expected the sleep "{name}" to last at most 365 days, '
                        f"found {duration if moment is None else moment!r}"
                    )
                self.open(key, name, EntryKind.SLEEP, wait_ms=wait_ms, wake_at_ms=until_ms)
            else:
                self.run.next_ordinal(entry)
            await self.run.result(key)
        finally:
            self.run.busy.discard(key)

    def wait_for_event(
        self,
        name: str,
        *,
        type: str,  # noqa: A002, the name of the contract
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Coroutine[Any, Any, ReceivedEvent]:
        """Waits for an event of a type; without a timeout for 24 hours.

        Errors: EventTimeoutError; ValueError for a timeout outside 1 second to 365 days.
        """
        ticket = self.run.ticket()
        return self._track(ticket, name, self._wait(ticket, name, (type,), None, timeout))

    def wait_for_events(
        self,
        name: str,
        *,
        types: Sequence[str],
        limit: int = 1,
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Coroutine[Any, Any, list[ReceivedEvent]]:
        """Waits for one event or more of some types; gives all there are up to a limit, or []."""
        ticket = self.run.ticket()
        return self._track(ticket, name, self._wait(ticket, name, tuple(types), limit, timeout))

    async def _wait(
        self,
        ticket: int,
        name: str,
        types: tuple[str, ...],
        limit: int | None,
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Any:  # noqa: ANN401
        key, entry = self.enter(ticket, name, EntryKind.WAIT)
        try:
            if entry is None:
                wait_ms = _wait_ms(name, types, limit, timeout)
                self.open(
                    key, name, EntryKind.WAIT, wait_ms=wait_ms, event_types=types, limit=limit
                )
            else:
                self.run.next_ordinal(entry)
            entry = await self.run.result(key)
        finally:
            self.run.busy.discard(key)
        if entry.failure is not None:
            raise EventTimeoutError(entry.failure.message)
        found = decode(entry.result or "null")
        return _event(found) if limit is None else [_event(each) for each in found]

    def run_workflow(  # noqa: PLR0913, the contract's
        self,
        name: str,
        workflow: str,
        *,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: Any = None,  # noqa: ANN401
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Coroutine[Any, Any, Any]:
        """Runs a child workflow and gives its output; the child ends with this run.

        Errors: ChildWorkflowError, when it fails, is ended, exists already or takes too long.
        """
        ticket = self.run.ticket()
        return self._track(ticket, name, self._child(ticket, name, workflow, id, params, timeout))

    async def _child(  # noqa: PLR0913
        self,
        ticket: int,
        name: str,
        workflow: str,
        instance_id: str | None,
        params: Any,  # noqa: ANN401
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Any:  # noqa: ANN401
        run = self.run
        workflow = str(getattr(workflow, "name", workflow))
        key, entry = self.enter(ticket, name, EntryKind.CHILD)
        try:
            if entry is None:
                child_id = instance_id or _child_id(run, key)
                fault = name_fault("an instance id", child_id, INSTANCE_ID_MAX)
                if fault:
                    raise ValueError(fault)
                if workflow not in run.outside.workflows():
                    known = ", ".join(sorted(run.outside.workflows()))
                    raise ChildWorkflowError(
                        f"expected one of the workflows {known}, found {workflow!r}"
                    )
                self.open(
                    key,
                    name,
                    EntryKind.CHILD,
                    wait_ms=None if timeout is None else milliseconds(timeout),
                    child_workflow=workflow,
                    child_id=child_id,
                    value=encode(params, f"the params of {workflow}"),
                )
            else:
                run.next_ordinal(entry)
            entry = await run.result(key)
        finally:
            run.busy.discard(key)
        if entry.failure is not None:
            raise ChildWorkflowError(entry.failure.message)
        return decode(entry.result or "null")

    def join(
        self, name: str, **branches: Callable[["Step"], Awaitable[Any]]
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """Runs branches at the same time and waits until all have settled.

        Shape:  each branch is async (step) -> JSON; gives their values by name.
        Errors: JoinError with the failures by name.
        """
        ticket = self.run.ticket()
        return self._track(ticket, name, scopes.join(self, ticket, name, branches))

    def race(
        self, name: str, **branches: Callable[["Step"], Awaitable[Any]]
    ) -> Coroutine[Any, Any, Won]:
        """Runs branches at the same time; the first that completes wins, the others are cancelled.

        Errors: RaceError when all of them fail.
        """
        ticket = self.run.ticket()
        return self._track(ticket, name, scopes.race(self, ticket, name, branches))

    def loop(  # noqa: PLR0913, the contract's
        self,
        name: str,
        body: Callable[["Step", Any], Awaitable[Any]],
        *,
        state: Any = None,  # noqa: ANN401
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Coroutine[Any, Any, Any]:
        """Calls a body with a state until it returns Break, and gives that one's value.

        Shape:  body is async (step, state) -> Continue(state) or Break(value). The state is
                recorded every `commit_interval` iterations, where a replay starts; entries of
                old iterations are forgotten every `history_every`, but for the `history_keep` last.
        """
        pace = scopes.Pace(commit_interval, history_every, history_keep)
        ticket = self.run.ticket()
        return self._track(ticket, name, scopes.loop(self, ticket, name, body, state, pace))

    def checkpoint(self, name: str) -> Coroutine[Any, Any, None]:
        """Marks the place from which on steps may have rollbacks."""
        ticket = self.run.ticket()
        return self._track(ticket, name, self._checkpoint(ticket, name))

    async def _checkpoint(self, ticket: int, name: str) -> None:
        key, entry = self.enter(ticket, name, EntryKind.CHECKPOINT)
        self.run.busy.discard(key)
        self.checkpointed = True
        self._mark(key, name, EntryKind.CHECKPOINT, entry)

    def removed(self, name: str, *, kind: str) -> Coroutine[Any, Any, None]:
        """Stands where an entry was that the code no longer has.

        Shape:  kind is step, loop, sleep, message, join, race, child or checkpoint.
        """
        ticket = self.run.ticket()
        return self._track(ticket, name, self._removed(ticket, name, kind))

    async def _removed(self, ticket: int, name: str, kind: str) -> None:
        if kind not in _KINDS:
            self.run.unawaited.pop(ticket, None)
            raise ValueError(f"expected kind to be one of {', '.join(_KINDS)}, found {kind!r}")
        key, entry = self.enter(ticket, name, _KINDS[kind], or_removed=True)
        self.run.busy.discard(key)
        self.run.covered.append(key)
        self._mark(key, name, EntryKind.REMOVED, entry)

    def _mark(self, key: str, name: str, kind: EntryKind, entry: Entry | None) -> None:
        ordinal = self.run.next_ordinal(entry)
        if entry is None:
            self.run.opened(key, name, kind, ordinal)
            self.run.say(Mark(key, name, kind, ordinal))

    # -- time and randomness

    def now(self, name: str | None = None) -> Coroutine[Any, Any, datetime]:
        """The time, recorded once."""
        ticket = self.run.ticket()
        return self._track(ticket, "now", self._now(ticket, name))

    async def _now(self, ticket: int, name: str | None) -> datetime:
        shown = self._value_name("now", name)
        key, entry = self.enter(ticket, shown, EntryKind.NOW)
        try:
            if entry is None:
                ordinal = self.run.next_ordinal(None)
                self.run.opened(key, shown, EntryKind.NOW, ordinal)
                self.run.say(Mark(key, shown, EntryKind.NOW, ordinal), owed=key)
            entry = await self.run.result(key)
        finally:
            self.run.busy.discard(key)
        return _aware(int(entry.result or "0"))

    def random(self, name: str | None = None) -> Coroutine[Any, Any, float]:
        """A number in [0, 1), the same on every replay of this run."""
        ticket = self.run.ticket()
        return self._track(ticket, "random", self._random(ticket, name))

    async def _random(self, ticket: int, name: str | None) -> float:
        return random.Random(self._drawn(ticket, "random", name)).random()  # noqa: S311, TID251

    def uuid(self, name: str | None = None) -> Coroutine[Any, Any, str]:
        """A random UUID as text, the same on every replay of this run."""
        ticket = self.run.ticket()
        return self._track(ticket, "uuid", self._uuid(ticket, name))

    async def _uuid(self, ticket: int, name: str | None) -> str:
        return str(uuid.UUID(bytes=self._drawn(ticket, "uuid", name), version=4))

    def _drawn(self, ticket: int, what: str, name: str | None) -> bytes:
        """16 bytes from the run's recorded seed and this draw's place: no record of their own."""
        self.run.unawaited.pop(ticket, None)
        place = self.key(self._value_name(what, name))
        return blake2b(f"{self.run.begin.seed}/{place}".encode(), digest_size=16).digest()

    def _value_name(self, what: str, name: str | None) -> str:
        if name is not None:
            return f"@{what}:{name}"
        number = self._values[what] = self._values.get(what, 0) + 1
        return f"@{what}#{number}"

    # -- what scopes use too

    def key(self, name: str) -> str:
        """The key of a name in this scope."""
        return (
            f"{self.scope}/{name.replace('/', '%2F')}" if self.scope else name.replace("/", "%2F")
        )

    def enter(
        self, ticket: int, name: str, kind: EntryKind, *, or_removed: bool = False
    ) -> tuple[str, Entry | None]:
        """Begins a call of an entry: its key, and what is recorded of it."""
        run = self.run
        run.unawaited.pop(ticket, None)
        if run.closed or self._is_lost():
            raise Suspended
        if asyncio._get_running_loop() is not run.loop:  # noqa: SLF001
            raise NonDeterministicError(
                f'expected the entry "{name}" to be awaited by the workflow\'s own code, found it '
                "inside a step or a thread: call it outside, and pass its result in"
            )
        if not isinstance(name, str) or not 0 < len(name) <= STEP_NAME_MAX:
            shown = name[:40] + "…" if isinstance(name, str) else name
            found = f"{len(name)} characters: {shown!r}" if isinstance(name, str) else repr(name)
            raise ValueError(
                f"expected the name of an entry to be 1 to {STEP_NAME_MAX} characters, found {found}"
            )
        key = self.key(name)
        if key in run.busy:
            raise DuplicateStepError(
                f'expected one entry "{key}" at a time, found a second while the first is under '
                "way: give each its own name"
            )
        entry = run.entries.get(key)
        if entry is not None and entry.kind is not kind:
            if not (or_removed and entry.kind is EntryKind.REMOVED):
                raise run.diverged(key, entry.kind.value, kind.value)
        if entry is None:
            run.make_room(key)
        if run.workflow.strict and key in run.visited:
            raise run.diverged(key, kind.value, f"a second {kind.value} of the same name")
        run.visited.add(key)
        run.busy.add(key)
        return key, entry

    def open(self, key: str, name: str, kind: EntryKind, **more: Any) -> None:  # noqa: ANN401
        """Asks for an entry that is not a step."""
        ordinal = self.run.next_ordinal(None)
        self.run.opened(key, name, kind, ordinal)
        self.run.say(Open(key, name, kind, ordinal, **more))

    def _is_lost(self) -> bool:
        at: Step | None = self
        while at is not None:
            if at.lost:
                return True
            at = at.above
        return False

    def _track(
        self, ticket: int, name: str, coroutine: Coroutine[Any, Any, Any]
    ) -> Coroutine[Any, Any, Any]:
        self.run.unawaited[ticket] = (repr(name), coroutine)
        return coroutine


class StepLog:
    """Durable log lines. Lines of the workflow's own code are written again on replay, and say so."""

    def __init__(self, step: Step) -> None:
        self._step = step

    async def debug(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level debug."""
        self._write("debug", message, data, category)

    async def info(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level info."""
        self._write("info", message, data, category)

    async def warn(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level warn."""
        self._write("warn", message, data, category)

    async def error(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level error."""
        self._write("error", message, data, category)

    def _write(self, level: str, message: str, data: Any, category: str) -> None:  # noqa: ANN401
        if category == SYSTEM:
            raise ValueError(
                f"expected a category of your own, found {SYSTEM!r}, which is the engine's"
            )
        if not 0 < len(category) <= LOG_CATEGORY_MAX:
            raise ValueError(
                f"expected a category of 1 to {LOG_CATEGORY_MAX} characters, found {category[:80]!r}"
            )
        if len(message) > LOG_MESSAGE_MAX:
            raise ValueError(
                f"expected a log message of at most {LOG_MESSAGE_MAX} characters, "
                f"found {len(message)}"
            )
        run = self._step.run
        text = None if data is None else encode(data, "the data of a log line")
        attempt = ATTEMPT.get()
        key, number = (attempt.key, attempt.number) if attempt else (None, None)
        replayed = attempt is None and run.replaying
        run.say(Log(level, category, message, text, key, number, replayed))


def wants_tx(callback: Callable[..., Any]) -> bool:
    """Whether a callback has exactly one required positional parameter."""
    if isinstance(callback, types.FunctionType):
        # What `inspect` would find, at a hundredth of its time.
        return callback.__code__.co_argcount - len(callback.__defaults__ or ()) == 1
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 1


def _step_error(name: str, entry: Entry) -> Exception:
    failure = entry.failure or Failure("Error", "")
    if failure.name == "RollbackError":
        return RollbackError(failure.message)
    if failure.name == "UniqueConstraintError":
        return UniqueConstraintError(name, entry.attempts, failure)
    return StepFailedError(name, entry.attempts, failure)


def _wait_ms(
    name: str, types_: tuple[str, ...], limit: int | None, timeout: Duration | None
) -> int:
    for each in types_:
        fault = name_fault("an event type", each, EVENT_TYPE_MAX)
        if fault:
            raise ValueError(fault)
    if not types_ or (limit is not None and limit < 1):
        raise ValueError(
            f'expected "{name}" to have a type and a limit from 1, found {types_} and {limit}'
        )
    wait_ms = WAIT_DEFAULT_MS if timeout is None else milliseconds(timeout)
    if not WAIT_MIN_MS <= wait_ms <= WAIT_MAX_MS:
        raise ValueError(
            f'expected the timeout of "{name}" to be 1 second to 365 days, found {timeout!r}'
        )
    return wait_ms


def _event(found: dict[str, Any]) -> ReceivedEvent:
    return ReceivedEvent(found["type"], found["payload"], _aware(found["timestamp"]))


def _aware(ms: int) -> datetime:
    # Not fromtimestamp(ms / 1000), whose float loses the last millisecond now and then.
    return datetime.fromtimestamp(ms // 1_000, UTC) + timedelta(milliseconds=ms % 1_000)


def _moment_ms(moment: datetime | float) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(
                f"expected a datetime with a time zone, found {moment!r}: "
                "pass tzinfo, for example datetime.UTC"
            )
        return round(moment.timestamp() * 1_000)
    return round(moment)


def _child_id(run: Activation, key: str) -> str:
    begin = run.begin
    place = f"{begin.workflow}/{begin.instance_id}/{key}"
    return f"child_{blake2b(place.encode(), digest_size=12).hexdigest()}"
