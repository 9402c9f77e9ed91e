"""What a test is refused, a server refuses: the same calls, to `WorkflowTest` and over HTTP.

The server is the gateway's application, whose commands go to a `WorkflowTest` of its own: owner and
engine are the same, and all that lies before them is what differs.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from litestar import Litestar

from headwater import Client, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.failures import CommandRefusedError
from headwater.schemas.history import ReplySent
from headwater.streams.workflows.client import Addressed
from tests.unit.gateway.memory_app import memory_app, memory_workflows


@dataclass
class Line:
    """Params of an order."""

    sku: str
    count: int = 1


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Takes anything, and waits."""
    if event.payload == "fail":
        raise ValueError("as its params say")
    return (await step.wait_for_event("word", type="word")).payload


@workflow("typed")
async def typed(event: WorkflowEvent[Line], step: Step) -> object:
    """Takes a line."""
    return event.payload.sku


class CommandsOf:
    """The commands of a gateway, which a test harness decides."""

    def __init__(self) -> None:
        self.ready = True
        self.test: WorkflowTest

    async def start(self) -> None:
        """Has nothing to start."""

    async def stop(self) -> None:
        """Has nothing to stop."""

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        """Send commands to the owner of the harness."""
        return [
            await self.test.send(command.workflow, command.instance_id, command.command)
            for command in commands
        ]


@pytest.fixture(scope="module")
def commands() -> CommandsOf:
    """The commands of the server."""
    return CommandsOf()


@pytest.fixture(scope="module")
def server(commands: CommandsOf) -> Litestar:
    """The application of a gateway. It takes a second to make."""
    return memory_app(workflows=memory_workflows(commands=commands))


def client_of(server: Litestar) -> Client:
    """A client of a server."""
    return Client(
        "http://headwater/api/workflows",
        # Postgres is away: an answer that waits until a write can be read waits in vain.
        headers={"authorization": "Bearer dev-workflow-key", "prefer": "respond-async"},
        transport=httpx2.ASGITransport(server),
        retries=0,
    )


Call = Callable[[Any], Awaitable[object]]


async def told(call: Call, world: Any) -> object:  # noqa: ANN401, a client or a test
    """What comes of a call: the ids that were created, or the error by its name and code."""
    try:
        result = await call(world)
    except CommandRefusedError as error:
        return type(error).__name__, error.code
    except Exception as error:  # noqa: BLE001, whatever it is, both have to raise it
        return type(error).__name__
    ids = [item.id for item in result] if isinstance(result, list) else []
    return "accepted", ids


def create(*arguments: object, of: str = "order", **more: object) -> Call:
    """Creates an instance."""
    return lambda world: world.workflow(of).create(*arguments, **more)


def batch(*instances: object, of: str = "order") -> Call:
    """Creates a batch."""
    return lambda world: world.workflow(of).create_batch(list(instances))


def send(*arguments: object, to: str = "there", of: str = "order") -> Call:
    """Sends an event."""

    async def call(world: Any) -> object:  # noqa: ANN401
        return await instance_of(world, of, to).send_event(*arguments)

    return call


def verb(name: str, *arguments: object, to: str = "there", **more: object) -> Call:
    """Does something to an instance."""

    async def call(world: Any) -> object:  # noqa: ANN401
        return await getattr(instance_of(world, "order", to), name)(*arguments, **more)

    return call


def instance_of(world: Any, name: str, instance_id: str) -> Any:  # noqa: ANN401
    """A handle."""
    return world.workflow(name).get(instance_id)


class Odd:
    """What JSON cannot have."""


DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]

