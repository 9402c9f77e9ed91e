"""Limits of concurrency: so many runs of a workflow are under way at once, and the others wait."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater import (
    ChildWorkflowError,
    Concurrency,
    Step,
    Workflow,
    WorkflowEvent,
    WorkflowParamsInvalidError,
    WorkflowTest,
    workflow,
)


def scene(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is played in a loop of its own."""

    @functools.wraps(test)
    def play(*given: object, **more: object) -> None:
        async def whole() -> None:
            await test(*given, **more)

        asyncio.run(whole())

    return play


def limited(concurrency: Concurrency | int | None, seconds: int = 60) -> Workflow[Any, str]:
    """A workflow that sleeps, and fails if its params say so."""

    @workflow("order", concurrency=concurrency)
    async def order(event: WorkflowEvent[Any], step: Step) -> str:
        payload = event.payload or {}
        await step.do("begin", lambda: "begun")
        await step.sleep("nap", seconds * 1_000)
        if payload.get("fails"):
            raise LookupError("sold out")
        return event.instance_id

    return order


async def begun(test: WorkflowTest, ids: list[str], name: str = "order") -> list[str]:
    """Those of the instances whose code has begun."""
    return [item for item in ids if (await test.get(name, item).history()).steps]


async def statuses(test: WorkflowTest, ids: list[str]) -> list[str]:
    return [(await test.get("order", item).status()).status for item in ids]


IDS = ["a", "b", "c", "d", "e"]


@scene
async def test_no_more_runs_than_the_limit_begin_and_the_others_follow_in_their_order():
    async with WorkflowTest([limited(2)]) as test:
        for item in IDS:
            await test.create("order", id=item)
        await test.run_until_idle()
        assert await begun(test, IDS) == ["a", "b"]
        assert await statuses(test, IDS) == ["waiting"] * 5
        await test.advance("1 minute")
        assert await begun(test, IDS) == ["a", "b", "c", "d"]
        assert await statuses(test, IDS) == [
            "complete",
            "complete",
            "waiting",
            "waiting",
            "waiting",
        ]
        await test.advance("2 minutes")
        assert await statuses(test, IDS) == ["complete"] * 5


@scene
async def test_a_number_alone_is_a_limit_for_all_runs_of_the_workflow():
    assert limited(3).concurrency == Concurrency(3)
    assert limited(None).concurrency is None


@scene
async def test_a_key_gives_each_of_its_values_a_limit_of_its_own():
    regions = {"a": "eu", "b": "us", "c": "eu", "d": "us", "e": 7}
    async with WorkflowTest([limited(Concurrency(1, key="params.region"))]) as test:
        for item, region in regions.items():
            await test.create("order", id=item, params={"region": region})
        await test.run_until_idle()
        assert await begun(test, IDS) == ["a", "b", "e"]
        await test.advance("1 minute")
        assert await begun(test, IDS) == IDS


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({}, 'Key not found in map : "region"'),
        (None, "found that it gives none"),
        ({"region": None}, "expected a text, a number or a boolean, found null"),
        ({"region": ["eu"]}, "expected a text, a number or a boolean, found ["),
        ({"region": "x" * 300}, "expected at most 256 characters, found 302"),
    ],
)
@scene
async def test_params_that_give_no_key_are_refused(params: object, found: str):
    async with WorkflowTest([limited(Concurrency(1, key="params.region"))]) as test:
        with pytest.raises(WorkflowParamsInvalidError) as refused:
            await test.create("order", id="a", params=params)
        assert "the key of the limit of concurrency" in str(refused.value)
        assert found in str(refused.value)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: limited(0), ValueError, "expected a limit of concurrency of 1 to 1000000"),
        (lambda: limited(True), ValueError, "found True"),
        (lambda: limited("3"), TypeError, "a number or a Concurrency"),  # type: ignore[arg-type]
        (lambda: Concurrency(2, key=" "), ValueError, "expression in CEL"),
        (
            lambda: WorkflowTest([limited(Concurrency(2, key="params."))]),
            ValueError,
            "of the workflow order: expected the key of the limit to be an expression over params",
        ),
        (
            lambda: WorkflowTest([limited(Concurrency(2, key="input.region"))]),
            ValueError,
            "undeclared reference to 'input",
        ),
    ],
)
@scene
async def test_a_limit_that_cannot_be_is_refused_where_it_is_declared(
    given: Callable[[], object], error: type[Exception], message: str
):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        given()


@pytest.mark.parametrize("end", ["terminate", "cancel"])
@scene
async def test_who_is_ended_while_it_waits_leaves_the_queue(end: str):
    async with WorkflowTest([limited(1)]) as test:
        for item in IDS:
            await test.create("order", id=item)
        await test.run_until_idle()
        for item in ("b", "c"):
            await getattr(test.get("order", item), end)()
        await test.run_until_idle()
        assert await statuses(test, ["a", "b", "c"]) == ["waiting", "terminated", "terminated"]
        error = (await test.get("order", "b").status()).error
        assert (error and error.name) == ("Cancelled" if end == "cancel" else None)
        await test.advance("1 minute")
        assert await begun(test, IDS) == ["a", "d"]


