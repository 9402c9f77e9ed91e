"""Cancelling: what the code is told, how it may clean up, and how its run ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headwater import (
    Break,
    ChildWorkflowError,
    Continue,
    InstanceTerminalError,
    Retry,
    Step,
    Workflow,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from headwater.processors.code.host_messages import activate
from headwater.processors.code.state import Cancelling
from headwater.schemas.statuses import EntryStatus
from headwater.streams.code_host.host import Host
from tests.unit.processors.replay.states import NOW_MS, a_run, an_entry
from tests.workflows.running import (
    CRASH,
    Instance,
    begin,
    entry_at,
    output_of,
    pass_time,
    run,
    state_of,
)


async def cancelled(test: WorkflowTest, instance: Instance) -> tuple[str, str]:
    """How an instance stands once it was cancelled, and what it says of it."""
    await instance.cancel()
    await test.run_until_idle()
    status = await instance.status()
    return status.status, status.error.name if status.error else ""


async def lines_of(instance: Instance) -> list[str]:
    return [line.message for line in (await instance.history()).logs]


async def _sleeps(step: Step) -> None:
    await step.sleep("long", "1 day")


async def _waits(step: Step) -> None:
    await step.wait_for_event("long", type="never")


async def _runs(step: Step) -> None:
    await step.do("long", lambda: pass_time("1 hour"), timeout="1 day")


async def _retries(step: Step) -> None:
    await step.do("long", _fail, retries=Retry(delay="1 hour"))


async def _has_a_child(step: Step) -> None:
    await step.run_workflow("long", "sleeper", id="c-1")


async def _gathers(step: Step) -> None:
    await asyncio.gather(step.sleep("long", "1 day"), step.sleep("longer", "2 days"))


async def _joins(step: Step) -> None:
    await step.join("long", one=_sleeps, other=_waits)


async def _races(step: Step) -> None:
    await step.race("long", one=_sleeps, other=_waits)


async def _loops(step: Step) -> None:
    async def body(step: Step, _: object) -> object:
        await step.sleep("nap", "1 day")
        return Continue(None)

    await step.loop("long", body)


def _fail() -> None:
    raise ConnectionError("no answer")


@workflow("sleeper")
async def sleeper(event: WorkflowEvent, step: Step) -> None:
    await step.sleep("long", "300 days")


PLACES = (
    _sleeps,
    _waits,
    _runs,
    _retries,
    _has_a_child,
    _gathers,
    _joins,
    _races,
    _loops,
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("restarted", [False, True])
def test_the_code_is_told_where_it_waits_cleans_up_and_is_rolled_back(
    place: Callable[[Step], Any], restarted: bool
):
    reported: list[str] = []
    undone: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("charge", lambda: "charged", rollback=undone.append)
        try:
            await place(step)
        except asyncio.CancelledError:
            reported.append("told")
            await step.do("tidy", lambda: "tidied", rollback=undone.append)
            raise

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if restarted:
            await test.crash()
        assert await cancelled(test, instance) == ("terminated", "Cancelled")
        assert set(reported) == {"told"}
        assert undone == ["tidied", "charged"]
        assert (await entry_at(instance, "long")).status == "cancelled"
        await test.advance("400 days")
        assert undone == ["tidied", "charged"]

    run(scenario, order, sleeper)


def test_code_that_goes_on_all_the_same_ends_as_cancelled():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await step.sleep("long", "1 day")
        except asyncio.CancelledError:
            await step.sleep("a while", "10 seconds")
        return await step.do("more", lambda: "more")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await cancelled(test, instance) == ("waiting", "")
        await test.crash()
        await instance.cancel()
        await test.advance("10 seconds")
        status = await instance.status()
        assert (status.status, status.output) == ("terminated", None)
        assert (await entry_at(instance, "more")).status == "completed"

    run(scenario, order)


@CRASH
def test_code_that_takes_too_long_is_cut_off_and_rolled_back(crash: bool):
    undone: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("charge", lambda: "charged", rollback=undone.append)
        while True:
            try:
                await step.sleep(f"nap {await step.uuid()}", "20 seconds")
            except asyncio.CancelledError:
                await step.do("tidy", lambda: "tidied", rollback=undone.append)
                await step.run_workflow("child", "sleeper", id="c-1")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await cancelled(test, instance)
        await test.advance("29 seconds")
        await instance.cancel()  # changes nothing: it has no more time than it had
        assert (await state_of(instance), undone) == ("waiting", [])
        assert len(await lines_of(instance)) == 1
        if crash:
            await test.crash()
        await test.advance("1 second")
        assert (await state_of(instance), undone) == ("terminated", ["tidied", "charged"])
        assert await state_of(test.get("sleeper", "c-1")) == "terminated"
        assert (await entry_at(instance, "child")).status == "cancelled"

    run(scenario, order, sleeper)


def test_a_step_that_hangs_while_code_cleans_up_is_cut_off():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.do("tidy", lambda: pass_time("1 hour"), timeout="1 day")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await cancelled(test, instance))[0] == "active"
        await test.advance("30 seconds")
        assert await state_of(instance) == "terminated"

    run(scenario, order)


def test_the_time_to_clean_up_is_what_the_world_says():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.sleep("tidy", "1 day")

    async def scenario() -> None:
        async with WorkflowTest([order], cleanup="2 hours") as test:
            instance = await begin(test)
            await cancelled(test, instance)
            await test.advance("119 minutes")
            assert await state_of(instance) == "waiting"
            await test.advance("1 minute")
            assert await state_of(instance) == "terminated"

    asyncio.run(scenario())


def test_a_loop_whose_body_swallows_what_it_is_told_ends_all_the_same():
    seen: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def body(step: Step, number: int) -> object:
            if number == 3:
                seen.append("again")
                try:
                    await step.sleep("nap", "1 day")
                except asyncio.CancelledError:
                    await step.do("tidy", lambda: seen.append("tidied"))
            return Break("won") if event.payload else Continue(number + 1)

        async def three(step: Step, number: int) -> object:
            return await body(step, 3)

        try:
            await step.loop("long", three if event.payload else body, state=0, commit_interval=1)
        except asyncio.CancelledError:
            await step.sleep("a moment", "1 second")
            seen.append("out")

    async def scenario(test: WorkflowTest) -> None:
        for number, payload in enumerate((None, "break")):
            seen.clear()
            instance = await begin(test, instance=f"i-{number}", params=payload)
            await instance.cancel()
            await test.run_until_idle()
            await test.crash()
            await test.advance("1 second")
            assert await state_of(instance) == "terminated"
            assert (await entry_at(instance, "long")).status == "cancelled"
            assert (seen.count("tidied"), seen[-1]) == (1, "out")

    run(scenario, order)


def test_a_loop_that_is_cleaned_up_with_goes_on():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def body(step: Step, number: int) -> object:
            await step.do("undo", lambda: number)
            return Continue(number + 1) if number < 4 else Break(number)

        try:
            await step.sleep("long", "1 day")
        finally:
            await step.loop("undoing", body, state=0, commit_interval=1)
            await step.sleep("a moment", "1 second")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await cancelled(test, instance)
        await test.crash()
        await test.advance("1 second")
        assert await state_of(instance) == "terminated"
        assert (await entry_at(instance, "undoing")).result == 4

    run(scenario, order)


def tidying(tidied: list[str]) -> Workflow:
    """A child that cleans up when it is cancelled."""

    @workflow("invoice")
    async def invoice(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.do("tidy", lambda: tidied.append("child"))

    return invoice


def test_children_are_told_as_their_parent_is():
    tidied: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.run_workflow("child", "invoice", id="c-1")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await cancelled(test, instance) == ("terminated", "Cancelled")
        child = test.get("invoice", "c-1")
        assert (await state_of(child), tidied) == ("terminated", ["child"])

    run(scenario, order, tidying(tidied))


@pytest.mark.parametrize("undoes", [False, True])
def test_children_of_a_run_that_is_cut_off_may_clean_up(undoes: bool):
    tidied: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if undoes:
            await step.checkpoint("before money")
            await step.do("charge", lambda: "charged", rollback=lambda _: None)
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.run_workflow("child", "invoice", id="c-1")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await cancelled(test, instance)
        await test.advance("30 seconds")
        assert await state_of(instance) == "terminated"
        assert tidied == ["child"]

    run(scenario, order, tidying(tidied))


def test_a_cancelled_run_says_why_in_its_log_and_in_its_error():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "sleeper")
        await instance.cancel("sold out")
        await test.run_until_idle()
        error = (await instance.status()).error
        assert error is not None
        assert (error.name, error.message) == ("Cancelled", "the instance was cancelled: sold out")
        (line,) = await lines_of(instance)
        assert line.startswith("the instance is cancelled: sold out; its code may clean up until")

    run(scenario, sleeper)


def test_a_parent_hears_that_its_child_was_cancelled():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            return await step.run_workflow("child", "sleeper", id="c-1")
        except ChildWorkflowError as error:
            return str(error)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.get("sleeper", "c-1").cancel()
        await test.run_until_idle()
        assert await output_of(instance) == "sleeper/c-1 was cancelled"

    run(scenario, order, sleeper)


def test_a_paused_run_goes_on_and_is_told():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "sleeper")
        await instance.pause()
        assert await cancelled(test, instance) == ("terminated", "Cancelled")

    run(scenario, sleeper)


def test_a_run_that_has_ended_cannot_be_cancelled():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "sleeper")
        await instance.terminate()
        with pytest.raises(InstanceTerminalError, match="to cancel"):
            await instance.cancel()

    run(scenario, sleeper)


def test_terminate_ends_a_run_that_cleans_up():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.sleep("tidy", "10 seconds")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await cancelled(test, instance)
        await instance.terminate()
        assert await state_of(instance) == "terminated"
        assert (await instance.status()).error is None

    run(scenario, order)


def test_code_that_fails_when_it_is_told_says_so_in_the_log_and_ends_as_cancelled():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.sleep("long", "1 day")
        finally:
            raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await cancelled(test, instance) == ("terminated", "Cancelled")
        assert await lines_of(instance) == [
            "the instance is cancelled; its code may clean up until 2026-01-01T00:00:30+00:00",
            "once it was cancelled, the run failed: LookupError: sold out",
        ]

    run(scenario, order)


def test_a_run_that_is_rolled_back_already_ends_as_cancelled():
    undone: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        def undo(output: object) -> None:
            undone.append(output)
            if len(undone) == 1:
                raise ConnectionError("no answer")

        await step.checkpoint("before money")
        await step.do("charge", lambda: "charged", rollback=undo)
        raise LookupError("sold out")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await cancelled(test, instance))[0] == "active"
        await test.advance("10 seconds")
        assert (await state_of(instance), undone) == ("terminated", ["charged"] * 2)

    run(scenario, order)


def test_lines_that_are_logged_after_it_was_told_are_not_logged_again():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.log.info("begins")
        try:
            await step.sleep("long", "1 day")
        finally:
            await step.log.info("told")
            await step.sleep("tidy", "10 seconds")
            await step.log.info("ends")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await cancelled(test, instance)
        await test.crash()
        await test.advance("10 seconds")
        assert await state_of(instance) == "terminated"
        lines = [line for line in (await instance.history()).logs if line.category != "system"]
        assert [(line.message, line.is_replay) for line in lines if not line.is_replay] == [
            ("begins", False),
            ("told", False),
            ("ends", False),
        ]

    run(scenario, order)


def test_a_restart_begins_a_run_that_is_not_cancelled():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "sleeper")
        await cancelled(test, instance)
        await instance.restart()
        await test.run_until_idle()
        assert await state_of(instance) == "waiting"

    run(scenario, sleeper)


@pytest.mark.parametrize(("cancelled_at", "where"), [(4, "charge"), (6, "ship")])
def test_a_replay_tells_the_code_after_the_results_before_and_before_those_after(
    cancelled_at: int, where: str
):
    """The step returned at 5: before the run was cancelled, or in a message that crossed that."""
    reported: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        for name in ("charge", "ship"):
            try:
                await step.do(name, lambda: None)
            except asyncio.CancelledError:
                reported.append(name)
                raise

    async def scenario() -> None:
        host = Host({"order": order}, emit=lambda _: None, now_ms=lambda: 0)
        charged = an_entry(status=EntryStatus.COMPLETED, name="charge", sequence=5, result="1")
        cancelling = Cancelling(cancelled_at, "", NOW_MS)
        begun = a_run(entries={"charge": charged}, cancelling=cancelling)
        host.handle([activate(1, begun, 1_024)])
        host.stop()

    asyncio.run(scenario())
    assert reported == [where]
