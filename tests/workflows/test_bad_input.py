"""What authors and callers get wrong: refused with what was expected, what was found, and where."""

import asyncio
import re

import pytest

from headwater import Break, Continue, Retry, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    Calls,
    begin,
    error_of,
    failure,
    keys_of,
    output,
    output_of,
    run,
    state_of,
)

ONCE = Retry(limit=0)
MIB = 1024 * 1024
LIMIT_OF_A_MIB = re.compile(r"1 ?MiB|1[,_ ]?048[,_ ]?576", re.IGNORECASE)


def order_that(callback: object) -> object:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("save", callback, retries=ONCE)

    return order


@workflow("bystander")
async def bystander(event: WorkflowEvent, step: Step) -> str:
    """What someone else runs on the same worker."""
    await step.do("work", lambda: 1)
    await step.sleep("nap", "1 minute")
    return "fine"


async def nothing(event: WorkflowEvent, step: Step) -> None:
    """Stands for a workflow that is declared and never run."""


@pytest.mark.parametrize(
    ("result", "found"),
    [(object(), "object"), ({1, 2}, "set"), ({"deep": [1, {"er": 1j}]}, "complex"), (len, None)],
    ids=["object", "set", "deep inside", "function"],
)
def test_a_result_that_is_not_json_is_refused_by_step_and_type(result: object, found: str | None):
    error = failure(order_that(lambda: result))
    assert "save" in error.message
    assert "json" in error.message.lower()
    assert found is None or found in error.message


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB])
def test_a_result_over_a_mebibyte_is_refused_by_step_and_limit(size: int):
    error = failure(order_that(lambda: "x" * size))
    assert "save" in error.message
    assert LIMIT_OF_A_MIB.search(error.message), error.message


def test_a_result_just_below_a_mebibyte_is_kept():
    assert len(str(output(order_that(lambda: "x" * (MIB - 100))))) == MIB - 100


def test_an_output_that_is_not_json_ends_the_instance_by_name_and_type():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return {1, 2}

    error = failure(order)
    assert "order" in error.message
    assert "set" in error.message


def test_a_loop_state_that_is_not_json_is_refused_by_the_name_of_the_loop():
    async def one_page(step: Step, state: dict) -> object:
        return Break(None) if state.get("seen") else Continue({"seen": {1, 2}})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.loop("pages", one_page, state={}, commit_interval=1)

    error = failure(order)
    assert "pages" in error.message
    assert "set" in error.message


def test_params_that_are_not_json_are_refused_where_they_are_given():
    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(Exception, match=r"(?i)json"):
            await test.create("bystander", id="i-1", params={"at": object()})

    run(scenario, bystander)


@pytest.mark.parametrize(
    ("payload", "expected"), [(object(), re.compile("(?i)json")), ("x" * (MIB + 1), LIMIT_OF_A_MIB)]
)
def test_payloads_that_are_not_json_or_too_large_are_refused_where_they_are_sent(
    payload: object, expected: re.Pattern
):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "bystander")
        with pytest.raises(Exception, match=expected):
            await instance.send_event("line", payload)
        assert (await instance.history()).events == []
        await test.advance("1 minute")
        assert await output_of(instance) == "fine"

    run(scenario, bystander)


@pytest.mark.parametrize("name", ["", "-order", "an order", "a.b", "a/b", "bestellung-ü", "a" * 65])
def test_a_workflow_name_that_breaks_the_rules_is_refused_where_it_is_declared(name: str):
    with pytest.raises(ValueError, match=re.escape(name[:20]) or None):
        workflow(name)(nothing)


@pytest.mark.parametrize("name", ["a" * 64, "_", "9-lives_A"])
def test_a_workflow_name_within_the_rules_is_taken(name: str):
    @workflow(name)
    async def allowed(event: WorkflowEvent, step: Step) -> str:
        return event.workflow_name

    assert output(allowed, name=name) == name


def test_a_step_name_may_have_256_characters_and_no_more():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("a" * 256, lambda: 1)
        await step.do("b" * 257, lambda: 2)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        error = await error_of(instance)
        assert "256" in error.message
        assert "257" in error.message
        assert await keys_of(instance) == ["a" * 256]

    run(scenario, order)


@pytest.mark.parametrize("instance", ["", "-a", "an id", "a/b", "a.b", "ü", "a" * 101])
def test_an_instance_id_that_breaks_the_rules_is_refused(instance: str):
    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(Exception, match=re.escape(instance[:20]) or None) as caught:
            await test.create("bystander", id=instance)
        assert caught.value.code == "INVALID_INSTANCE_ID"

    run(scenario, bystander)


@pytest.mark.parametrize("kind", ["", "-a", "an event", "a/b", "ü", "a" * 101])
def test_an_event_type_that_breaks_the_rules_is_refused(kind: str):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "bystander")
        with pytest.raises(Exception, match=re.escape(kind[:20]) or None) as caught:
            await instance.send_event(kind)
        assert caught.value.code == "INVALID_EVENT_TYPE"
        assert (await instance.history()).events == []

    run(scenario, bystander)


