"""An error while one instance is handled costs that instance, and nothing else of its partition.

An engine raises at a chosen call for one instance, once or from then on. Everything is compared
with a world in which it does not: what others did, and what the log holds of them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.code.engine import ReplayEngine
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.runs.engine import fold
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.schemas.failures import INTERNAL, CommandRefusedError
from headwater.schemas.history import (
    Command,
    HistoryAppended,
    PauseRun,
    PostsQueued,
    ResumeRun,
    RunStarted,
    SendEvent,
    StartRun,
)
from headwater.streams.engine.driver import Driver
from tests.workflows.graphing import edge, graph, node, worker

BAD = "bad"
GOOD = ("good-1", "good-2")
#: What the owner calls while a command or a request is handled, and what it does with states.
METHODS = (
    "decide_command", "decide", "fail_run", "begin", "apply", "message_for_host", "activate",
    "is_runnable", "attempts_due", "next_wake_ms", "expected_attempt",
)  # fmt: skip


class Injected(Exception):
    """What an engine raises that is broken."""


class Faults:
    """At which call of a method an engine raises, for the instance `bad`."""

    def __init__(self, method: str = "", at: int = -1, *, forever: bool = False) -> None:
        self.method, self.at, self.forever = method, at, forever
        self.error: type[Exception] = Injected
        self.calls: Counter[str] = Counter()
        #: Only while a turn lasts: the test itself folds histories, too.
        self.armed = False
        self.raised = 0

    def meet(self, method: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed or BAD not in _names(arguments):
            return
        count = self.calls[method]
        self.calls[method] += 1
        if method == self.method and (count == self.at or (self.forever and count > self.at)):
            self.raised += 1
            raise self.error(f"call {count} of {method}")


def _names(arguments: tuple[Any, ...]) -> Iterator[str]:
    return (argument.instance_id for argument in arguments if hasattr(argument, "instance_id"))


class Broken:
    """An engine that may raise."""

    def __init__(self, engine: Any, faults: Faults) -> None:  # noqa: ANN401
        self._engine, self._faults = engine, faults

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        result = getattr(self._engine, name)
        if name not in METHODS:
            return result

        def call(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401
            self._faults.meet(name, arguments)
            return result(*arguments, **more)

        return call


@workflow("child")
async def child(event: WorkflowEvent, step: Step) -> int:
    return await step.do("work", lambda: 2)


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> Any:  # noqa: ANN401
    first = await step.do("first", lambda: 1)
    await step.sleep("rest", "1 minute")
    answer = await step.wait_for_event("answer", type="answer", timeout="1 hour")
    second = await step.run_workflow("child", child)
    await step.do("tell", lambda tx: tx.publish("told", "k", first))
    return [first, answer.payload, second]


FLOW = graph(
    [node("start"), node("work", "work", inputMapping={"item": "item"}), node("end")],
    [
        edge(
            "start", "work", siblingGroup="g", foreach={"collection": "[1, 2]", "itemVar": "item"}
        ),
        edge("work", "end", synchronization={"strategy": "all", "siblingGroup": "g"}),
    ],
    name="flow",
)


class World:
    """What came of a scene: codes of refusals by instance, statuses, and records."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.codes: dict[tuple[str, str], list[str]] = {}
        self.records: dict[tuple[str, str], list[HistoryAppended]] = {}
        self.statuses: dict[tuple[str, str], Any] = {}
        self.published: list[Any] = []

    async def play(self, name: str) -> None:
        engines = [
            Broken(ReplayEngine(ENTRIES_MAX), self.faults), Broken(GraphEngine(), self.faults)
        ]  # fmt: skip
        known: list[WorkflowTest] = []
        tasks = [worker(known, [])]
        test = WorkflowTest([order, child, FLOW], tasks=tasks)
        graphs = test._engines[GraphEngine.kind]
        engines[1] = Broken(graphs, self.faults)
        test._engines = {**test._engines, **{engine.kind: engine for engine in engines}}
        numbers: Counter[str] = Counter()

        def new_id(prefix: str) -> str:
            numbers[prefix] += 1
            return f"{prefix}_{numbers[prefix]}"

        test.new_id = new_id  # type: ignore[method-assign]
        async with test:
            known.append(test)
            self._arm(test._driver)
            ids = (GOOD[0], BAD, GOOD[1])
            for command in (StartRun("null"), None, PauseRun(), ResumeRun()):
                for item in ids if command else ():
                    await self._do(test, name, item, command)
                await test.advance("1 minute")
            for item in ids:
                await self._do(test, name, item, SendEvent(f"event-{item}", "answer", "7"))
            await test.advance("2 hours")
            self._see(test, name, ids)
            self._check_memory(test)
            await test.crash()
            await test.advance("1 day")
            for item in ids:
                self.statuses[name, item] = await self._status(test, name, item)
            self.published = [record.value for record in test.published("told")]

    def _arm(self, driver: Driver) -> None:
        turn = driver.turn

        def armed(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401
            self.faults.armed = True
            try:
                return turn(*arguments, **more)
            finally:
                self.faults.armed = False

        driver.turn = armed  # type: ignore[method-assign]

    async def _do(self, test: WorkflowTest, name: str, instance: str, command: Command) -> None:
        reply = await test.send(name, instance, command)
        self.codes.setdefault((name, instance), []).append(reply.code)

    async def _status(self, test: WorkflowTest, name: str, instance: str) -> Any:  # noqa: ANN401
        try:
            result = await test.get(name, instance).status()
        except CommandRefusedError:
            return None
        error = None if result.error is None else result.error.name
        return result.status, result.output, error

    def _see(self, test: WorkflowTest, name: str, ids: tuple[str, ...]) -> None:
        for item in ids:
            try:
                self.records[name, item] = list(test.records(name, item))
            except CommandRefusedError:
                self.records[name, item] = []

    def _check_memory(self, test: WorkflowTest) -> None:
        """The owner's memory is the fold of the log, but for what is quarantined."""
        for live in test._owner.instances.all_in_memory():
            assert not live.damaged
            state = None
            for record in test.records(live.run.workflow, live.run.instance_id):
                state = fold(test._engines, state, record)
            assert live.run.sequence == state.sequence
            assert live.run.status is state.status


def played(name: str, faults: Faults) -> World:
    world = World(faults)
    asyncio.run(world.play(name))
    return world


def told(records: list[HistoryAppended]) -> list[Any]:
    """What records say, but for seeds and places in the log, which depend on what is before."""
    said = []
    for record in records:
        for event in record.events:
            if isinstance(event, RunStarted):
                event = msgspec.structs.replace(event, seed="")  # noqa: PLW2901
            if isinstance(event, PostsQueued):
                posts = tuple(msgspec.structs.replace(post, order=0) for post in event.posts)
                event = PostsQueued(posts)  # noqa: PLW2901
            said.append((record.at_ms, event))
    return said


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {name: played(name, Faults()) for name in ("order", "flow")}


def check(plain: World, name: str, faults: Faults) -> None:
    world = played(name, faults)
    assert faults.raised, "the call that was to fail was not made"
    for item in GOOD:
        assert told(world.records[name, item]) == told(plain.records[name, item])
        assert world.codes[name, item] == plain.codes[name, item]
        assert world.statuses[name, item] == plain.statuses[name, item]
    # Each command has an outcome, and what is left of the instance has ended, or goes on.
    assert {*world.codes[name, BAD]} <= {
        "", INTERNAL, "INSTANCE_NOT_FOUND", "INSTANCE_TERMINAL", "NOT_PAUSED"
    }  # fmt: skip
    status = world.statuses[name, BAD]
    assert status is None or status[0] in {"complete", "waiting", "errored", "paused"}
    if status is not None and status[0] == "errored":
        assert status[2] in {INTERNAL, "EventTimeoutError"}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["order", "flow"])
def test_an_error_at_any_call_costs_its_instance_alone(
    worlds: dict[str, World],
    name: str,
    method: str,
    forever: bool,
    caplog: pytest.LogCaptureFixture,
):
    plain = worlds[name]
    count = plain.faults.calls[method]
    with caplog.at_level(logging.CRITICAL):
        for at in range(count):
            check(plain, name, Faults(method, at, forever=forever))


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyError, NotImplementedError])
def test_any_exception_is_contained(worlds: dict[str, World], error: type[Exception]):
    for method in ("decide_command", "decide", "apply"):
        faults = Faults(method, 1, forever=True)
        faults.error = error
        check(worlds["order"], "order", faults)


def test_a_run_that_fails_whenever_it_is_woken_ends_with_a_named_error(
    worlds: dict[str, World],
):
    faults = Faults("decide", 1, forever=True)
    world = played("order", faults)
    assert faults.raised == 1, "it is not tried again"
    assert world.statuses["order", BAD] == ("errored", None, INTERNAL)


def test_what_ends_a_process_is_not_contained():
    faults = Faults("decide", 1)
    faults.error = KeyboardInterrupt  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        played("order", faults)