CALLS: dict[str, Call] = {
    "create": create("new"),
    "create without params": create("new", None),
    "create what exists": create("there"),
    "create an id with a dash": create("-new"),
    "create an empty id": create(""),
    "create a long id": create("a" * 101),
    "create an id with a slash": create("a/b"),
    "create an id with a surrogate": create("\ud800"),
    "create an id that is a number": create(5),
    "create an id with a line feed": create("new\n"),
    "create of no workflow": create("new", of="missing"),
    "create of a bad name": create("new", of="a b"),
    "create with odd params": create("new", Odd()),
    "create with NaN": create("new", math.nan),
    "create with a deep value": create("new", DEEP),
    "create with a large value": create("new", "x" * 1_100_000),
    "create with a surrogate": create("new", "\ud800"),
    "create with a key that is None": create("new", {None: 1}),
    "create with a date": create("new", datetime(2026, 1, 1, tzinfo=UTC)),
    "create with a huge number": create("new", 10**5_000),
    "create typed": create("new", Line("tea"), of="typed"),
    "create typed as a dict": create("new", {"sku": "tea"}, of="typed"),
    "create typed without params": create("new", of="typed"),
    "create typed with other params": create("new", {"sku": 5}, of="typed"),
    "create typed with more params": create("new", {"sku": "a", "more": 1}, of="typed"),
    "labels": create("new", labels={"tenant": "acme"}),
    "a label with a bad name": create("new", labels={"a b": "acme"}),
    "a label that is a number": create("new", labels={"tenant": 5}),
    "a label with NUL": create("new", labels={"tenant": "\0"}),
    "many labels": create("new", labels={f"l{n}": "x" for n in range(17)}),
    "labels of another type": create("new", labels=["tenant"]),
    "batch": batch({"id": "a"}, {"id": "b", "params": 1}),
    "batch of none": batch(),
    "batch of 150": batch(*({"id": f"i-{n}"} for n in range(150))),
    "batch with what exists": batch({"id": "a"}, {"id": "there"}),
    "batch with one id twice": batch({"id": "a"}, {"id": "b"}, {"id": "a", "params": 2}),
    "batch with a bad id": batch({"id": "a"}, {"id": "-bad"}),
    "batch with a bad id far behind": batch(*({"id": f"i{n}"} for n in range(120)), {"id": ""}),
    "batch without an id": batch({"params": 1}),
    "batch with an id that is None": batch({"id": None}),
    "batch with another member": batch({"id": "a", "more": 1}),
    "batch of texts": batch("a", "b"),
    "batch with odd params": batch({"id": "a"}, {"id": "b", "params": Odd()}),
    "batch with bad labels": batch({"id": "a"}, {"id": "b", "labels": {"a b": "c"}}),
    "batch of typed": batch({"id": "a", "params": {"sku": 1}}, {"id": "b"}, of="typed"),
    "batch of no workflow": batch({"id": "a"}, of="missing"),
    "event": send("word"),
    "event with a payload": send("word", {"a": 1}),
    "event to none": send("word", to="missing"),
    "event of no type": send(""),
    "event with a dash": send("-word"),
    "event with a surrogate": send("\ud800"),
    "event of a number": send(5),
    "event of a long type": send("a" * 101),
    "event with an odd payload": send("word", Odd()),
    "event with a large payload": send("word", "x" * 1_100_000),
    "event with a typed payload": send("word", Line("tea")),
    "event to what has ended": send("word", to="ended"),
    "pause": verb("pause"),
    "pause what has ended": verb("pause", to="ended"),
    "pause none": verb("pause", to="missing"),
    "resume": verb("resume"),
    "resume what has ended": verb("resume", to="ended"),
    "terminate": verb("terminate"),
    "terminate with a reason": verb("terminate", "why"),
    "terminate with a long reason": verb("terminate", "x" * 1_001),
    "terminate with another reason": verb("terminate", 5),
    "terminate with a surrogate": verb("terminate", "\ud800"),
    "terminate what has ended": verb("terminate", to="ended"),
    "cancel": verb("cancel"),
    "cancel with a long reason": verb("cancel", "x" * 1_001),
    "cancel what has ended": verb("cancel", to="ended"),
    "restart": verb("restart"),
    "restart none": verb("restart", to="missing"),
    "retry what has not errored": verb("retry"),
    "retry from a step": verb("retry", "missing", to="failed"),
    "retry from no step": verb("retry", "", to="failed"),
    "retry from NUL": verb("retry", "\0", to="failed"),
    "retry from a number": verb("retry", 5, to="failed"),
    "retry from a surrogate": verb("retry", "\ud800", to="failed"),
    "retry from a long step": verb("retry", "a" * 4_097, to="failed"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_test_and_a_server_take_and_refuse_the_same(
    name: str, server: Litestar, commands: CommandsOf
):
    call = CALLS[name]

    async def both() -> tuple[object, object]:
        async with (
            WorkflowTest([order, typed]) as test,
            WorkflowTest([order, typed]) as other,
            client_of(server) as client,
        ):
            commands.test = other
            for world in (test, other):
                await prepare(world)
            return await told(call, test), await told(call, client)

    in_test, on_server = asyncio.run(both())
    assert in_test == on_server


async def prepare(test: WorkflowTest) -> None:
    """Create the instances that the calls are about."""
    await test.create("order", id="there")
    await test.create("order", id="failed", params="fail")
    await (await test.create("order", id="ended")).terminate()
    await test.run_until_idle()
