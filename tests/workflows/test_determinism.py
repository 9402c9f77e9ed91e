"""The laws: a run with crashes ends like the run without, and nothing completed runs again."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headwater import (
    Break,
    ChildWorkflowError,
    Continue,
    EventTimeoutError,
    JoinError,
    NonRetryableError,
    Retry,
    Step,
    StepFailedError,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.schemas.answers import InstanceStatus
from tests.workflows.running import Instance, Unreachable, pass_time, published, run

ENDED = ("complete", "errored", "terminated")
#: Of ten seconds each; the longest shape takes twelve minutes and its retries.
ROUNDS = 120
SHAPES: dict[str, Callable[["Probe"], list[object]]] = {}


@dataclass
class Probe:
    """Makes callbacks; remembers which began and which ended, and can hold one in its midst."""

    hold: int = 0
    held: bool = False
    begun: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    drawn: set[tuple[object, ...]] = field(default_factory=set)

    def of(self, name: str, value: object = None, failures: int = 0) -> object:
        async def callback() -> object:
            self.begun.append(name)
            if len(self.begun) == self.hold:
                self.held = True
                await pass_time("1 day")
            self.ended[name] += 1
            if self.ended[name] <= failures:
                raise Unreachable(f"{name} {self.ended[name]}")
            return value

        return callback


def shape(build: Callable[[Probe], list[object]]) -> Callable[[Probe], list[object]]:
    """Take a workflow, called `order`, and those beside it into the corpus."""
    SHAPES[build.__name__] = build
    return build


@shape
def line(probe: Probe) -> list[object]:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        total = 0
        key = await step.uuid()
        for number in range(4):
            probe.drawn.add((key, await step.random("dice"), (await step.now("begun")).isoformat()))
            total += await step.do(f"step {number}", probe.of(f"step {number}", number))
            await step.sleep(f"nap {number}", "1 minute")
        return total

    return [order]


@shape
def retries(probe: Probe) -> list[object]:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.do("first", probe.of("first", 1, failures=2))
        try:
            await step.do("second", probe.of("second", failures=9), retries=Retry(limit=1))
        except StepFailedError as error:
            return [first, error.attempts, await step.do("third", probe.of("third", 3))]
        return None

    return [order]


@shape
def nested_loops(probe: Probe) -> list[object]:
    async def turn(step: Step, state: dict) -> object:
        name = f"turn {state['outer']}.{state['n']}"
        state = {**state, "sum": state["sum"] + await step.do("work", probe.of(name, state["n"]))}
        await step.sleep("nap", "1 minute")
        if state["n"] == 3:
            return Break(state["sum"])
        return Continue({**state, "n": state["n"] + 1})

    async def one_round(step: Step, state: dict) -> object:
        number = len(state["sums"])
        await step.do("open", probe.of(f"open {number}"))
        begin = {"outer": number, "n": 0, "sum": 0}
        options = {"commit_interval": 2, "history_every": 1, "history_keep": 1}
        sums = [*state["sums"], await step.loop("turns", turn, state=begin, **options)]
        return Break(sums) if len(sums) == 3 else Continue({"sums": sums})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("rounds", one_round, state={"sums": []}, commit_interval=2)

    return [order]


@shape
def join_in_race(probe: Probe) -> list[object]:
    async def slow(step: Step) -> object:
        await step.do("begin", probe.of("slow begins"))
        await step.sleep("nap", "3 minutes")
        return await step.do("end", probe.of("slow ends", "slow"))

    async def quick(step: Step) -> object:
        return await step.do("load", probe.of("quick", "quick", failures=1))

    async def joined(step: Step) -> object:
        both = await step.join("both", slow=slow, quick=quick)
        return [both["slow"], both["quick"]]

    async def never(step: Step) -> object:
        await step.sleep("nap", "1 hour")
        return await step.do("never", probe.of("never"))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", never=never, joined=joined)
        await step.sleep("cool off", "5 minutes")
        return [first.winner, first.value]

    return [order]


@shape
def branches_that_are_over(probe: Probe) -> list[object]:
    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> object:
        return await step.do("charge", probe.of("charge", 5))

    async def one_page(step: Step, state: dict) -> object:
        await step.do("fetch", probe.of(f"fetch {state['n']}"))
        return Break(state["n"]) if state["n"] == 2 else Continue({"n": state["n"] + 1})

    async def everything(step: Step) -> object:
        await step.checkpoint("before money")
        probe.drawn.add((await step.uuid(), await step.random(), (await step.now()).isoformat()))
        await step.log.info("on the way")
        line = await step.wait_for_event("line", type="line")
        paid = await step.run_workflow("bill", "invoice", id="inv-1")
        pages = await step.loop("pages", one_page, state={"n": 0}, commit_interval=2)
        return [line.payload, paid, pages, await step.do("end", probe.of("end", 1, failures=2))]

    async def races(step: Step) -> object:
        async def slow(step: Step) -> None:
            await step.do("begin", probe.of("slow begins"))
            await step.loop("never", never, state={})

        async def never(step: Step, state: dict) -> object:
            await step.sleep("nap", "1 hour")
            return Continue(state)

        async def quick(step: Step) -> str:
            await asyncio.gather(*(step.sleep(f"nap {n}", "30 seconds") for n in range(3)))
            return "quick"

        return (await step.race("fastest", slow=slow, quick=quick)).winner

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("both", everything=everything, races=races)
        await step.sleep("gap", "5 minutes")
        return [both["everything"], both["races"], await step.do("last", probe.of("last", 2))]

    return [order, invoice]


@shape
def failing_join(probe: Probe) -> list[object]:
    async def fails(step: Step) -> None:
        await step.do("load", probe.of("fails", failures=9), retries=Retry(limit=1))

    async def waits(step: Step) -> object:
        await step.sleep("nap", "5 minutes")
        return await step.do("load", probe.of("waits", 1))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.join("both", fails=fails, waits=waits)
        except JoinError as error:
            return [sorted(error.errors), await step.do("after", probe.of("after", 2))]
        return None

    return [order]


@shape
def events(probe: Probe) -> list[object]:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("begin", probe.of("begin"))
        first = await step.wait_for_event("first", type="line")
        lines = await step.wait_for_events("rest", types=["line"], limit=5, timeout="1 hour")
        try:
            await step.wait_for_event("never", type="never", timeout="2 minutes")
        except EventTimeoutError:
            await step.do("end", probe.of("end"))
        return [first.payload, [line.payload for line in lines]]

    return [order]


@shape
def rollback(probe: Probe) -> list[object]:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        def undo(name: str) -> object:
            return probe.of(f"undo {name}")()

        await step.checkpoint("before money")
        for name in ("a", "b", "c"):
            await step.do(name, probe.of(name, name), rollback=undo)
            await step.sleep(f"nap {name}", "1 minute")
        raise NonRetryableError("sold out")

    return [order]


@shape
def children(probe: Probe) -> list[object]:
    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> object:
        await step.sleep("wait", "1 minute")
        if event.payload == "bad":
            raise LookupError("out of paper")
        return await step.do("charge", probe.of(f"charge {event.payload}", event.payload))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        paid = await step.run_workflow("bill", "invoice", id="inv-1", params="good")
        try:
            await step.run_workflow("bill again", "invoice", id="inv-2", params="bad")
        except ChildWorkflowError:
            return [paid, await step.do("complain", probe.of("complain", "sorry"))]
        return None

    return [order, invoice]


@shape
def transactions(probe: Probe) -> list[object]:
    async def one_page(step: Step, state: dict) -> object:
        number = state["n"]

        async def save(tx: StepTx) -> None:
            tx.publish("pages", "order", number)
            await probe.of(f"save {number}")()

        await step.do("save", save)
        await step.sleep("nap", "1 minute")
        return Break(number) if number == 4 else Continue({"n": number + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("pages", one_page, state={"n": 0}, commit_interval=3)

    return [order]


@dataclass
class Ending:
    """All that one run has shown to the outside."""

    status: InstanceStatus
    probe: Probe
    records: list[tuple[object, object]]

    def words(self) -> tuple[object, ...]:
        error = self.status.error
        fault = None if error is None else (error.name, error.message)
        return (self.status.status, self.status.output, fault, self.records)


def ending(name: str, *, crash: bool = False, hold: int = 0) -> Ending:
    """Run a shape to its end: undisturbed, with a crash after every tick, or in one callback."""
    probe = Probe(hold=hold)
    result: list[Ending] = []

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1", params={"n": 1})
        for payload in (1, 2, 3):
            await instance.send_event("line", payload)
        await finish(test, instance, probe, crash=crash)
        records = published(test, "pages")
        result.append(Ending(await instance.status(), probe, records))

    run(scenario, *SHAPES[name](probe))
    return result[0]


async def finish(test: WorkflowTest, instance: Instance, probe: Probe, *, crash: bool) -> None:
    """Tick and advance until the instance has ended."""
    for _ in range(ROUNDS):
        if crash:
            await tick_and_crash(test)
        await test.run_until_idle()
        if probe.held:
            probe.held = False
            await test.crash()
            await test.run_until_idle()
        if (await instance.status()).status in ENDED:
            return
        await test.advance("10 seconds")
        if probe.held or crash:
            probe.held = False
            await test.crash()
    pytest.fail(f"still {(await instance.status()).status} after {ROUNDS} rounds")


async def tick_and_crash(test: WorkflowTest) -> None:
    """Crash after each tick, until a tick has nothing to do."""
    for _ in range(20):
        processed = await test.tick(max_instances=1)
        await test.crash()
        if not processed:
            return


CORPUS = pytest.mark.parametrize("name", SHAPES)


@CORPUS
def test_a_crash_after_every_tick_changes_neither_the_output_nor_what_ran(name: str):
    plain, crashed = ending(name), ending(name, crash=True)
    assert plain.status.status in ENDED
    assert crashed.words() == plain.words()
    assert crashed.probe.ended == plain.probe.ended


@CORPUS
def test_a_crash_in_any_callback_repeats_that_callback_only(name: str):
    plain = ending(name)
    for number in range(1, len(plain.probe.begun) + 1):
        crashed = ending(name, hold=number)
        where = f"crash in call {number}, {crashed.probe.begun[number - 1]}"
        assert crashed.words() == plain.words(), where
        assert crashed.probe.ended == plain.probe.ended, where
        assert len(crashed.probe.begun) == len(plain.probe.begun) + 1, where


@pytest.mark.parametrize("name", ["line", "branches_that_are_over"])
@pytest.mark.parametrize("hold", [0, 1, 2, 3, 4])
def test_values_that_the_code_was_given_are_the_same_after_a_crash(hold: int, name: str):
    assert len(ending(name, crash=hold == 0, hold=hold).probe.drawn) == 1


async def snapshot(instance: Instance) -> list[object]:
    """All that the history says of steps and events."""
    history = await instance.history()
    steps = [
        (
            *(entry.step_key, entry.name, entry.type, entry.status, entry.attempts),
            *(entry.max_attempts, entry.result, entry.next_retry_at, entry.wake_at),
            None if entry.error is None else (entry.error.name, entry.error.message),
            *(entry.created_at, entry.run_number),
        )
        for entry in history.steps
    ]
    events = [(event.payload, event.delivered_at) for event in history.events]
    return [(await instance.status()).status, steps, events]


@CORPUS
def test_a_replay_of_unchanged_code_adds_nothing_to_the_history(name: str):
    probe = Probe()

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1", params={"n": 1})
        for payload in (1, 2, 3):
            await instance.send_event("line", payload)
        await test.run_until_idle()
        for _ in range(12):
            before, begun = await snapshot(instance), list(probe.begun)
            for _ in range(2):
                await test.crash()
                await test.run_until_idle()
                assert await snapshot(instance) == before
            assert probe.begun == begun
            await test.advance("1 minute")

    run(scenario, *SHAPES[name](probe))


def test_the_tasks_of_a_group_are_cancelled_in_the_order_in_which_they_were_begun():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> list[int]:
        seen: list[int] = []

        async def waits(number: int) -> None:
            try:
                await step.sleep(f"nap {number}", "1 hour")
            finally:
                seen.append(number)

        try:
            async with asyncio.TaskGroup() as group:
                # Backwards: memory that is free again is given out in the order of addresses.
                for number in reversed(range(30)):
                    group.create_task(waits(number))
                await step.wait_for_event("begin", type="begin", timeout="1 minute")
        except* EventTimeoutError:
            pass
        return seen

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        await test.advance("1 minute")
        assert await instance.result() == [*reversed(range(30))]

    run(scenario, order)
