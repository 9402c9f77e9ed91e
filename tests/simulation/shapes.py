"""The corpus of the engine's simulation: workflows whose outputs do not depend on timing.

Each shape is a root workflow, of the shape's name, and those that it starts. Callbacks are made by
`Work`: they tell the world that they begin, take virtual time, and fail as often as they are told.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from headwater import Concurrency, NonRetryableError, Retry, StepTx, WorkflowEvent, workflow
from headwater.streams.replay.host_port import ATTEMPT
from headwater.streams.replay.workflow import Workflow

#: For steps that succeed at last: how often a host is lost must not decide whether they do.
EVER = Retry(limit=float("inf"), delay="5 seconds", backoff="linear")
SOON = Retry(limit=float("inf"), delay=0, backoff="constant")
ONCE = Retry(limit=1, delay="3 seconds")


class Place(NamedTuple):
    """An entry of a run."""

    workflow: str
    instance_id: str
    run_number: int
    key: str


class Violation(AssertionError):
    """A law was broken."""


class Unreachable(Exception):
    """What a callback raises whose peer does not answer."""


class Port(Protocol):
    """What callbacks need of the process that runs them."""

    def begin(self, place: Place) -> None:
        """A callback begins."""

    def begin_undo(self, place: Place) -> None:
        """A rollback handler begins."""

    async def pass_time(self) -> None:
        """Takes virtual time."""

    async def hang(self) -> None:
        """Takes for ever."""

    def end(self, place: Place) -> int:
        """A callback is through; gives how often it was."""

    def drawn(self, place: Place, value: object) -> None:
        """The workflow's own code was given a value that must be the same on every replay."""


class Work:
    """Makes the callbacks of one run."""

    def __init__(self, port: Port, event: WorkflowEvent[Any]) -> None:
        self.port = port
        self.run = (event.workflow_name, event.instance_id, event.run_number)

    def place(self) -> Place:
        attempt = ATTEMPT.get()
        assert attempt is not None
        return Place(*self.run, attempt.key)

    def do(self, value: object = None, failures: int | None = None) -> Callable[[], Any]:
        """Gives a value after some failures; how many is drawn from its place if not told."""

        async def callback() -> object:
            position = self.place()
            self.port.begin(position)
            await self.port.pass_time()
            self._fail(position, failures)
            return value

        return callback

    def at_once(self, value: object = None, failures: int | None = None) -> Callable[[], Any]:
        """The same, as a function that is not async."""

        def callback() -> object:
            position = self.place()
            self.port.begin(position)
            self._fail(position, failures)
            return value

        return callback

    def broken(self, value: object = None, runs: int = 1) -> Callable[[], Any]:
        """Fails for good in the first runs, then gives a value."""

        async def callback() -> object:
            position = self.place()
            self.port.begin(position)
            await self.port.pass_time()
            self.port.end(position)
            if position.run_number < runs:
                raise NonRetryableError(f"{position.key} is broken")
            return value

        return callback

    def numbered(self) -> Callable[[], Any]:
        """Gives the number of the run in which it was done."""
        return self.do(self.run[2])

    def tx(self, fill: Callable[[StepTx], None], value: object = None) -> Callable[[StepTx], Any]:
        """A step with a transaction, which is also filled by attempts that fail."""

        async def callback(tx: StepTx) -> object:
            position = self.place()
            self.port.begin(position)
            fill(tx)
            await self.port.pass_time()
            self._fail(position, None)
            return value

        return callback

    def hangs(self) -> Callable[[], Awaitable[None]]:
        """Never comes back."""

        async def callback() -> None:
            self.port.begin(self.place())
            await self.port.hang()

        return callback

    def undo(self, key: str) -> Callable[[object], Awaitable[None]]:
        """A rollback handler."""

        async def handler(_: object) -> None:
            position = Place(*self.run, key)
            self.port.begin_undo(position)
            await self.port.pass_time()
            self._fail(Place(*self.run, f"undo {key}"), None)

        return handler

    def drawn(self, what: str, value: object) -> None:
        self.port.drawn(Place(*self.run, what), value)

    def _fail(self, place: Place, failures: int | None) -> None:
        if failures is None:
            failures = max(0, crc32(repr(place).encode()) % 5 - 2)
        ended = self.port.end(place)
        if ended <= failures:
            raise Unreachable(f"{place.key}, {ended}")


Body = Callable[[WorkflowEvent[Any], Any, Work], Awaitable[Any]]


@dataclass(frozen=True)
class Shape:
    """A root and those beside it.

    Shape:  script has type and payload of the events that a client sends to the root; `restarts`
            says that the root may be started again at any time and ends the same; `retries` that
            its failures are retried until it ends well; `graphs` are those that it needs, `limits`
            those of its workflows' concurrency. One without bodies or graphs is of another kind.
    """

    name: str
    bodies: dict[str, tuple[Body, bool]]
    script: tuple[tuple[str, object], ...] = ()
    restarts: bool = False
    retries: bool = False
    kind: str = "replay"
    graphs: tuple[str, ...] = ()
    limits: Mapping[str, Concurrency] = field(default_factory=dict)

    def kinds(self) -> dict[str, str]:
        graphs = dict.fromkeys(self.graphs, "graph")
        return dict.fromkeys([self.name, *self.bodies], self.kind) | graphs

    def workflows(self, port: Port) -> list[Workflow]:
        return [_workflow(port, name, *body) for name, body in self.bodies.items()]


def _workflow(port: Port, name: str, body: Body, strict: bool) -> Workflow:
    @workflow(name, strict=strict)
    async def run(event: WorkflowEvent[Any], step: Any) -> Any:  # noqa: ANN401
        return await body(event, step, Work(port, event))

    return run


SHAPES: dict[str, Shape] = {}


def shape(
    *beside: Body,
    strict: bool = False,
    restarts: bool = False,
    retries: bool = False,
    script: tuple[Any, ...] = (),
    limits: Mapping[str, Concurrency] | None = None,
) -> Callable[[Body], Body]:
    """Takes a root into the corpus, with those that it starts."""

    def take(body: Body) -> Body:
        name = body.__name__
        bodies = {name: (body, strict)} | {item.__name__: (item, False) for item in beside}
        SHAPES[name] = Shape(name, bodies, script, restarts, retries, limits=limits or {})
        return body

    return take
