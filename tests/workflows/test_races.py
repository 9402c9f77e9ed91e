"""`step.race`: who wins, and what becomes of the others."""

import asyncio

import pytest

from headwater import RaceError, Step, UnserialisableError, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    CRASH,
    Calls,
    Deployed,
    begin,
    entry_at,
    failure,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)


def after(duration: str, value: object = None) -> object:
    """A branch that sleeps before it is done."""

    async def branch(step: Step) -> object:
        await step.sleep("wait", duration)
        return value

    return branch


async def refuses(step: Step) -> None:
    raise ValueError("no such key")


def race_of(**branches: object) -> object:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", **branches)
        return [first.winner, first.value]

    return order


def test_the_first_branch_to_complete_wins():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert await output_of(instance) == ["cache", 1]
        assert (await entry_at(instance, "fastest")).type == "race"

    run(scenario, race_of(db=after("2 hours", 2), cache=after("1 hour", 1)))


def test_none_is_a_value_that_can_win():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        assert await output_of(instance) == ["cache", None]

    run(scenario, race_of(db=after("2 hours", 2), cache=after("1 minute")))


def test_a_branch_that_fails_does_not_win():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "waiting"
        await test.advance("1 hour")
        assert await output_of(instance) == ["db", 2]

    run(scenario, race_of(cache=refuses, db=after("1 hour", 2)))


def test_when_all_branches_fail_the_race_fails():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.race("fastest", cache=refuses, db=refuses)
        except RaceError:
            return "all failed"
        return None

    assert output(order) == "all failed"


def test_an_uncaught_race_failure_is_the_error_of_the_instance():
    assert failure(race_of(cache=refuses, db=refuses)).name == "RaceError"


def test_a_loser_is_cancelled_and_its_history_says_so():
    calls = Calls()

    async def slow(step: Step) -> object:
        await step.sleep("wait", "2 hours")
        return await step.do("load", calls.of("load"))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        await output_of(instance)
        assert (await entry_at(instance, "fastest/db/wait")).status == "cancelled"
        assert (await entry_at(instance, "fastest/cache/wait")).status == "completed"
        await test.advance("5 hours")
        assert calls.names == []

    run(scenario, race_of(db=slow, cache=after("1 hour", 1)))


def test_a_loser_cannot_swallow_its_cancellation():
    calls = Calls()

    async def stubborn(step: Step) -> object:
        try:
            await step.sleep("wait", "2 hours")
        except Exception:  # noqa: BLE001 what careless authors write
            calls.names.append("swallowed")
        return await step.do("load", calls.of("load"))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", db=stubborn, cache=after("1 hour", 1))
        await step.sleep("cool off", "5 hours")
        return first.winner

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("6 hours")
        assert await output_of(instance) == "cache"
        assert calls.names == []

    run(scenario, order)


def test_a_race_against_a_sleep_is_a_timeout_for_work_on_its_way():
    calls = Calls()

    async def work() -> str:
        calls.names.append("begun")
        await pass_time("1 hour")
        calls.names.append("done")
        return "done"

    async def working(step: Step) -> object:
        return await step.do("work", work, timeout="3 hours")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        assert await output_of(instance) == ["timeout", None]
        await test.advance("5 hours")
        entry = await entry_at(instance, "fastest/work/work")
        assert (entry.status, entry.result) == ("cancelled", None)
        assert calls.names.count("begun") == 1

    run(scenario, race_of(work=working, timeout=after("1 minute")))


