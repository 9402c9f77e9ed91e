"""Code of a run that is let go while it waits: its `finally` blocks do nothing to anybody else."""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import pytest

from headwater import (
    Break,
    Continue,
    NonDeterministicError,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import CRASH, Deployed, begin, output_of, run, state_of

CleanUp = Callable[[Step], Awaitable[None]]


async def in_a_group(step: Step) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(step.do("clean up", lambda: None))


async def together(step: Step) -> None:
    await asyncio.gather(step.do("clean up", lambda: None), asyncio.sleep(0))


async def stubborn(_: Step) -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(0)
        finally:
            await asyncio.Event().wait()


def naps(clean_up: CleanUp) -> object:
    """A workflow that waits, and then cleans up."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("nap", "1 hour")
        finally:
            await clean_up(step)

    return order


async def let_go(test: WorkflowTest, how: str) -> None:
    instance = await begin(test)
    if how == "terminate":
        await instance.terminate()
    else:
        await test.crash()
    for _ in range(3):
        # A task that was cancelled would hear of it here.
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["terminate", "crash"])
@pytest.mark.parametrize("clean_up", [in_a_group, together, stubborn])
def test_code_that_is_let_go_ends_and_leaves_its_host_be(
    how: str, clean_up: CleanUp, monkeypatch: pytest.MonkeyPatch
):
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda why: unraisable.append(why.exc_value))

    async def scenario(test: WorkflowTest) -> None:
        before = asyncio.all_tasks()
        await let_go(test, how)
        assert asyncio.all_tasks() == before

    run(scenario, naps(clean_up))
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize("how", ["terminate", "crash"])
def test_a_task_that_is_begun_while_code_is_let_go_never_runs(how: str):
    ran: list[str] = []

    async def beside() -> None:
        ran.append("beside")

    async def clean_up(_: Step) -> None:
        # Asked for in the way that works on every loop, or a reference would have to be kept.
        asyncio.get_running_loop().create_task(beside())

    run(lambda test: let_go(test, how), naps(clean_up))
    assert ran == []


@pytest.mark.parametrize("how", ["terminate", "crash"])
def test_code_that_is_let_go_may_do_no_more_than_before(how: str):
    result: list[str] = []

    async def clean_up(_: Step) -> None:
        try:
            open(__file__)  # noqa: ASYNC230, SIM115, PTH123, what is refused
        except NonDeterministicError:
            result.append("refused")
            raise
        result.append("opened")

    run(lambda test: let_go(test, how), naps(clean_up))
    assert result == ["refused"]


def fail() -> None:
    raise ConnectionError("no answer")


@CRASH
@pytest.mark.parametrize("clean_up", [in_a_group, together, stubborn])
def test_a_loop_of_changed_code_ends_as_recorded_whatever_cleans_up(
    clean_up: CleanUp, crash: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Deployed, "version", 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        async def turn(step: Step, state: int) -> Break | Continue:
            if Deployed.version == 1:
                raise ConnectionError("no answer")
            try:
                await step.sleep("new", "1 hour")
            finally:
                await clean_up(step)
            return Break(state)

        try:
            await step.loop("turns", turn, state=0)
            result = "went on"
        except Exception as error:  # noqa: BLE001, whatever it is
            result = type(error).__name__
        await step.sleep("nap", "1 minute")
        return result

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            Deployed.version = 2
            await test.crash()
        await test.advance("1 minute")
        assert await state_of(instance) == "complete"
        assert await output_of(instance) == ("LoopError" if crash else "ConnectionError")

    run(scenario, order)
