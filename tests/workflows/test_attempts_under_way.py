"""Attempts under way: how it stands while they run, and that each runs once, and in time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from headwater import Retry, Step, StepFailedError, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.runs.decisions import StepReturned
from tests.workflows.running import (
    START,
    Deployed,
    Flaky,
    begin,
    entry_at,
    error_of,
    order_that,
    output_of,
    pass_time,
    run,
    state_of,
)


def test_a_first_attempt_that_takes_a_while_is_seen_while_it_runs():
    calls = []

    async def call() -> object:
        calls.append(1)
        await pass_time("30 seconds")
        return "ok"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await instance.history()).steps == [], "it may be over at once"
        for _ in range(2):
            await test.advance("1 second")
            entry = await entry_at(instance, "charge")
            assert await state_of(instance) == "active"
            assert (entry.status, entry.attempts, entry.max_attempts) == ("pending", 0, 6)
            assert (entry.created_at, entry.last_attempt_at) == (START, START)
            assert (entry.completed_at, entry.result) == (None, None)
            await test.crash()
        await test.advance("1 minute")
        entry = await entry_at(instance, "charge")
        assert await output_of(instance) == "ok"
        assert (len(calls), entry.attempts) == (3, 1), "a crash costs a call, no attempt"
        assert (entry.created_at, entry.last_attempt_at) == (START, START)
        assert entry.completed_at == START + timedelta(seconds=32)

    run(scenario, order_that(call))


@pytest.mark.parametrize(("takes", "records"), [("0 ms", 3), ("499 ms", 3), ("501 ms", 4)])
def test_only_a_step_that_takes_a_while_costs_a_record_more(takes: str, records: int):
    async def scenario(test: WorkflowTest) -> None:
        before = len(test._history)
        instance = await begin(test)
        await test.advance("2 seconds")
        assert await output_of(instance) is None
        assert len(test._history) - before == records, "the start, the step, the end"

    run(scenario, order_that(lambda: pass_time(takes)))


def test_attempts_that_take_a_while_together_cost_one_record_together():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        steps = [step.do(f"page {n}", lambda: pass_time("2 seconds")) for n in range(50)]
        return len(await asyncio.gather(*steps))

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        before = len(test._history)
        await test.advance("1 second")
        assert len(test._history) - before == 1
        entries = (await instance.history()).steps
        assert [entry.name for entry in entries] == [f"page {n}" for n in range(50)]
        assert {entry.status for entry in entries} == {"pending"}
        await test.advance("2 seconds")
        assert await output_of(instance) == 50

    run(scenario, order)


def test_a_first_attempt_that_is_seen_ends_as_any_other():
    peer = Flaky(failures=1)

    async def call() -> object:
        await pass_time("2 seconds")
        return peer()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 second")
        await instance.pause()
        assert (await entry_at(instance, "charge")).status == "pending"
        await test.advance("1 second")
        entry = await entry_at(instance, "charge")
        assert (await state_of(instance), entry.status, entry.attempts) == ("paused", "waiting", 1)
        assert entry.completed_at is None
        await instance.resume()
        await test.advance("1 minute")
        entry = await entry_at(instance, "charge")
        assert (await output_of(instance), peer.calls, entry.attempts) == ("ok", 2, 2)
        assert (entry.created_at, entry.last_attempt_at) == (START, START + timedelta(seconds=12))
        assert entry.completed_at == START + timedelta(seconds=14)

    run(scenario, order_that(call))


def test_a_first_attempt_that_loses_a_race_is_cancelled_in_the_history():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def slow(step: Step) -> object:
            return await step.do("call", lambda: pass_time("1 hour"))

        async def quick(step: Step) -> object:
            await step.sleep("nap", "5 seconds")
            return "slept"

        return (await step.race("first", slow=slow, quick=quick)).value

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 second")
        assert (await entry_at(instance, "first/slow/call")).status == "pending"
        await test.advance("10 seconds")
        entry = await entry_at(instance, "first/slow/call")
        assert (await output_of(instance), entry.status) == ("slept", "cancelled")
        assert (entry.created_at, entry.last_attempt_at) == (START, START)
        assert entry.completed_at == START + timedelta(seconds=5)
        await test.advance("2 hours")
        assert (await entry_at(instance, "first/slow/call")).status == "cancelled"

    run(scenario, order)


def test_a_first_attempt_under_way_when_its_run_fails_begins_anew_in_a_retry():
    peer = Flaky(failures=1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        never = Retry(limit=0)
        slow = step.do("slow", lambda: pass_time("10 seconds"))
        return await asyncio.gather(slow, step.do("charge", charge, retries=never))

    async def charge() -> object:
        await pass_time("2 seconds")
        return peer()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("5 seconds")
        assert (await error_of(instance)).name == "Unreachable"
        assert (await entry_at(instance, "slow")).status == "cancelled", "it was left"
        await instance.retry()
        await test.advance("1 minute")
        entry = await entry_at(instance, "slow")
        assert await output_of(instance) == [None, "ok"]
        assert (entry.status, entry.attempts) == ("completed", 1)
        assert entry.last_attempt_at == START + timedelta(seconds=5)

    run(scenario, order)


def test_while_a_later_attempt_runs_its_step_is_under_way_and_its_instance_active():
    peer = Flaky(failures=1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for _ in range(2):
            await test.advance("10 seconds")
            entry = await entry_at(instance, "charge")
            assert await state_of(instance) == "active"
            assert (entry.status, entry.attempts, entry.next_retry_at) == ("pending", 1, None)
            assert entry.error is not None, "that of the attempt before"
            await test.crash()
        assert peer.calls == 3, "a crash costs a call, no attempt"
        await test.advance("1 minute")
        assert await output_of(instance) == "ok"
        assert (await entry_at(instance, "charge")).attempts == 2

    async def call() -> object:
        value = peer()
        await pass_time("30 seconds")
        return value

    run(scenario, order_that(call))


def test_an_instance_waits_again_when_no_attempt_of_several_runs():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        again = Retry(limit=3, delay="1 minute", backoff="constant")
        steps = [step.do(name, of(name), retries=again) for name in ("short", "long")]
        return await asyncio.gather(*steps)

    def of(name: str) -> Callable[[], Awaitable[object]]:
        peer = Flaky(failures=2, value=name)

        async def call() -> object:
            await pass_time({"short": "5 seconds", "long": "20 seconds"}[name])
            return peer()

        return call

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        seen = []
        for at_s in (10, 30, 67, 72, 87, 102):
            await test.advance((at_s - (seen[-1][0] if seen else 0)) * 1_000)
            entries = [entry.status for entry in (await instance.history()).steps]
            seen.append((at_s, await state_of(instance), *entries))
        assert seen == [
            (10, "active", "waiting", "pending"),
            (30, "waiting", "waiting", "waiting"),
            (67, "active", "pending", "waiting"),
            (72, "waiting", "waiting", "waiting"),
            (87, "active", "waiting", "pending"),
            (102, "waiting", "waiting", "waiting"),
        ]
        await test.advance("2 minutes")
        assert await output_of(instance) == ["short", "long"]

    run(scenario, order)


def test_an_instance_waits_although_new_code_no_longer_has_the_step_that_is_tried_again():
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if code.version == 1:
            first = step.do("charge", Flaky(9))
            await asyncio.gather(first, step.wait_for_event("paid", type="paid"))
        return (await step.wait_for_event("paid", type="paid")).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        code.version = 2
        await test.advance("10 seconds")
        assert await state_of(instance) == "waiting"
        assert (await entry_at(instance, "charge")).status == "pending"
        await instance.send_event("paid", 5)
        await test.run_until_idle()
        assert await output_of(instance) == 5

    run(scenario, order)


def test_an_attempt_that_runs_while_its_instance_is_paused_has_its_result():
    peer = Flaky(failures=1)

    async def call() -> object:
        value = peer()
        await pass_time("30 seconds")
        return value

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("20 seconds")
        await instance.pause()
        await test.advance("10 seconds")
        assert (await entry_at(instance, "charge")).status == "pending"
        await test.advance("1 minute")
        entry = await entry_at(instance, "charge")
        assert (await state_of(instance), entry.status) == ("paused", "completed")
        await instance.resume()
        await test.run_until_idle()
        assert (await output_of(instance), peer.calls) == ("ok", 2)

    run(scenario, order_that(call))


def test_a_step_is_tried_again_although_new_code_comes_to_it_only_when_its_time_is_over():
    code, peer = Deployed(), Flaky(failures=1)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        if code.version == 2:
            await step.do("new", lambda: pass_time("1 minute"))
        return await asyncio.gather(step.do("charge", peer), step.do("other", other))

    async def other() -> None:
        await pass_time("3 seconds")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 second")
        code.version = 2
        await test.crash()
        await test.advance("2 minutes")
        assert await output_of(instance) == ["ok", None]
        assert peer.calls == 2

    run(scenario, order)


@pytest.mark.parametrize("first", ["sleep", "failure"])
@pytest.mark.parametrize("advances", [["3 hours"], ["7 minutes", "30 minutes"]])
def test_an_attempt_that_begins_while_time_passes_has_its_timeout(first: str, advances: list[str]):
    peer = Flaky(failures=first == "failure")

    async def slow() -> None:
        peer()
        await pass_time("1 hour")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        if first == "sleep":
            await step.sleep("nap", "1 second")
        limit = 1 if first == "failure" else 0
        try:
            await step.do("charge", slow, timeout="10 minutes", retries=Retry(limit, "1 second"))
        except StepFailedError as failed:
            now = await step.now()
            ended = (now - event.timestamp).total_seconds()
            raise RuntimeError(f"{failed.error.name} after {ended:.0f} s") from failed

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for advance in advances:
            await test.advance(advance)
        assert (await error_of(instance)).message == "StepTimeoutError after 601 s"

    run(scenario, order)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_ended_before_a_later_attempt_began_comes_first_on_a_replay_too(crashes: bool):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        async def sleeper(step: Step) -> object:
            await step.sleep("nap", "2 seconds")
            return await step.do("load", lambda: "slept")

        async def caller(step: Step) -> object:
            again = Retry(limit=1, delay="2 seconds")
            return await step.do("call", peer, retries=again)

        return (await step.race("first", sleeper=sleeper, caller=caller)).value

    peer = Flaky(failures=1, value="tried again")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crashes:
            await test.crash()
        await test.advance("1 minute")
        assert await output_of(instance) == "slept"

    run(scenario, order)


def test_an_attempt_without_a_delay_is_at_once_also_beside_one_that_takes_long():
    peer = Flaky(failures=2)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        again = Retry(limit=5, delay=0)
        slow = step.do("slow", lambda: pass_time("9 minutes"))
        return await asyncio.gather(step.do("charge", peer, retries=again), slow)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert peer.calls == 3
        assert (await entry_at(instance, "charge")).status == "completed"

    run(scenario, order)


def test_a_step_whose_sql_takes_effect_while_its_host_is_lost_is_not_begun_again():
    calls = []

    async def slow() -> None:
        calls.append("begun")
        await pass_time("5 seconds")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("charge", slow)
        await step.wait_for_event("paid", type="paid")
        raise LookupError("nothing is here")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        owner = test._owner
        hand = owner.instances.find("order/i-1")
        started = hand.attempts["charge"]
        returned = StepReturned(started.step, 1, started.policy, "1")
        commit = owner.sql.begin(started.activation, returned)
        test._stop()
        test._hosts = [test._new_host(number) for number in range(2)]
        owner.host_lost("it ended", test.now_ms, host=1)
        await test.run_until_idle()
        assert not hand.may_be_evicted()
        owner.sql.recover(commit, test.now_ms)
        owner.sql.ended(commit, test.now_ms)
        await test.advance("10 seconds")
        assert calls == ["begun"]
        assert await state_of(instance) == "waiting"
        await instance.send_event("paid")
        await test.run_until_idle()
        assert (await error_of(instance)).name == "LookupError"

    run(scenario, order)


def test_a_step_whose_sql_fails_while_its_host_is_lost_is_begun_again():
    calls = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def slow() -> None:
            calls.append("begun")
            await pass_time("5 seconds")

        await step.do("charge", slow)

    async def scenario(test: WorkflowTest) -> None:
        await begin(test)
        owner = test._owner
        started = owner.instances.find("order/i-1").attempts["charge"]
        returned = StepReturned(started.step, 1, started.policy, "1")
        commit = owner.sql.begin(started.activation, returned)
        assert commit is not None
        test._stop()
        test._hosts = [test._new_host(number) for number in range(2)]
        owner.host_lost("it ended", test.now_ms, host=1)
        await test.run_until_idle()
        assert calls == ["begun"]
        owner.sql.ended(commit, test.now_ms)
        await test.run_until_idle()
        assert calls == ["begun", "begun"]

    run(scenario, order)


@pytest.mark.parametrize("crashes", [False, True])
def test_attempts_that_a_pause_has_held_up_begin_in_the_order_of_their_steps(crashes: bool):
    called: list[str] = []

    def fails_once(name: str) -> Callable[[], None]:
        def callback() -> None:
            called.append(name)
            assert called.count(name) > 1

        return callback

    async def behind(step: Step) -> None:
        await asyncio.sleep(0)
        await step.do("behind", fails_once("behind"), retries=Retry(limit=1, delay="2 seconds"))

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        before = step.do("before", fails_once("before"), retries=Retry(limit=1, delay="3 seconds"))
        await asyncio.gather(behind(step), before)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.pause()
        await test.advance("5 seconds")
        if crashes:
            await test.crash()
        await instance.resume()
        await test.run_until_idle()
        assert called == ["before", "behind", "before", "behind"]

    run(scenario, order)
