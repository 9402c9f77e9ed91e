"""What nobody awaits any more: the code removed it, or cancelled the task that awaited it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from headwater import (
    Break,
    Continue,
    DuplicateStepError,
    NonRetryableError,
    Retry,
    Step,
    WorkflowEvent,
    WorkflowTest,
    workflow,
)
from tests.workflows.running import (
    CRASH,
    Calls,
    Deployed,
    Flaky,
    Instance,
    begin,
    entry_at,
    keys_of,
    output_of,
    pass_time,
    run,
    state_of,
)


@workflow("invoice")
async def invoice(event: WorkflowEvent, step: Step) -> str:
    await step.wait_for_event("paid", type="paid")
    return "paid"


async def approval(step: Step) -> object:
    return (await step.wait_for_event("approval", type="go")).payload


async def again_and_again(step: Step, state: int) -> object:
    await approval(step)
    return Continue(state + 1)


async def never(step: Step) -> None:
    await step.sleep("nap", "100 days")


def refuse() -> None:
    raise NonRetryableError("no")


#: What stands open under the name `old`, of which kind, and the entries that are open with it.
OPEN: dict[str, tuple[Callable[[Step], Awaitable[object]], list[str]]] = {
    "sleep": (lambda step: step.sleep("old", "100 days"), ["old"]),
    "message": (lambda step: step.wait_for_event("old", type="go"), ["old"]),
    "child": (lambda step: step.run_workflow("old", "invoice", id="inv-1"), ["old"]),
    "join": (
        lambda step: step.join("old", a=approval, b=never),
        ["old", "old/a/approval", "old/b/nap"],
    ),
    "race": (
        lambda step: step.race("old", a=approval, b=never),
        ["old", "old/a/approval", "old/b/nap"],
    ),
    "loop": (lambda step: step.loop("old", again_and_again, state=0), ["old", "old/~0/approval"]),
}
KINDS = pytest.mark.parametrize("kind", OPEN)


async def left_open(instance: Instance, kind: str) -> list[str]:
    """What was open of a kind and is not cancelled."""
    entries = [await entry_at(instance, key) for key in OPEN[kind][1]]
    return [entry.step_key for entry in entries if entry.status != "cancelled"]


async def ends(test: WorkflowTest, instance: Instance, kind: str) -> tuple[object, str]:
    """The output after an event, which is for whoever waits now, and how a child has ended."""
    await instance.send_event("go", 1)
    await test.run_until_idle()
    child = test.get("invoice", "inv-1") if kind == "child" else None
    return await output_of(instance), await state_of(child) if child else "terminated"


@KINDS
@CRASH
def test_what_was_removed_while_it_was_open_is_cancelled(kind: str, crash: bool):
    code = Deployed()

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        if code.version == 1:
            await OPEN[kind][0](step)
        else:
            await step.removed("old", kind=kind)
        return (await step.wait_for_event("new", type="go")).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.crash()
        code.version = 2
        # Whoever only waits does not run until something comes.
        await instance.resume()
        await test.run_until_idle()
        if crash:
            await test.crash()
        assert await left_open(instance, kind) == []
        assert await ends(test, instance, kind) == (1, "terminated")

    run(scenario, order, invoice)


def test_a_step_that_was_removed_is_not_tried_again():
    code, peer = Deployed(), Flaky(failures=9)

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> None:
        if code.version == 1:
            await step.do("old", peer, retries=Retry(limit=9, delay="1 hour"))
        else:
            await step.removed("old", kind="step")
        await step.sleep("gap", "1 minute")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        assert (await entry_at(instance, "old")).status == "cancelled"
        await test.advance("1 day")
        assert await state_of(instance) == "complete"
        assert peer.calls == 1

    run(scenario, order)


@KINDS
@CRASH
def test_what_the_code_cancels_after_a_sibling_has_failed_is_cancelled(kind: str, crash: bool):
    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(OPEN[kind][0](step))
                await step.sleep("meanwhile", "1 minute")
                await step.do("refuse", refuse)
        return (await step.wait_for_event("new", type="go")).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        if crash:
            await test.crash()
        assert await left_open(instance, kind) == []
        assert await ends(test, instance, kind) == (1, "terminated")

    run(scenario, order, invoice)


@CRASH
def test_of_several_that_are_awaited_those_that_the_code_lets_go_are_cancelled(crash: bool):
    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        result: list[object] = []
        for number in range(3):
            either = [
                asyncio.create_task(step.wait_for_event(f"{value} {number}", type=value))
                for value in ("go", "stop")
            ]
            done, others = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                other.cancel()
            result += [item.result().payload for item in done]
        return result

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for number, value in enumerate(("go", "stop", "go")):
            await instance.send_event(value, number)
            await test.run_until_idle()
            if crash:
                await test.crash()
        assert await output_of(instance) == [0, 1, 2]
        kept = [entry.status for entry in (await instance.history()).steps]
        assert kept[:5] == ["completed", "cancelled", "cancelled", "completed", "completed"]

    run(scenario, order)


@pytest.mark.parametrize("removes", [False, True])
@CRASH
def test_a_name_that_was_given_up_needs_another(removes: bool, crash: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        waiting = asyncio.create_task(step.wait_for_event("approval", type="go"))
        await step.sleep("meanwhile", "1 minute")
        waiting.cancel()
        await asyncio.wait([waiting])
        if removes:
            await step.removed("approval", kind="message")
        await step.sleep("later", "1 minute")
        try:
            await step.wait_for_event("approval", type="go")
        except DuplicateStepError as error:
            return str(error)
        return None

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        if crash:
            await test.crash()
        await instance.send_event("go")
        await test.advance("1 minute")
        assert 'another name than "approval"' in await output_of(instance)

    run(scenario, order)


@CRASH
def test_the_body_of_a_loop_may_clean_up_when_its_task_is_cancelled(crash: bool):
    calls, seen = Calls(), []

    async def holds(step: Step, state: int) -> object:
        try:
            await step.sleep("nap", "100 days")
        finally:
            await step.do("release", calls.of("release"))
            seen.append("released")
        return Continue(state)

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen.clear()
        task = asyncio.create_task(step.loop("pages", holds, state=0))
        await step.sleep("meanwhile", "1 minute")
        task.cancel()
        await asyncio.wait([task])
        await step.sleep("gap", "1 minute")
        return [task.cancelled(), seen]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        if crash:
            await test.crash()
        await test.advance("1 minute")
        assert await output_of(instance) == [True, ["released"]]
        assert calls.names == ["release"]
        assert (await entry_at(instance, "pages")).status == "cancelled"

    run(scenario, order)


def test_a_retry_waits_again_for_what_was_given_up_because_of_the_failure():
    peer = Flaky(failures=1, error=NonRetryableError)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async with asyncio.TaskGroup() as group:
            got = group.create_task(step.wait_for_event("approval", type="go"))
            group.create_task(step.do("call", peer))
        return got.result().payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "approval")).status == "cancelled"
        assert await state_of(instance) == "errored"
        await instance.retry()
        await test.run_until_idle()
        await instance.send_event("go", 1)
        await test.run_until_idle()
        assert await output_of(instance) == 1

    run(scenario, order)


def test_what_was_cancelled_is_no_result_up_to_which_lines_were_written():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        task = asyncio.create_task(step.wait_for_event("approval", type="go"))
        await step.do("load", lambda: 1)
        task.cancel()
        await asyncio.wait([task])
        await step.log.info("old")
        if code.version == 2:
            await step.log.info("new")
        await step.wait_for_event("gap", type="gap")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.crash()
        code.version = 2
        await instance.resume()
        await test.run_until_idle()
        logs = (await instance.history()).logs
        assert [line.message for line in logs if not line.is_replay] == ["old", "new"]

    run(scenario, order)


@CRASH
def test_a_step_whose_task_is_cancelled_runs_neither_on_nor_again(crash: bool):
    calls = Calls()

    async def slow() -> None:
        calls.names.append("begin")
        await pass_time("1 hour")
        calls.names.append("end")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        task = asyncio.create_task(step.do("slow", slow))
        await step.sleep("meanwhile", "1 minute")
        task.cancel()
        await asyncio.wait([task])
        await step.sleep("gap", "2 hours")
        try:
            await step.do("slow", slow)
        except DuplicateStepError as error:
            return str(error)
        return "ran again"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        assert (await entry_at(instance, "slow")).status == "cancelled"
        assert await state_of(instance) == "waiting"
        if crash:
            await test.crash()
        await test.advance("3 hours")
        assert 'another name than "slow"' in await output_of(instance)
        assert calls.names == ["begin"]

    run(scenario, order)


def test_a_step_whose_task_is_cancelled_is_not_tried_again():
    peer = Flaky(failures=9)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        task = asyncio.create_task(step.do("call", peer, retries=Retry(limit=9, delay="1 hour")))
        await step.sleep("meanwhile", "1 minute")
        task.cancel()
        await step.sleep("gap", "1 day")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("2 days")
        assert await state_of(instance) == "complete"
        entry = await entry_at(instance, "call")
        assert (entry.status, entry.next_retry_at) == ("cancelled", None)
        assert peer.calls == 1

    run(scenario, order)


async def in_a_join(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    await step.join("both", code=code)


async def in_a_race(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    await step.race("fastest", code=code)


async def in_a_loop(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    async def turn(step: Step, _: object) -> object:
        await code(step)
        return Continue(None)

    await step.loop("turns", turn)


async def in_a_loser(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    async def quick(step: Step) -> None:
        await step.sleep("nap", "1 minute")

    await step.race("first", loser=code, quick=quick)


async def in_a_task(step: Step, code: Callable[[Step], Awaitable[None]]) -> None:
    task = asyncio.create_task(code(step))
    await step.sleep("nap", "1 minute")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@CRASH
@pytest.mark.parametrize("ends", [in_a_loser, in_a_task])
@pytest.mark.parametrize("holds", [in_a_join, in_a_race, in_a_loop])
def test_what_is_cancelled_cleans_up_on_a_replay_as_it_did(
    ends: Callable[..., Awaitable[None]], holds: Callable[..., Awaitable[None]], crash: bool
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen: list[str] = []

        async def waits(step: Step) -> None:
            try:
                await step.sleep("wait", "100 days")
            except asyncio.CancelledError:
                seen.append(step.scope)
                raise

        async def held_twice(step: Step) -> None:
            await holds(step, lambda step: holds(step, waits))

        await ends(step, held_twice)
        await step.sleep("gap", "1 hour")
        return len(seen)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("5 minutes")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == 1

    run(scenario, order)


@CRASH
@pytest.mark.parametrize("after", ["break", "continue", "a failure"])
def test_a_loop_whose_task_is_cancelled_is_over_whatever_its_body_makes_of_that(
    after: str, crash: bool
):
    calls = Calls()

    async def turn(step: Step, number: int) -> object:
        try:
            await step.sleep("nap", "100 days")
        except asyncio.CancelledError:
            await step.do("tidy", calls.of("tidy"))
            if after == "a failure":
                await step.do("fail", refuse)
        return Break(number) if after == "break" else Continue(number + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        task = asyncio.create_task(step.loop("turns", turn, state=0, commit_interval=1))
        await step.sleep("meanwhile", "1 minute")
        task.cancel()
        await asyncio.wait([task])
        await step.sleep("gap", "1 hour")
        return task.cancelled()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("2 minutes")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) is True
        assert (await entry_at(instance, "turns")).status == "cancelled"
        assert calls.names == ["tidy"]

    run(scenario, order)


def test_a_loop_that_fails_at_once_does_so_on_a_replay():
    async def turn(step: Step, _: object) -> object:
        raise LookupError("a mistake")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        task = asyncio.create_task(step.do("beside", lambda: 1))
        with contextlib.suppress(LookupError):
            await step.loop("turns", turn)
        task.cancel()
        await step.sleep("gap", "1 hour")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        await output_of(instance)
        assert await keys_of(instance) == ["turns", "gap"]

    run(scenario, order)
