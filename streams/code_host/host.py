"""A code host: runs authors' code, and speaks with owners in messages.

It decides nothing about runs and keeps nothing that is not recorded: whatever it holds may be lost
at any time. The workflows' own code runs here synchronously, each run on its own loop; steps run on
the real event loop, functions that are not async wherever `call_sync` puts them.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.replay.commands import CodeCommand, Raise, StepRaised, StepReturned
from headwater.processors.replay.errors import NonRetryableError, RollbackError, UnserialisableError
from headwater.processors.replay.state import Entry, EntryStatus
from headwater.schemas.history import EntryKind, Failure
from headwater.streams.authoring.attempt import ATTEMPT, Attempting, StepTx
from headwater.streams.authoring.values import encode
from headwater.streams.engine.host_protocol import (
    Activate,
    Advanced,
    Again,
    Ask,
    Drop,
    Forget,
    FromHost,
    HandlerAgain,
    HandlerDone,
    Resolved,
    Said,
    Started,
    ToHost,
)
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.host_port import Call, failure_of
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow, read_params

#: Calls a function that is not async, somewhere; gives its result.
CallSync: TypeAlias = Callable[..., Awaitable[Any]]

#: What asyncio says where no event loop is.
_LOOPLESS: Final = re.compile("no (running|current) event loop")

_Running: TypeAlias = dict[tuple[int, str], asyncio.Task[None]]


async def in_place(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Calls a function here and now."""
    return function(*arguments)


