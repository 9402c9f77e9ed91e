"""Mistakes in calls: each is told at once, by the name of the entry and of the argument."""

import asyncio
import functools
import gc
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from headwater import (
    Break,
    Continue,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    Retry,
    Step,
    StepTx,
    WorkflowEvent,
    WorkflowTest,
    task,
    workflow,
)
from headwater.gateway.client.requests import path
from headwater.streams.authoring.request_arguments import parse_batch
from headwater.streams.replay import loops, run_context
from headwater.streams.replay.loops import IDLE_MAX
from tests.workflows.running import (
    CRASH,
    Calls,
    begin,
    error_of,
    failure,
    keys_of,
    output,
    output_of,
    run,
)

Entry = Callable[[Step], object]


def one(entry: Entry) -> object:
    """A workflow of one entry, after a checkpoint."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.checkpoint("from here")
        return await entry(step)

    return order


def bad() -> None:
    raise ValueError("out of order")


@pytest.mark.parametrize("retries", [0, 3, False, {}, {"limit": 2}, "3", [], Retry])
def test_retries_that_are_no_retry_are_refused(retries: object):
    calls = Calls()
    error = failure(one(lambda step: step.do("save", calls.of("save"), retries=retries)))
    assert error.name == "TypeError"
    assert error.message.startswith('expected the retries of the step "save" to be a Retry, found')
    assert calls.names == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"limit": "3"}, "the limit of a Retry to be a whole number of retries, at most"),
        ({"limit": True}, "found True"),
        ({"limit": None}, "found None"),
        ({"limit": -1}, "found -1"),
        ({"limit": 1.5}, "found 1.5"),
        ({"limit": math.nan}, "found nan"),
        ({"delay": "soon"}, "found 'soon', as the delay of a Retry"),
        ({"delay": None}, "found None, as the delay of a Retry"),
        ({"delay": -1}, "found -1, as the delay of a Retry"),
        ({"delay": "1 moon"}, "found 'moon' in the duration '1 moon', as the delay of a Retry"),
        ({"backoff": "cubic"}, "the backoff of a Retry to be constant, linear or exponential"),
        ({"backoff": ["linear"]}, "found ['linear']"),
    ],
)
def test_a_retry_of_odd_values_is_refused_where_it_is_written(values: dict[str, Any], told: str):
    with pytest.raises(ValueError, match=re.escape(told)):
        Retry(**values)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (lambda step: step.sleep("nap", None), 'None, as the length of the sleep "nap"'),
        (lambda step: step.sleep("nap", "soon"), 'as the length of the sleep "nap"'),
        (lambda step: step.sleep("nap", "400 days"), 'the sleep "nap" to last at most 365 days'),
        (lambda step: step.sleep_until("nap", None), 'found None, as the end of the sleep "nap"'),
        (lambda step: step.sleep_until("nap", "now"), 'as the end of the sleep "nap"'),
        (
            lambda step: step.do("save", bad, timeout=None),
            'found None, as the timeout of the step "save"',
        ),
        (
            lambda step: step.wait_for_event("word", type="w", timeout="soon"),
            "found 'soon', as the timeout of \"word\"",
        ),
        (
            lambda step: step.run_workflow("bill", "order", timeout=-1),
            'found -1, as the timeout of "bill"',
        ),
        (lambda step: step.run_workflow("bill", "a\0"), "the name of a workflow of 1 to 64"),
        (lambda step: step.run_workflow("bill", "order", id="a b"), "an instance id of 1 to 100"),
        (lambda step: step.wait_for_event("word", type=""), "found '', in the wait \"word\""),
        (lambda step: step.wait_for_event("word", type=None), 'found None, in the wait "word"'),
        (
            lambda step: step.wait_for_events("word", types="approval"),
            'the types of the wait "word" to be a list, as types=["approval"], found \'approval\'',
        ),
        (lambda step: step.wait_for_events("word", types=None), "to be a list"),
        (lambda step: step.wait_for_events("word", types=["a", 5]), 'found 5, in the wait "word"'),
        *(
            (entry, f"expected the timeout of {what} to be at least 1 ms, found {timeout!r}")
            for timeout in (0, 0.4, "0 s")
            for entry, what in (
                (
                    lambda step, timeout=timeout: step.do("save", bad, timeout=timeout),
                    'the step "save"',
                ),
                (
                    lambda step, timeout=timeout: step.run_workflow("b", "order", timeout=timeout),
                    '"b"',
                ),
            )
        ),
    ],
)
def test_an_argument_that_says_nothing_is_refused_by_the_name_of_its_entry(entry: Entry, told: str):
    assert told in failure(one(entry)).message


@pytest.mark.parametrize("name", ["a\0", "a\nb", "\x1b[31mred", "\x7f", "ü\x85"])
@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (lambda step, name: step.do(name, bad), "an entry"),
        (lambda step, name: step.sleep(name, 1), "an entry"),
        (lambda step, name: step.wait_for_event(name, type="a"), "an entry"),
        (lambda step, name: step.run_workflow(name, "order"), "an entry"),
        (lambda step, name: step.checkpoint(name), "an entry"),
        (lambda step, name: step.removed(name, kind="step"), "an entry"),
        (lambda step, name: step.loop(name, bad), "an entry"),
        (lambda step, name: step.join(name, one=bad), "an entry"),
        (lambda step, name: step.join("both", **{name: bad}), 'a branch of "both"'),
        (lambda step, name: step.race("both", **{name: bad}), 'a branch of "both"'),
        (lambda step, name: step.now(name), "a call of step.now"),
        (lambda step, name: step.uuid(name), "a call of step.uuid"),
        (lambda step, name: step.random(name), "a call of step.random"),
    ],
)
def test_a_name_with_control_characters_is_refused(entry: Callable, what: str, name: str):
    error = failure(one(lambda step: entry(step, name)))
    assert error.name == "ValueError"
    assert error.message.startswith(f"expected the name of {what} to have no control characters, ")


@pytest.mark.parametrize("name", ["", "a" * 257])
def test_a_branch_has_a_name_as_entries_have(name: str):
    error = failure(one(lambda step: step.join("both", **{name: bad})))
    assert error.message.startswith('expected the name of a branch of "both" to be ')


@pytest.mark.parametrize("category", ["a\0", "a\n"])
def test_a_category_of_a_line_has_no_control_characters(category: str):
    error = failure(one(lambda step: step.log.info("said", category=category)))
    assert "category without control characters" in error.message


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "20", None])
@pytest.mark.parametrize("setting", ["commit_interval", "history_every", "history_keep"])
def test_the_pace_of_a_loop_is_in_whole_numbers(setting: str, value: object):
    error = failure(one(lambda step: step.loop("pages", bad, **{setting: value})))
    assert error.name == "ValueError"
    assert error.message == f"expected {setting} to be a whole number from 1, found {value!r}"


def two(first: object, second: object) -> object:
    return first, second


@pytest.mark.parametrize(
    "callback", [two, lambda tx, other: 1, functools.partial(two), lambda tx, other, *, why: 1]
)
def test_a_callback_of_several_arguments_is_refused_at_once(callback: Callable):
    error = failure(one(lambda step: step.do("save", callback)))
    assert error.name == "TypeError"
    assert 'the function of the step "save" to take no argument or one' in error.message
    assert "found that it needs 2" in error.message


def test_a_callback_that_needs_an_argument_by_name_is_refused_at_once():
    error = failure(one(lambda step: step.do("save", lambda *, why: why)))
    assert error.name == "TypeError"
    assert "found that it needs 0, and why by name" in error.message


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        ("undo", "to be a function of the result of the step, found 'undo'"),
        (5, "to be a function of the result of the step, found 5"),
        (lambda: None, "to take one argument, the result of the step, found: too many positional"),
        (two, "found: missing a required argument: 'second'"),
        (lambda result, *, why: None, "found: missing a required"),
        (functools.partial(two, 1, 2), "found: too many positional arguments"),
        (object, "found: too many positional arguments"),
    ],
)
def test_a_rollback_that_cannot_be_called_is_refused_at_once(handler: object, told: str):
    calls = Calls()
    error = failure(one(lambda step: step.do("save", calls.of("save"), rollback=handler)))
    assert error.name == "TypeError"
    assert 'expected the rollback of the step "save"' in error.message
    assert told in error.message
    assert calls.names == []


def test_a_rollback_that_was_called_already_is_refused():
    async def undo(result: object) -> None:
        """Never runs."""

    error = failure(one(lambda step: step.do("save", lambda: 1, rollback=undo(1))))
    assert "found <coroutine object" in error.message


UNDONE: list[object] = []


@pytest.mark.parametrize(
    "handler",
    [
        lambda result: UNDONE.append(result),  # noqa: PLW0108, its kind matters
        lambda result, why=None: UNDONE.append(result),
        lambda *results: UNDONE.extend(results),
        lambda result=None, *, why=None: UNDONE.append(result),
        UNDONE.append,
        functools.partial(lambda where, result: where.append(result), UNDONE),
    ],
)
def test_a_rollback_of_one_argument_in_any_form_is_taken(handler: Callable):
    async def entry(step: Step) -> None:
        await step.do("save", lambda: 5, rollback=handler)
        raise ValueError("out of order")

    UNDONE.clear()
    assert failure(one(entry)).message == "out of order"
    assert UNDONE == [5]


def test_a_rollback_that_is_built_in_and_does_not_say_what_it_takes_is_taken():
    async def entry(step: Step) -> None:
        await step.do("save", lambda: "5", rollback=int)
        raise ValueError("out of order")

    assert failure(one(entry)).message == "out of order"


def not_async(step: Step, state: object = None) -> Break:
    return Break(1)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (lambda step: step.loop("pages", not_async), 'the body of the loop "pages"'),
        (lambda step: step.loop("pages", 5), 'the body of the loop "pages"'),
        (lambda step: step.join("both", left=not_async), 'the branch "left"'),
        (lambda step: step.race("first", left=not_async), 'the branch "left"'),
    ],
)
def test_code_of_entries_that_is_not_async_is_refused(entry: Entry, told: str):
    message = failure(one(entry)).message
    assert f"expected {told} to be an async function, found" in message


def test_a_body_or_branch_may_be_a_function_that_gives_something_to_await():
    async def work(step: Step, state: object) -> Break:
        return Break(state)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        looped = await step.loop("pages", lambda step, _: work(step, 1))
        both = await step.join("both", left=lambda step: step.do("load", lambda: 2))
        return [looped, both["left"]]

    assert output(order) == [1, 2]


# -- lines that nobody awaits


@pytest.mark.parametrize("level", ["debug", "info", "warn", "error"])
def test_a_line_that_is_not_awaited_fails_the_run(level: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        getattr(step.log, level)("charged")

    error = failure(order)
    assert error.name == "NotAwaitedError"
    assert f"without awaiting log.{level}('charged')" in error.message
    gc.collect()


def test_a_line_that_a_branch_does_not_await_fails_the_branch():
    async def branch(step: Step) -> int:
        step.log.info("charged")
        return 1

    error = failure(one(lambda step: step.join("both", left=branch)))
    assert "log.info('charged')" in error.message


def test_lines_may_be_awaited_in_tasks_and_together_and_in_callbacks():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def callback() -> None:
            await step.log.info("inside")

        later = asyncio.create_task(step.log.info("in a task"))
        await asyncio.gather(step.log.info("one"), step.log.info("two"))
        await step.do("save", callback)
        await step.do("lambda", lambda: step.log.info("given back"))
        await later

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await output_of(instance)
        lines = {line.message for line in (await instance.history()).logs}
        assert lines == {"inside", "in a task", "one", "two", "given back"}
        assert await keys_of(instance) == ["save", "lambda"]

    run(scenario, order)


# -- from outside


def test_a_harness_is_given_workflows():
    order = one(lambda step: step.do("save", lambda: 1))
    for provided in (order, None, "order"):
        with pytest.raises(TypeError, match=r"expected workflows, as in WorkflowTest\(\[order\]\)"):
            WorkflowTest(provided)


@pytest.mark.parametrize(
    "found", [{"params": 1}, {}, "a", None, {"id": "a", "parameters": 1}, {"labels": {}}]
)
def test_a_batch_says_which_of_it_is_wrong(found: object):
    with pytest.raises(ValueError, match=r'"params" and "labels", found .* as number 1'):
        parse_batch([{"id": "fine"}, found])

    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(ValueError, match="as number 0"):
            await test.create_batch("order", [found])

    run(scenario, one(lambda step: step.do("save", lambda: 1)))


@pytest.mark.parametrize("name", [5, None, "no spaces", ""])
def test_a_harness_refuses_ids_and_types_of_events_by_name(name: object):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        with pytest.raises(InvalidEventTypeError, match="expected an event type of 1 to 100"):
            await instance.send_event(name)
        with pytest.raises(InvalidInstanceIdError, match="expected an instance id of 1 to 100"):
            await test.create_batch("order", [{"id": name}])
        if name is not None:
            with pytest.raises(InvalidInstanceIdError, match="expected an instance id of 1 to 100"):
                await test.create("order", id=name)

    run(scenario, one(lambda step: step.wait_for_event("word", type="word")))


def test_a_client_refuses_ids_that_are_no_text():
    with pytest.raises(TypeError, match="expected names and ids to be text, found 5"):
        path("workflows", "order", "instances", 5)


def test_an_odd_argument_leaves_the_other_runs_alone():
    async def scenario(test: WorkflowTest) -> None:
        odd = await begin(test)
        assert (await error_of(odd)).name == "TypeError"
        assert (await odd.history()).steps[-1].step_key == "from here"

    run(scenario, one(lambda step: step.do("save", bad, retries=0)))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            lambda step: step.join("both", a=lambda: None),
            'expected the branch "a" to take a step, found: too many positional arguments',
        ),
        (
            lambda step: step.race("both", a=lambda step, more: None),
            "expected the branch \"a\" to take a step, found: missing a required argument: 'more'",
        ),
        (
            lambda step: step.loop("turns", lambda step: None),
            'expected the body of the loop "turns" to take a step and the state, found: too many '
            "positional arguments",
        ),
    ],
)
def test_what_cannot_be_called_so_is_told_what_it_is_given(entry: Entry, expected: str):
    assert expected in failure(one(entry)).message


def test_a_workflow_or_a_task_that_cannot_be_called_is_refused_where_it_is_declared():
    async def nothing() -> None: ...

    async def both(event: object, step: object) -> None: ...

    with pytest.raises(TypeError, match=r"workflow order to be an async function \(event, step\)"):
        workflow("order")(nothing)
    with pytest.raises(TypeError, match=r"function \(input\).*missing a required argument: 'step'"):
        task("count")(both)


def test_a_transaction_that_is_used_after_its_step_says_so():
    kept: list[StepTx] = []

    def keep(tx: StepTx) -> None:
        kept.append(tx)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("save", keep)
        kept[0].publish("charges", "a", 1)

    error = failure(order)
    assert error.name == "RuntimeError"
    assert "a record or command while the callback of the step runs" in error.message


@pytest.mark.parametrize(
    "limited",
    [
        lambda: asyncio.wait_for(asyncio.get_running_loop().create_future(), 5),
        lambda: asyncio.sleep(5),
        lambda: asyncio.timeout(5).__aenter__(),
    ],
)
def test_timeouts_of_asyncio_are_refused_and_a_race_is_named(limited: Callable):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await limited()

    error = failure(order)
    assert error.name == "NonDeterministicError"
    assert "step.race" in error.message


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda step: step.do("save", bad), "save"),
        (lambda step: step.now(), "now"),
        (lambda step: step.uuid(), "uuid"),
        (lambda step: step.join("both", one=bad), "both"),
        (lambda step: step.log.info("said"), "log.info"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_the_step_of_another_run_is_refused_by_the_name_of_that_run(
    ended: bool, call: Callable, shown: str
):
    kept: list[Step] = []

    @workflow("first")
    async def first(event: WorkflowEvent, step: Step) -> None:
        kept.append(step)
        if not ended:
            await step.sleep("nap", "1 hour")

    @workflow("second")
    async def second(event: WorkflowEvent, step: Step) -> None:
        await call(kept[0])

    async def scenario(test: WorkflowTest) -> None:
        await begin(test, "first", "f-1")
        error = await error_of(await begin(test, "second", "s-1"))
        assert error.name == "NonDeterministicError"
        assert error.message == (
            f'expected "{shown}" to be called with the step of this run, found that of '
            "first/f-1, run 0: pass step on as an argument, and keep it in no global variable"
        )

    run(scenario, first, second)


@CRASH
def test_a_loop_that_calls_no_entry_ends_with_an_error(crash: bool):
    async def body(step: Step, state: int) -> Continue:
        return Continue(state + 1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.loop("pages", body, state=0, commit_interval=1_000)

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="o-1")
        if crash:
            await test.tick()
            await test.crash()
        await test.run_until_idle()
        error = await error_of(instance)
        assert error.name == "LoopError"
        assert f'"pages" to call an entry, found {IDLE_MAX:,} iterations in a row' in error.message

    run(scenario, order)


def test_a_loop_may_wait_for_what_other_code_has_from_entries():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        assert await output_of(instance) == {"takes": 60, "gives": None}

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def gives(step: Step) -> None:
            for number in range(60):
                await step.sleep(f"nap {number}", "1 second")
                queue.put_nowait(number)

        async def takes(step: Step) -> object:
            async def body(step: Step, state: int) -> Continue | Break:
                await queue.get()
                return Break(state + 1) if state == 59 else Continue(state + 1)

            return await step.loop("pages", body, state=0)

        return await step.join("both", takes=takes, gives=gives)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "IDLE_MAX", 3)
        run(scenario, order)


@pytest.mark.parametrize(
    "call", [lambda step: step.uuid(), lambda step: step.random(), lambda step: step.log.info("x")]
)
def test_code_that_calls_without_end_and_never_waits_ends_with_an_error(call: Callable):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        while True:
            await call(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_context, "CALLS_MAX", 1_000)
        error = failure(order)
    assert error.name == "NonDeterministicError"
    assert error.message == "the workflow spins: 1,000 calls of step without waiting for an entry"


@CRASH
def test_a_run_that_nothing_can_continue_says_so_once(crash: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("save", lambda: 1)
        await step.checkpoint("here")
        await asyncio.Event().wait()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await instance.send_event("word")
        await test.advance("1 day")
        assert (await instance.status()).status == "waiting"
        (line,) = (await instance.history()).logs
        assert (line.level, line.category) == ("warn", "system")
        assert line.message.startswith("the code waits for something that no entry will bring")

    run(scenario, order)


@pytest.mark.parametrize(
    "waits",
    [
        lambda step: step.sleep("nap", "1 hour"),
        lambda step: step.wait_for_event("word", type="word"),
        lambda step: step.do("save", bad),
        lambda step: step.run_workflow("other", "waiter"),
    ],
)
def test_a_run_that_something_can_continue_says_nothing(waits: Callable):
    @workflow("waiter")
    async def waiter(event: WorkflowEvent, step: Step) -> None:
        await step.sleep("nap", "1 hour")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("here")
        await waits(step)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await instance.history()).logs == []

    run(scenario, order, waiter)