def test_the_longest_ids_and_event_types_are_taken():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return (await step.wait_for_event("go", type="g" * 100)).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, instance="i" * 100)
        await instance.send_event("g" * 100, "on")
        await test.run_until_idle()
        assert await output_of(instance) == "on"

    run(scenario, order)


def test_an_unknown_workflow_is_refused_by_name():
    async def scenario(test: WorkflowTest) -> None:
        with pytest.raises(Exception, match="nope") as caught:
            await test.create("nope", id="i-1")
        assert caught.value.code == "WORKFLOW_NOT_FOUND"

    run(scenario, bystander)


def test_a_child_of_an_unknown_workflow_raises_into_the_parent_by_name():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.run_workflow("bill", "nope", id="inv-1")

    assert "nope" in failure(order).message


@pytest.mark.parametrize("goes_on", [False, True], ids=["returns at once", "goes on"])
def test_a_workflow_that_forgets_to_await_is_told_which_step(goes_on: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        step.do("forgotten", lambda: 1)
        if goes_on:
            await step.do("second", lambda: 2)
        return "done"

    error = failure(order)
    assert "await" in error.message
    assert "forgotten" in error.message


class Odd(BaseException):
    """What is no Exception."""


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, Odd])
def test_a_callback_that_raises_what_is_no_exception_fails_its_step_only(
    error: type[BaseException],
):
    def leave() -> None:
        raise error("leaving")

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        other = await test.create("bystander", id="other")
        await test.run_until_idle()
        assert (await error_of(instance)).name == error.__name__
        await test.advance("1 minute")
        assert await output_of(other) == "fine"

    run(scenario, order_that(leave), bystander)


@pytest.mark.parametrize("error", [SystemExit, Odd])
def test_a_body_that_raises_what_is_no_exception_fails_its_instance_only(
    error: type[BaseException],
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote", lambda: 1)
        raise error("leaving")

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        other = await test.create("bystander", id="other")
        await test.run_until_idle()
        assert (await error_of(instance)).name == error.__name__
        await test.advance("1 minute")
        assert await output_of(other) == "fine"

    run(scenario, order, bystander)


def descend(depth: int = 0) -> int:
    return descend(depth + 1)


@pytest.mark.parametrize("where", ["body", "callback"])
def test_code_that_recurses_without_end_fails_its_instance_only(where: str):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if where == "body":
            return descend()
        return await step.do("save", descend, retries=ONCE)

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        other = await test.create("bystander", id="other")
        await test.run_until_idle()
        assert (await error_of(instance)).name == "RecursionError"
        await test.advance("1 minute")
        assert await output_of(other) == "fine"

    run(scenario, order, bystander)


def test_a_task_that_outlives_its_workflow_changes_nothing():
    calls = Calls()
    leaked: list[object] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        ended = asyncio.Event()

        async def late() -> None:
            await ended.wait()
            calls.names.append("awake")
            await step.do("late", calls.of("late"))

        leaked.extend([asyncio.create_task(late()), ended])
        await step.do("work", calls.of("work"))
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        before = await state_of(instance)
        assert before in ("complete", "errored")
        task, ended = leaked
        ended.set()
        await asyncio.wait([task], timeout=0.01)
        await test.run_until_idle()
        assert await state_of(instance) == before
        assert await keys_of(instance) == ["work"]
        assert "late" not in calls.names
        task.cancel()

    run(scenario, order)


@pytest.mark.parametrize(
    ("message", "category", "limit"),
    [("x" * 2049, "payments", "2048"), ("hello", "c" * 65, "64")],
    ids=["message", "category"],
)
def test_a_log_line_that_is_too_long_raises_into_the_workflow_by_its_limit(
    message: str, category: str, limit: str
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.log.info("x" * 2048, category="c" * 64)
        try:
            await step.log.info(message, category=category)
        except Exception as error:  # noqa: BLE001 the contract names no class
            return str(error).replace(",", "")
        return None

    assert limit in str(output(order))


def test_the_1025th_entry_of_a_run_is_refused():
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> int:
        for number in range(event.payload):
            await step.do(f"step {number}", calls.of("step"))
        return event.payload

    async def scenario(test: WorkflowTest) -> None:
        enough = await begin(test, instance="enough", params=1024)
        assert await output_of(enough) == 1024
        too_many = await begin(test, instance="too-many", params=1025)
        message = (await error_of(too_many)).message
        assert re.search("1,?024", message), message
        assert len(calls.names) == 2048

    run(scenario, order)


@pytest.mark.parametrize("params", [["a", "list"], "text", 3])
def test_params_that_fail_the_declared_type_never_reach_the_body(params: object):
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent[dict], step: Step) -> object:
        return await step.do("quote", calls.of("quote"))

    async def scenario(test: WorkflowTest) -> None:
        try:
            instance = await test.create("order", id="i-1", params=params)
        except Exception as refusal:  # noqa: BLE001 whether create refuses is open
            message = str(refusal)
        else:
            await test.run_until_idle()
            message = (await error_of(instance)).message
        assert "dict" in message or "object" in message
        assert calls.names == []

    run(scenario, order)