class Host:
    """The workflows of one process.

    Shape:  `emit` is called with each message for owners; who sends them gathers them into frames.
    """

    def __init__(
        self,
        workflows: Mapping[str, Workflow],
        *,
        emit: Callable[[FromHost], None],
        now_ms: Callable[[], int],
        call_sync: CallSync = in_place,
    ) -> None:
        self._workflows = dict(workflows)
        self._names = frozenset(workflows)
        self._emit = emit
        self.now_ms = now_ms
        self._call_sync = call_sync
        self._loop: asyncio.AbstractEventLoop
        self._activations: dict[int, Activation] = {}
        self._running: _Running = {}
        self._fresh: list[tuple[int, str]] = []
        self._counts: dict[int, int] = {}
        #: The activation whose own code has its turn, for whoever watches that turns are short.
        self.turn: int | None = None

    # -- from owners

    def hear(self, messages: Iterable[ToHost]) -> None:
        """Does what owners say."""
        # Asked here, because while a run has its turn the running loop is the run's own.
        self._loop = asyncio.get_running_loop()
        for message in messages:
            self.turn = message.activation
            if isinstance(message, Activate):
                self._activate(message)
            else:
                activation = self._activations.get(message.activation)
                if activation is not None:
                    self._tell(activation, message)
        self.turn = None

    def _activate(self, message: Activate) -> None:
        workflow = self._workflows.get(message.workflow)
        if workflow is None:
            known = ", ".join(sorted(self._names)) or "none"
            failure = Failure(
                "WORKFLOW_NOT_FOUND",
                f"expected one of the workflows of this app ({known}), found {message.workflow}",
            )
            self._emit(Said(message.activation, Raise(failure)))
            return
        try:
            payload = read_params(workflow, message.params)
        except (msgspec.ValidationError, TypeError) as why:
            failure = Failure(
                "WORKFLOW_PARAMS_INVALID",
                f"expected the params of {workflow.name} to be {workflow.params_type()!r}, "
                f"found: {why}",
            )
            self._emit(Said(message.activation, Raise(failure)))
            return
        activation = Activation(message, workflow, payload, self, Step)
        self._activations[message.activation] = activation
        activation.start()

    def _tell(self, activation: Activation, message: ToHost) -> None:
        match message:
            case Resolved():
                activation.resolved(message.key, _entry(activation, message))
                activation.pump()
            case Advanced():
                activation.advanced(message.key, message.sequence)
                activation.pump()
            case HandlerDone():
                activation.handler_done(message.key)
            case Again():
                activation.again(message.attempts, message.sequence)
            case HandlerAgain():
                activation.roll_back_again(message.key, message.attempt)
            case Drop():
                self.drop(activation, message.key)
                activation.dropped(message.key)
            case Ask():
                activation.ask()
            case Forget():
                activation.close()
                self._activations.pop(activation.number, None)
            case Activate():
                pass

    # -- from activations: the port `Outside`

    def workflows(self) -> frozenset[str]:
        """The names of the workflows that this host knows."""
        return self._names

    def say(self, activation: Activation, asked: CodeCommand) -> None:
        """Tells the owner."""
        self._emit(Said(activation.number, asked))

    def running(self, activation: Activation) -> int:
        """How many attempts and handlers of a run are under way."""
        return self._counts.get(activation.number, 0)

    def stop(self) -> None:
        """Lets everything go."""
        for activation in list(self._activations.values()):
            activation.close()
        self._activations.clear()

    def busy(self) -> int:
        """How many attempts and handlers are under way."""
        return len(self._running)

    def drop(self, activation: Activation, key: str | None) -> None:
        """Cancels what runs for a key, or for all keys of a run."""
        if key is None and not self._counts.get(activation.number):
            return
        number = activation.number
        keys = [each for each in self._running if each[0] == number and key in (None, each[1])]
        for each in keys:
            self._running[each].cancel()
            self._ended(each)

    def call(self, activation: Activation, call: Call) -> None:
        """Runs an attempt of a step."""
        place = (activation.number, call.reached.key)
        self._start(place, self._attempt(activation, call))

    def call_handler(
        self,
        activation: Activation,
        key: str,
        handler: Callable[[Any], Any],
        output: Any,  # noqa: ANN401
    ) -> None:
        """Runs a rollback handler."""
        self._start((activation.number, key), self._handle(activation, key, handler, output))

    def _start(self, place: tuple[int, str], work: Any) -> None:  # noqa: ANN401
        task = self._loop.create_task(work)
        self._running[place] = task
        self._fresh.append(place)
        self._counts[place[0]] = self._counts.get(place[0], 0) + 1

    def _ended(self, place: tuple[int, str]) -> None:
        if self._running.pop(place, None) is not None:
            left = self._counts[place[0]] - 1
            if left:
                self._counts[place[0]] = left
            else:
                del self._counts[place[0]]

    def still_running(self) -> list[Started]:
        """The attempts that have started since the last call and not ended; owners time them."""
        found = self.starting()
        self._fresh = []
        return found

    def starting(self) -> list[Started]:
        """What `still_running` would give now: before the first turn of what `hear` has started."""
        found = []
        for number, key in self._fresh:
            activation = self._activations.get(number)
            if (number, key) in self._running and activation is not None:
                started = activation.started(key)
                if started is not None:
                    found.append(started)
        return found

    # -- outside the workflows' loops

    async def _attempt(self, activation: Activation, call: Call) -> None:
        key, number = call.reached.key, call.attempt
        ATTEMPT.set(Attempting(key, number))
        tx = StepTx() if call.wants_tx else None
        asked: CodeCommand
        try:
            value = await self._invoke(call.callback, *(() if tx is None else (tx,)))
            asked = StepReturned(
                call.reached,
                number,
                call.policy,
                encode(value, f'the result of step "{call.reached.name}"'),
                call.rollback,
                tuple(tx.posts) if tx else (),
                tuple(tx.statements) if tx else (),
            )
        except BaseException as error:  # noqa: BLE001, whatever a step raises is the step's failure
            if self._running.get((activation.number, key)) is not asyncio.current_task():
                return  # It was dropped: nobody wants to know.
            retryable = not isinstance(
                error, NonRetryableError | RollbackError | UnserialisableError
            )
            failure = failure_of(error)
            if isinstance(error, RollbackError):
                # By this name it is known again when it is raised into the workflow.
                failure = msgspec.structs.replace(failure, name=RollbackError.__name__)
            asked = StepRaised(call.reached, number, failure, call.policy, retryable)
        self._settle(activation, call, asked)

    def _settle(self, activation: Activation, call: Call, asked: CodeCommand) -> None:
        place = (activation.number, call.reached.key)
        if self._running.get(place) is not asyncio.current_task():
            return
        self._ended(place)
        call.started = False
        if activation.closed:
            return
        if isinstance(asked, StepReturned):
            activation.owed.add(call.reached.key)
            call.returned = not asked.statements
        self._emit(Said(activation.number, asked))
        activation.ask()

    async def _handle(
        self,
        activation: Activation,
        key: str,
        handler: Callable[[Any], Any],
        output: Any,  # noqa: ANN401
    ) -> None:
        failed: BaseException | None = None
        ATTEMPT.set(Attempting(key, activation.entries[key].rollback_attempts + 1))
        try:
            await self._invoke(handler, output)
        except BaseException as error:  # noqa: BLE001, as for steps
            failed = error
        place = (activation.number, key)
        if self._running.get(place) is asyncio.current_task():
            self._ended(place)
            activation.handler_ended(key, failed)

    async def _invoke(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        try:
            value = await self._call_sync(function, *arguments)
        except RuntimeError as error:
            if not _LOOPLESS.search(str(error)):
                raise
            # In its thread is none. What asks for one, as `lambda: asyncio.gather(...)` does, is
            # written for it, and blocks nothing.
            value = function(*arguments)
        # A lambda that calls an async function gives its coroutine.
        return await value if inspect.isawaitable(value) else value


def _entry(activation: Activation, message: Resolved) -> Entry:
    """The entry as the message leaves it."""
    entry = activation.entries.get(message.key)
    call = activation.calls.get(message.key)
    if entry is None:
        entry = Entry(
            name=message.key,
            kind=EntryKind.DO,
            status=EntryStatus.PENDING,
            ordinal=call.reached.ordinal if call else activation.ordinal,
            created_at_ms=0,
            updated_at_ms=0,
        )
    entry.status = EntryStatus.COMPLETED if message.failure is None else EntryStatus.ERRORED
    entry.sequence = message.sequence
    entry.attempts = message.attempts
    entry.result, entry.failure = message.result, message.failure
    entry.rollback = message.rollback
    return entry
