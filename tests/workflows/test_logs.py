"""`step.log`: lines that last, and say where and when they were written."""

# The linter takes `step.log` for the standard library's logger.
# ruff: noqa: G004, G010, PLE1205

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from headwater import (
    Break,
    Continue,
    Retry,
    Step,
    StepFailedError,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import CRASH, HOUR, START, begin, error_of, output, output_of, run


async def lines_of(instance: object, *attributes: str) -> list[tuple[object, ...]]:
    """These attributes of each line that the author has written."""
    return [
        tuple(getattr(line, attribute) for attribute in attributes)
        for line in (await instance.history()).logs
        if line.category != "system"
    ]


def test_lines_are_kept_in_order_with_level_category_message_and_data():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.debug("one", {"amount": 125}, category="payments")
        await step.log.info("two", [1, 2], category="payments")
        await step.log.warn("three", "text", category="shipping")
        await step.log.error("four", category="shipping")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await lines_of(instance, "level", "category", "message", "data") == [
            ("debug", "payments", "one", {"amount": 125}),
            ("info", "payments", "two", [1, 2]),
            ("warn", "shipping", "three", "text"),
            ("error", "shipping", "four", None),
        ]

    run(scenario, order)


def test_a_line_of_the_body_belongs_to_no_step_and_has_its_time():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("cool off", "1 hour")
        await step.log.info("awake")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert await lines_of(instance, "step_key", "attempt", "created_at") == [
            (None, None, START + HOUR)
        ]

    run(scenario, order)


def test_a_line_of_a_callback_names_its_step_and_attempt():
    attempts: list[int] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def charge() -> None:
            attempts.append(1)
            await step.log.info("charging")
            if len(attempts) == 1:
                raise ConnectionError("bank is closed")

        await step.do("charge", charge)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("10 seconds")
        await output_of(instance)
        assert await lines_of(instance, "message", "step_key", "attempt") == [
            ("charging", "charge", 1),
            ("charging", "charge", 2),
        ]

    run(scenario, order)


def test_a_line_of_a_callback_in_an_iteration_has_the_whole_key():
    async def one_page(step: Step, state: dict) -> object:
        async def fetch() -> None:
            await step.log.info("fetching")

        await step.do("fetch", fetch)
        return Break(None) if state["n"] == 1 else Continue({"n": 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.loop("pages", one_page, state={"n": 0})

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await lines_of(instance, "step_key") == [("pages/~0/fetch",), ("pages/~1/fetch",)]

    run(scenario, order)


def test_lines_that_a_replay_writes_again_can_be_told_apart():
    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.info("before")
        await step.sleep("cool off", "1 hour")
        await step.log.info("after")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(2):
            await test.crash()
            await test.run_until_idle()
        await test.advance("1 hour")
        await output_of(instance)
        lines = await lines_of(instance, "message", "is_replay")
        assert [message for message, replayed in lines if not replayed] == ["before", "after"]
        assert {message for message, replayed in lines if replayed} <= {"before"}

    run(scenario, order)


def test_lines_of_a_completed_callback_are_not_written_again():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def charge() -> None:
            await step.log.info("charging")

        await step.do("charge", charge)
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        assert await lines_of(instance, "message") == [("charging",)]

    run(scenario, order)


@pytest.mark.parametrize("level", ["debug", "info", "warn", "error"])
def test_the_category_of_the_system_is_refused_to_authors(level: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await getattr(step.log, level)("hello", category="system")
        except Exception as error:  # noqa: BLE001 the contract names no class
            return str(error)
        return None

    assert "system" in str(output(order))


def test_the_lines_of_an_instance_that_failed_are_kept():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.warn("stock is low", {"left": 0})
        raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await error_of(instance)
        assert await lines_of(instance, "level", "message", "data") == [
            ("warn", "stock is low", {"left": 0})
        ]

    run(scenario, order)


def test_lines_of_a_branch_that_is_over_can_be_told_apart_too():
    async def branch(step: Step) -> None:
        await step.log.info("before")
        await step.do("load", lambda: 1)
        await step.log.info("after")

    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.join("fetch", user=branch)
        await step.sleep("cool off", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        lines = await lines_of(instance, "message", "is_replay")
        assert [message for message, replayed in lines if not replayed] == ["before", "after"]

    run(scenario, order)


def test_a_line_between_a_result_and_a_wait_is_new_once():
    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("fetch", lambda: 1)
        await step.log.info("fetched")
        await step.log.info("counted")
        await step.wait_for_event("approval", type="approval")
        await step.log.info("approved")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(2):
            await test.crash()
            await test.run_until_idle()
            await instance.pause()
            await test.run_until_idle()
            await instance.resume()
            await test.run_until_idle()
        await instance.send_event("approval")
        await test.run_until_idle()
        await output_of(instance)
        lines = await lines_of(instance, "message", "is_replay")
        new = [message for message, replayed in lines if not replayed]
        assert new == ["fetched", "counted", "approved"]

    run(scenario, order)


@pytest.mark.parametrize("how", ["crash", "at once"])
def test_lines_between_results_that_came_meanwhile_are_new(how: str):
    async def nap(step: Step, name: str) -> None:
        await step.sleep(name, "1 minute")
        await step.log.info(name)

    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.info("begun")
        await asyncio.gather(nap(step, "one"), nap(step, "two"))
        await step.log.info("rested")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if how == "crash":
            await test.crash()
        await test.advance("1 minute")
        await output_of(instance)
        lines = await lines_of(instance, "message", "is_replay")
        new = [message for message, replayed in lines if not replayed]
        assert new == ["begun", "one", "two", "rested"]
        assert {message for message, replayed in lines if replayed} <= {"begun"}

    run(scenario, order)


async def a_checkpoint(step: Step) -> None:
    await step.checkpoint("before money")
    await step.log.info("1")
    await step.sleep("nap", "1 minute")
    await step.log.info("2")


async def a_removed_entry(step: Step) -> None:
    await step.log.info("1")
    await step.removed("old", kind="step")
    await step.log.info("2")
    await step.sleep("nap", "1 minute")
    await step.log.info("3")


async def a_loop_that_is_over(step: Step) -> None:
    async def body(step: Step, state: int) -> object:
        await step.do("work", lambda: state)
        await step.log.info(f"{state}a")
        await step.log.info(f"{state}b")
        return Continue(state + 1) if state < 2 else Break(state)

    await step.loop("pages", body, state=0)
    await step.sleep("nap", "1 minute")
    await step.log.info("after")
    await step.log.info("end")


async def a_loop_that_commits(step: Step) -> None:
    async def body(step: Step, state: int) -> object:
        await step.log.info(f"{state} begins")
        await step.sleep("nap", "1 minute")
        await step.log.info(f"{state} ends")
        return Continue(state + 1) if state < 3 else Break(state)

    await step.loop("pages", body, state=0, commit_interval=1)
    await step.log.info("after")


async def an_entry_once_more(step: Step) -> None:
    for number in range(3):
        await step.sleep(f"nap {number}", "1 minute")
        await step.log.info(f"{number}a")
        await step.do("work", lambda: 1)
        await step.log.info(f"{number}b")


async def a_loop_that_is_over_at_once(step: Step) -> None:
    async def body(step: Step, state: int) -> object:
        return Continue(state + 1) if state < 3 else Break(state)

    async def beside() -> None:
        await step.log.info("2")
        await step.sleep("nap", "1 minute")

    await step.do("work", lambda: 1)
    await step.log.info("1")
    await asyncio.gather(step.loop("pages", body, state=0, commit_interval=1), beside())


async def beside_a_loop(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    async def body(step: Step, state: int) -> object:
        await code(step)
        await step.sleep("nap", "1 minute")
        return Continue(state + 1) if state < 3 else Break(state)

    async def beside() -> None:
        await step.log.info("1")
        await step.sleep("nap", "150 seconds")
        await step.log.info("2")
        await step.sleep("rest", "1 minute")

    await asyncio.gather(step.loop("pages", body, state=0, commit_interval=1), beside())


async def a_loop_beside(step: Step) -> None:
    await beside_a_loop(step, lambda step: step.do("work", lambda: 1))


async def a_loop_with_marks_beside(step: Step) -> None:
    await beside_a_loop(step, lambda step: step.checkpoint("before money"))


async def a_loop_with_lines_beside(step: Step) -> None:
    await beside_a_loop(step, lambda step: step.log.info(step.scope))


async def a_loop_with_marks_that_was_cancelled(step: Step) -> None:
    async def loops(step: Step) -> None:
        await beside_a_loop(step, lambda step: step.checkpoint("before money"))

    async def quick(step: Step) -> None:
        await step.sleep("nap", "200 seconds")

    await step.race("first", loops=loops, quick=quick)
    await step.sleep("nap", "1 minute")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (a_checkpoint, ["1", "2"]),
        (a_removed_entry, ["1", "2", "3"]),
        (a_loop_that_is_over, ["0a", "0b", "1a", "1b", "2a", "2b", "after", "end"]),
        (
            a_loop_that_commits,
            [*(f"{n} {at}" for n in range(4) for at in ("begins", "ends")), "after"],
        ),
        (an_entry_once_more, ["0a", "0b", "1a", "1b", "2a", "2b"]),
        (a_loop_that_is_over_at_once, ["1", "2"]),
        (a_loop_beside, ["1", "2"]),
        (a_loop_with_marks_beside, ["1", "2"]),
        (
            a_loop_with_lines_beside,
            ["pages/~0", "1", "pages/~1", "pages/~2", "2", "pages/~3"],
        ),
        (a_loop_with_marks_that_was_cancelled, ["1", "2"]),
    ],
)
def test_every_line_is_new_once_whatever_a_replay_passes_over(code: object, lines: list[str]):
    @workflow("order", replayed_lines=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        await code(step)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(5):
            await test.crash()
            await test.run_until_idle()
            await test.crash()
            await test.advance("1 minute")
        await output_of(instance)
        result = await lines_of(instance, "message", "is_replay")
        assert [message for message, replayed in result if not replayed] == lines

    run(scenario, order)


def test_a_line_that_a_replay_comes_to_again_is_stored_once_unless_its_workflow_asks_for_more():
    async def scene(event: WorkflowEvent, step: Step) -> None:
        await step.log.info("begins")
        await step.sleep("gap", "1 hour")
        await step.log.info("ends")

    async def scenario(test: WorkflowTest) -> None:
        for name, lines in (
            ("order", [("begins", False), ("ends", False)]),
            ("kept", [("begins", False), ("begins", True), ("ends", False)]),
        ):
            instance = await begin(test, name)
            await test.crash()
            await test.advance("2 hours")
            assert await lines_of(instance, "message", "is_replay") == lines

    run(scenario, workflow("order")(scene), workflow("kept", replayed_lines=True)(scene))


@CRASH
@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_logs_by_the_call_alone(fails: bool, crash: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        def plain() -> None:
            step.log.info("plain")
            if fails:
                raise LookupError("no")

        async def forgets() -> None:
            step.log.info("forgets")

        async def awaits() -> None:
            await step.log.info("awaits", {"amount": 1})

        with contextlib.suppress(StepFailedError):
            await step.do("1", plain, retries=Retry(limit=0))
        await step.do("2", forgets)
        await step.do("3", awaits)
        await step.sleep("nap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("1 hour")
        lines = (await instance.history()).logs
        assert [(line.message, line.step_key, line.attempt) for line in lines] == [
            ("plain", "1", 1),
            ("forgets", "2", 1),
            ("awaits", "3", 1),
        ]

    run(scenario, order)