def test_an_event_that_a_loser_waited_for_goes_to_a_later_wait():
    async def waits(step: Step) -> object:
        return (await step.wait_for_event("approval", type="approval")).payload

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", reply=waits, timeout=after("1 minute"))
        reply = await step.wait_for_event("late approval", type="approval")
        return [first.winner, reply.payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await instance.send_event("approval", "yes")
        await test.run_until_idle()
        assert await output_of(instance) == ["timeout", "yes"]

    run(scenario, order)


@CRASH
def test_of_two_branches_that_finish_at_the_same_instant_the_first_argument_wins(crash: bool):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["zeta", 1]

    run(scenario, race_of(zeta=after("1 hour", 1), alpha=after("1 hour", 2)))


def test_the_winner_stays_the_winner_after_a_crash():
    code = Deployed()

    async def db(step: Step) -> str:
        if code.version == 1:
            await step.sleep("wait", "2 hours")
        return "db"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", db=db, cache=after("1 minute", "cache"))
        await step.sleep("cool off", "1 hour")
        return [first.winner, first.value]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        assert await output_of(instance) == ["cache", "cache"]

    run(scenario, order)


def test_a_join_may_run_inside_a_race_and_is_cancelled_whole():
    calls = Calls()

    async def slow(step: Step) -> object:
        await step.sleep("wait", "2 hours")
        return await step.do("load", calls.of("load"))

    async def joins(step: Step) -> object:
        both = await step.join("both", one=slow, two=slow)
        return both["one"]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert await output_of(instance) == ["timeout", None]
        for branch in ("one", "two"):
            entry = await entry_at(instance, f"fastest/joined/both/{branch}/wait")
            assert entry.status == "cancelled"
        await test.advance("5 hours")
        assert calls.names == []

    run(scenario, race_of(joined=joins, timeout=after("1 hour")))


def test_a_race_may_run_inside_a_join():
    async def races(step: Step) -> object:
        first = await step.race("fastest", db=after("2 hours", 2), cache=after("1 hour", 1))
        return first.winner

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        both = await step.join("fetch", user=races, posts=after("3 hours", "posts"))
        return [both["user"], both["posts"]]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        await test.crash()
        await test.advance("2 hours")
        assert await output_of(instance) == ["cache", "posts"]

    run(scenario, order)


@CRASH
def test_a_loser_sees_no_result_on_replay_that_it_had_not_seen(crash: bool):
    """Both sleeps end at the same instant: the loser's end is recorded before the race's."""

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen: list[str] = []

        def naps(name: str) -> object:
            async def branch(step: Step) -> None:
                seen.append(f"{name} begins")
                try:
                    await step.sleep("wait", "1 hour")
                    seen.append(f"{name} ends")
                finally:
                    seen.append(f"{name} leaves")

            return branch

        await step.race("fastest", a=naps("a"), b=naps("b"))
        await step.sleep("cool off", "1 hour")
        return seen

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        assert (await entry_at(instance, "fastest/b/wait")).status == "completed"
        if crash:
            await test.crash()
        await test.advance("1 hour")
        seen = ["a begins", "b begins", "a ends", "a leaves", "b leaves"]
        assert await output_of(instance) == seen

    run(scenario, order)


async def sleeps_beside(step: Step, seen: list[str]) -> None:
    try:
        await step.sleep("beside", "1 day")
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


@CRASH
def test_a_loser_that_waits_for_a_task_as_it_cleans_up_waits_on_after_a_replay(crash: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen: list[str] = []

        async def quick(step: Step) -> None:
            await step.sleep("nap", "1 hour")

        async def slow(step: Step) -> None:
            task = asyncio.create_task(sleeps_beside(step, seen))
            try:
                try:
                    await step.sleep("wait", "1 day")
                finally:
                    seen.append("cleans up")
                    await task
            finally:
                seen.append("leaves")

        await step.race("fastest", quick=quick, slow=slow)
        await step.sleep("cool off", "1 hour")
        return seen

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == ["cleans up"]

    run(scenario, order)


def test_a_loser_is_seen_as_far_as_it_came_when_the_winner_has_become_shorter():
    code = Deployed()

    async def loser(step: Step) -> None:
        for number in range(3):
            await step.do(f"load {number}", lambda: None)
        await step.sleep("wait", "5 hours")

    async def winner(step: Step) -> None:
        if code.version == 1:
            await step.sleep("wait", "1 minute")
        else:
            await step.removed("wait", kind="sleep")

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", loser=loser, winner=winner)
        await step.sleep("cool off", "1 hour")
        return first.winner

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        await test.crash()
        code.version = 2
        await test.advance("1 hour")
        assert await output_of(instance) == "winner"

    run(scenario, order)


@CRASH
def test_what_a_loser_had_not_awaited_yet_is_no_mistake(crash: bool):
    async def loser(step: Step) -> None:
        first, second = step.sleep("first", "2 hours"), step.do("second", lambda: None)
        await first
        await second

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        first = await step.race("fastest", loser=loser, winner=after("1 hour"))
        await step.sleep("cool off", "1 hour")
        return first.winner

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == "winner"

    run(scenario, order)


@CRASH
def test_a_winner_whose_value_is_not_json_fails_the_race_and_the_others_lose(crash: bool):
    seen: list[object] = []

    async def bad(step: Step) -> object:
        await step.sleep("wait", "1 minute")
        return object()

    async def waits(step: Step) -> None:
        try:
            await step.wait_for_event("approval", type="go")
        finally:
            seen.append("ended")

    async def works(step: Step) -> None:
        await step.do("load", lambda: pass_time("1 day"))

    @workflow("order", strict=True)
    async def order(event: WorkflowEvent, step: Step) -> object:
        seen.clear()
        try:
            await step.race("fastest", bad=bad, waits=waits, works=works)
        except UnserialisableError as error:
            seen.append(str(error))
        return [seen, (await step.wait_for_event("approval", type="go")).payload]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 minute")
        entry = await entry_at(instance, "fastest")
        assert (entry.status, entry.error.name) == ("errored", "UnserialisableError")
        for key in ("fastest/waits/approval", "fastest/works/load"):
            assert (await entry_at(instance, key)).status == "cancelled"
        if crash:
            await test.crash()
        await instance.send_event("go", 1)
        await test.run_until_idle()
        assert await output_of(instance) == [["ended", entry.error.message], 1]

    run(scenario, order)


@pytest.mark.parametrize(
    ("sent_after", "winner"), [("10 seconds", "yes"), ("11 seconds", "too late")]
)
def test_while_paused_what_came_first_wins(sent_after: str, winner: str):
    async def approval(step: Step) -> object:
        return (await step.wait_for_event("approval", type="go", timeout="1 day")).payload

    async def patience(step: Step) -> str:
        await step.sleep("nap", "10 seconds")
        return "too late"

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return (await step.race("either", patience=patience, approval=approval)).value

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.advance(sent_after)
        await instance.send_event("go", "yes")
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        assert await output_of(instance) == winner

    run(scenario, order)


def test_names_of_branches_are_parts_of_keys_whatever_is_in_them():
    async def rests(step: Step) -> None:
        await step.sleep("nap", "1 day")

    async def wins(step: Step) -> object:
        return await step.do("work", lambda: "B")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return (await step.race("either", **{"a": rests, "a/b": wins})).value

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == "B"
        assert (await entry_at(instance, "either/a%2Fb/work")).status == "completed"
        assert (await entry_at(instance, "either/a/nap")).status == "cancelled"

    run(scenario, order)
