"""Entries that are under way when the code that called them has come to its end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater import (
    Break,
    Continue,
    DuplicateStepError,
    JoinError,
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
    begin,
    entry_at,
    error_of,
    keys_of,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)

#: Code of a scope.
Nested = Callable[[Step], Awaitable[object]]


def refuse() -> None:
    raise NonRetryableError("no")


@workflow("invoice")
async def invoice(event: WorkflowEvent, step: Step) -> None:
    await step.wait_for_event("paid", type="paid")


def refuse_for_now() -> None:
    raise LookupError("not yet")


async def settle_with_a_wait_left(step: Step) -> None:
    await asyncio.gather(step.wait_for_event("left", type="go"), step.do("refuse", refuse))


async def forever(step: Step) -> None:
    await step.sleep("nap", "100 days")


async def leak_a_step(step: Step) -> str:
    async def slow() -> None:
        await pass_time("1 hour")

    task = asyncio.create_task(step.do("leaked", slow))
    await step.do("work", lambda: 1)
    del task
    return "done"


async def forget_a_step(step: Step) -> str:
    step.do("forgotten", lambda: 1)
    return "done"


# -- what was awaited, until something failed


def test_two_of_one_name_at_once_may_be_caught():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await asyncio.gather(step.do("x", lambda: 1), step.do("x", lambda: 2))
        except DuplicateStepError:
            return "twice"
        return "once"

    assert output(order) == "twice"


def test_what_a_gather_has_left_behind_is_cancelled_when_the_workflow_returns():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await asyncio.gather(
                step.run_workflow("child", "invoice", id="inv-1"), step.do("refuse", refuse)
            )
        except Exception as error:  # noqa: BLE001 what it is matters elsewhere
            return type(error).__name__
        return "none"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == "StepFailedError"
        assert (await entry_at(instance, "child")).status == "cancelled"
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"

    run(scenario, order, invoice)


@CRASH
@pytest.mark.parametrize("how", ["race", "join"])
def test_what_a_branch_has_left_behind_takes_no_event_from_a_later_wait(how: str, crash: bool):
    async def wins(step: Step) -> str:
        await step.sleep("nap", "1 minute")
        return "won"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if how == "race":
            await step.race("fork", a=settle_with_a_wait_left, b=wins)
        else:
            with pytest.raises(JoinError):
                await step.join("fork", a=settle_with_a_wait_left, b=wins)
        return (await step.wait_for_event("later", type="go", timeout="1 hour")).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await entry_at(instance, "fork/a/left")).status == "cancelled"
        await test.advance("1 minute")
        if crash:
            await test.crash()
        await instance.send_event("go", 1)
        await test.run_until_idle()
        assert await output_of(instance) == 1

    run(scenario, order)


def test_nothing_goes_on_in_what_a_branch_has_left_behind():
    calls = Calls()

    async def slow() -> None:
        await pass_time("2 seconds")
        calls.names.append("one")

    async def side(step: Step) -> None:
        await step.do("one", slow)
        await step.do("two", calls.of("two"))

    async def fails(step: Step) -> None:
        await step.sleep("nap", "2 seconds")
        raise LookupError("no")

    async def branch(step: Step) -> None:
        await asyncio.gather(step.race("inner", a=side, b=forever), fails(step))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        with pytest.raises(JoinError):
            await step.join("fork", a=branch)
        await step.sleep("later", "1 minute")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("5 seconds")
        assert await state_of(instance) == "waiting"
        for key in ("inner", "inner/b/nap"):
            assert (await entry_at(instance, f"fork/a/{key}")).status == "cancelled"
        assert "fork/a/inner/a/two" not in await keys_of(instance)
        assert "two" not in calls.names
        await test.advance("1 minute")
        assert await state_of(instance) == "complete"

    run(scenario, order)


# -- what nobody ever awaited


SCOPES: dict[str, Callable[[Step, Callable[[Step], Awaitable[str]]], Awaitable[object]]] = {
    "join": lambda step, code: step.join("fork", a=code),
    "race": lambda step, code: step.race("fork", a=code),
    "loop": lambda step, code: step.loop("fork", _once(code)),
    "workflow": lambda step, code: code(step),
}


def _once(code: Callable[[Step], Awaitable[str]]) -> Callable[[Step, object], Awaitable[Break]]:
    async def body(step: Step, _: object) -> Break:
        return Break(await code(step))

    return body


@CRASH
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("code", "told"),
    [(leak_a_step, "leaked: await the task"), (forget_a_step, "'forgotten': write `await")],
    ids=["leaked", "forgotten"],
)
def test_code_that_does_not_wait_for_what_it_calls_fails(
    code: Callable[[Step], Awaitable[str]], told: str, scope: str, crash: bool
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        try:
            await SCOPES[scope](step, code)
        except Exception as error:  # noqa: BLE001 of a kind by scope
            await step.sleep("meanwhile", "1 minute")
            return f"caught {error}"
        return "unnoticed"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("2 hours")
        if scope == "workflow":
            error = await error_of(instance)
            shown = f"{error.name}: {error.message}"
        else:
            shown = await output_of(instance)
            assert "caught" in shown
        assert told in shown

    run(scenario, order)


def test_a_child_that_an_iteration_leaks_does_not_outlive_its_parent():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        tasks = []

        async def body(step: Step, state: int) -> object:
            if state == 0:
                child = step.run_workflow("child", "invoice", id="inv-1")
                tasks.append(asyncio.create_task(child))
            await step.do("work", lambda: 1)
            return Continue(state + 1) if state < 5 else Break(state)

        await step.loop("pages", body, state=0, commit_interval=1, history_every=1, history_keep=1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert "pages/~0/child: await the task" in (await error_of(instance)).message
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"

    run(scenario, order, invoice)


def test_what_a_task_asks_for_after_its_branch_has_returned_is_refused():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        returned = asyncio.Event()
        tasks = []

        async def branch(step: Step) -> None:
            async def late() -> None:
                await returned.wait()
                await step.do("late", lambda: 1)

            tasks.append(asyncio.create_task(late()))

        await step.join("fork", a=branch)
        returned.set()
        await tasks[0]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        error = await error_of(instance)
        assert error.name == "NotAwaitedError"
        assert '"late" to be called before "fork/a" returns' in error.message
        assert await keys_of(instance) == ["fork"]

    run(scenario, order)


# -- rollback


@pytest.mark.parametrize("first", ["failure", "result"])
def test_a_result_that_comes_just_after_the_failure_is_rolled_back(first: str):
    undone: list[str] = []

    @workflow("trip")
    async def trip(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        fails = step.do("hotel", refuse)
        works = step.do("car", lambda: "car", rollback=undone.append)
        await asyncio.gather(*((fails, works) if first == "failure" else (works, fails)))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "trip")
        assert (await error_of(instance)).message == "no"
        assert (await entry_at(instance, "car")).status == "completed"
        assert undone == ["car"]

    run(scenario, trip)


def test_what_still_runs_when_the_workflow_fails_is_not_waited_for():
    calls, undone = Calls(), []

    async def slow() -> str:
        await pass_time("1 hour")
        calls.names.append("slow")
        return "slow"

    @workflow("trip")
    async def trip(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await asyncio.gather(
            step.do("car", lambda: "car", rollback=undone.append),
            step.do("slow", slow, rollback=undone.append),
            step.do("hotel", refuse),
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "trip")
        assert (await error_of(instance)).message == "no"
        assert undone == ["car"]
        await test.advance("2 hours")
        assert calls.names == []

    run(scenario, trip)


# -- what has its result in the moment in which the code around it ends


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def join_within(count: int) -> Nested:
    async def branch(step: Step) -> None:
        await turns(count)

    return lambda step: step.join("within", only=branch)


def loop_within(count: int) -> Nested:
    async def body(step: Step, state: int) -> Break | Continue:
        await turns(count)
        return Break(state)

    return lambda step: step.loop("within", body, state=0)


def commits_within(count: int) -> Nested:
    async def body(step: Step, state: int) -> Break | Continue:
        await turns(count)
        return Continue(state + 1)

    return lambda step: step.loop("within", body, state=0, commit_interval=1)


def time_within(count: int) -> Nested:
    async def branch(step: Step) -> object:
        await turns(count)
        return (await step.now()).isoformat()

    return branch


async def fails_beside(step: Step, inner: Nested) -> object:
    async def fails() -> None:
        raise ValueError("no")

    return await asyncio.gather(inner(step), fails())


async def leaves(step: Step, inner: Nested) -> None:
    task = asyncio.ensure_future(inner(step))
    await turns(1)
    raise ValueError(f"no {task!r:.0}")


async def join_around(step: Step, body: Nested) -> object:
    return await step.join("around", only=body)


async def race_around(step: Step, body: Nested) -> object:
    return (await step.race("around", only=body)).value


async def loop_around(step: Step, body: Nested) -> object:
    async def once(step: Step, state: object) -> Break:
        return Break(await body(step))

    return await step.loop("around", once)


Around = Callable[[Step, Nested], Awaitable[object]]


@CRASH
@pytest.mark.parametrize("within", [join_within, loop_within, commits_within, time_within])
@pytest.mark.parametrize("nested", [join_around, race_around, loop_around])
@pytest.mark.parametrize("failing", [join_around, race_around, loop_around])
@pytest.mark.parametrize("ends", [fails_beside, leaves])
def test_a_run_ends_whose_code_fails_while_what_it_leaves_gets_its_result(
    ends: Around,
    failing: Around,
    nested: Around,
    within: Callable[[int], Nested],
    crash: bool,
):
    undone: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent[int], step: Step) -> None:
        await step.checkpoint("begin")
        await step.do("pay", lambda: 1, rollback=undone.append)
        inner = within(event.payload)
        await failing(step, lambda step: ends(step, lambda step: nested(step, inner)))

    async def scenario(test: WorkflowTest) -> None:
        for count in range(6):
            instance = await begin(test, instance=f"i-{count}", params=count)
            if crash:
                await test.crash()
                await test.run_until_idle()
            assert await state_of(instance) == "errored", f"{count} turns"
            assert len(undone) == count + 1

    run(scenario, order)


@CRASH
@pytest.mark.parametrize("late", [0, 3])
def test_tasks_of_a_loop_that_fail_unseen_are_logged_once_however_often_a_run_is_replayed(
    late: int, crash: bool
):
    async def body(step: Step, state: int) -> Break | Continue:
        async def fails() -> None:
            await turns(late)
            raise ValueError(f"in {state}")

        task = asyncio.ensure_future(fails())
        await step.sleep("nap", "1 second")
        if late:
            task = asyncio.ensure_future(fails())
        del task
        return Break(state) if state == 2 else Continue(state + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.loop("pages", body, state=0, commit_interval=1)
        await step.sleep("nap", "1 second")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(5):
            if crash:
                await test.crash()
            await test.advance("1 second")
        assert await state_of(instance) == "complete"
        lines = [line.message for line in (await instance.history()).logs]
        assert [line.rpartition(": ")[2] for line in lines] == ["in 0", "in 1", "in 2"]
        assert all("fails failed unseen: ValueError" in line for line in lines)

    run(scenario, order)


@CRASH
@pytest.mark.parametrize("handlers", [False, True])
def test_what_a_run_has_left_that_fails_is_cancelled(handlers: bool, crash: bool):
    undone: list[object] = []

    async def fails(step: Step) -> None:
        await step.sleep("pause", "1 second")
        raise ValueError("no")

    async def waits(step: Step) -> None:
        await step.wait_for_event("word", type="word")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if handlers:
            await step.checkpoint("begin")
            await step.do("pay", lambda: 1, rollback=undone.append)
        await asyncio.gather(
            step.wait_for_event("answer", type="answer"),
            step.sleep("nap", "1 hour"),
            step.do("tries", refuse_for_now, retries=Retry(delay="1 hour")),
            step.join("both", waits=waits),
            step.run_workflow("bill", "invoice", id="inv-1"),
            fails(step),
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("1 second")
        assert (await error_of(instance)).message == "no"
        rows = (await instance.history()).steps
        left = [row for row in rows if row.step_key not in ("begin", "pay", "pause")]
        assert {row.step_key: row.status for row in left} == dict.fromkeys(
            ("answer", "nap", "tries", "both", "both/waits/word", "bill"), "cancelled"
        )
        assert {row.next_retry_at for row in left} == {None}
        assert undone == [1] * handlers
        assert await state_of(test.get("invoice", "inv-1")) == "terminated"
        await test.advance("2 hours")
        assert (await instance.history()).steps == rows

    run(scenario, order, invoice)


@CRASH
def test_what_a_run_has_left_is_cancelled_while_it_is_rolled_back(crash: bool):
    async def takes_long(result: object) -> None:
        await pass_time("1 minute")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("begin")
        await step.do("pay", lambda: 1, rollback=takes_long)

        async def fails() -> None:
            await step.sleep("pause", "1 second")
            raise ValueError("no")

        await asyncio.gather(
            step.wait_for_event("answer", type="answer"), step.sleep("nap", "5 seconds"), fails()
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 second")
        if crash:
            await test.crash()
        await instance.send_event("answer", 1)
        await test.advance("10 seconds")
        assert await state_of(instance) == "active"
        history = await instance.history()
        assert [row.status for row in history.steps if row.name in ("answer", "nap")] == [
            "cancelled",
            "cancelled",
        ]
        assert [event.consumed_by_step_key for event in history.events] == [None]

    run(scenario, order)


def test_what_a_terminated_run_had_under_way_is_cancelled():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await asyncio.gather(
            step.wait_for_event("answer", type="answer"), step.sleep("nap", "1 hour")
        )

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.terminate()
        await test.run_until_idle()
        assert [row.status for row in (await instance.history()).steps] == ["cancelled"] * 2

    run(scenario, order)