@pytest.mark.parametrize("end", ["terminate", "cancel", "fail"])
@scene
async def test_however_a_run_ends_its_slot_is_the_next_ones(end: str):
    async with WorkflowTest([limited(1)]) as test:
        await test.create("order", id="a", params={"fails": end == "fail"})
        await test.create("order", id="b")
        await test.run_until_idle()
        if end == "fail":
            await test.advance("1 minute")
        else:
            await getattr(test.get("order", "a"), end)()
        await test.run_until_idle()
        assert await begun(test, ["a", "b"]) == ["a", "b"]


@scene
async def test_a_run_that_is_paused_keeps_its_slot_and_one_that_waits_begins_when_it_is_resumed():
    async with WorkflowTest([limited(1)]) as test:
        first, second = [await test.create("order", id=value) for value in ("a", "b")]
        await test.run_until_idle()
        await first.pause()
        await second.pause()
        await second.resume()
        await test.run_until_idle()
        assert await statuses(test, ["a", "b"]) == ["paused", "waiting"]
        assert await begun(test, ["a", "b"]) == ["a"]
        await second.pause()
        await first.terminate()
        await test.run_until_idle()
        assert await statuses(test, ["a", "b"]) == ["terminated", "paused"]
        assert await begun(test, ["a", "b"]) == ["a"]
        await second.resume()
        await test.run_until_idle()
        assert await begun(test, ["a", "b"]) == ["a", "b"]


@scene
async def test_a_restart_waits_behind_those_who_wait_already():
    async with WorkflowTest([limited(1)]) as test:
        first = await test.create("order", id="a")
        await test.create("order", id="b")
        await test.run_until_idle()
        await first.restart()
        await test.run_until_idle()
        assert await begun(test, ["a", "b"]) == ["b"]
        await test.advance("1 minute")
        assert await begun(test, ["a", "b"]) == ["a", "b"]
        await test.advance("1 minute")
        assert await statuses(test, ["a", "b"]) == ["complete", "complete"]


@scene
async def test_a_retry_asks_for_a_slot_again():
    async with WorkflowTest([limited(1)]) as test:
        first = await test.create("order", id="a", params={"fails": True})
        await test.create("order", id="b")
        await test.advance("1 minute")
        assert await statuses(test, ["a", "b"]) == ["errored", "waiting"]
        await first.retry()
        await test.run_until_idle()
        assert await statuses(test, ["a", "b"]) == ["waiting", "waiting"]
        await test.advance("2 minutes")
        assert await statuses(test, ["a", "b"]) == ["errored", "complete"]


@scene
async def test_slots_outlive_a_crash():
    async with WorkflowTest([limited(2)]) as test:
        for item in IDS:
            await test.create("order", id=item)
            await test.crash()
        await test.run_until_idle()
        await test.crash()
        await test.run_until_idle()
        assert await begun(test, IDS) == ["a", "b"]
        await test.advance("1 minute")
        await test.crash()
        await test.run_until_idle()
        assert await begun(test, IDS) == ["a", "b", "c", "d"]


@scene
async def test_a_child_of_a_limited_workflow_waits_for_its_slot_and_its_parent_for_the_child():
    @workflow("parent")
    async def parent(event: WorkflowEvent[Any], step: Step) -> object:
        return await step.run_workflow("order", "order", id=f"of-{event.instance_id}")

    async with WorkflowTest([limited(1), parent]) as test:
        for value in ("p", "q"):
            await test.create("parent", id=value)
        await test.run_until_idle()
        assert await begun(test, ["of-p", "of-q"]) == ["of-p"]
        await test.get("parent", "p").terminate()
        await test.run_until_idle()
        assert await begun(test, ["of-p", "of-q"]) == ["of-p", "of-q"]
        await test.advance("1 minute")
        assert (await test.get("parent", "q").status()).output == "of-q"


@scene
async def test_a_child_whose_params_give_no_key_fails_its_parent():
    @workflow("parent")
    async def parent(event: WorkflowEvent[Any], step: Step) -> object:
        try:
            return await step.run_workflow("order", "order", id="child", params={})
        except ChildWorkflowError as error:
            return str(error)

    async with WorkflowTest([limited(Concurrency(1, key="params.region")), parent]) as test:
        instance = await test.create("parent", id="p")
        await test.run_until_idle()
        output = (await instance.status()).output
        assert "the key of the limit of concurrency" in str(output)


@scene
async def test_events_lie_in_the_mailbox_while_a_run_waits_for_its_slot():
    @workflow("order", concurrency=1)
    async def order(event: WorkflowEvent[Any], step: Step) -> object:
        got = await step.wait_for_event("go", type="go")
        return got.payload

    async with WorkflowTest([order]) as test:
        first, second = [await test.create("order", id=value) for value in ("a", "b")]
        await second.send_event("go", 2)
        await test.run_until_idle()
        assert await statuses(test, ["a", "b"]) == ["waiting", "waiting"]
        await first.send_event("go", 1)
        await test.run_until_idle()
        assert [(await item.status()).output for item in (first, second)] == [1, 2]


@scene
async def test_a_workflow_without_a_limit_has_the_history_that_it_always_had():
    async with WorkflowTest([limited(None)]) as test:
        await test.create("order", id="a")
        await test.advance("1 minute")
        kinds = [type(e).__name__ for r in test.records("order", "a") for e in r.events]
        assert not [kind for kind in kinds if "Slot" in kind or "Post" in kind]
