"""Rollback handlers: which of them run, in which order, and how often."""

import asyncio
from collections import Counter

import pytest

from headwater import (
    Break,
    Continue,
    Retry,
    RollbackCheckpointError,
    RollbackError,
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
    begin,
    entry_at,
    error_of,
    failure,
    output,
    output_of,
    pass_time,
    run,
    state_of,
)


async def do(step: Step, name: str, undone: list, **options: object) -> object:
    """A step whose result is its name, and whose handler remembers it."""
    return await step.do(name, lambda: name, rollback=undone.append, **options)


def fail() -> None:
    raise LookupError("sold out")


def test_handlers_run_in_reverse_with_the_results_and_the_original_error_stands():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await do(step, "b", undone)
        await do(step, "c", undone)
        await step.do("ship", fail, retries=Retry(limit=0))

    error = failure(order)
    assert (error.name, error.message) == ("LookupError", "sold out")
    assert undone == ["c", "b", "a"]


def test_the_order_is_that_of_completion_not_of_calls():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        slow = Flaky(1, "a")
        await asyncio.gather(
            step.do("a", slow, rollback=undone.append),
            do(step, "b", undone),
        )
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("10 seconds")
        await error_of(instance)
        assert undone == ["a", "b"]

    run(scenario, order)


def test_a_step_with_a_handler_and_no_checkpoint_before_it_raises_before_its_callback():
    calls = Calls()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        try:
            await step.do("charge", calls.of("charge"), rollback=lambda _: None)
        except RollbackCheckpointError as error:
            return str(error)
        return None

    assert "charge" in str(output(order))
    assert calls.names == []


def test_an_uncaught_missing_checkpoint_is_the_error_of_the_instance():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("charge", lambda: 1, rollback=lambda _: None)
        await step.checkpoint("too late")

    assert failure(order).name == "RollbackCheckpointError"


def test_nothing_is_rolled_back_when_the_workflow_completes_or_catches_the_error():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        try:
            fail()
        except LookupError:
            return "caught"
        return "never"

    assert output(order) == "caught"
    assert undone == []


def test_a_step_that_did_not_complete_is_not_rolled_back():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.do("b", fail, retries=Retry(limit=0), rollback=lambda _: undone.append("b"))

    failure(order)
    assert undone == ["a"]


def test_a_rollback_error_is_not_retried_and_rolls_back():
    undone: list[str] = []
    halt = Flaky(9, error=RollbackError)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.do("check", halt)

    error = failure(order)
    assert (error.name, error.message) == ("RollbackError", "call 1")
    assert halt.calls == 1
    assert undone == ["a"]


def test_a_rollback_error_arrives_as_itself_and_may_be_caught():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        try:
            await step.do("check", Flaky(9, error=RollbackError))
        except RollbackError as error:
            return str(error)
        return None

    assert output(order) == "call 1"
    assert undone == []


def test_handlers_may_be_async_and_get_the_result():
    undone: list[object] = []

    async def refund(result: object) -> None:
        await asyncio.sleep(0)
        undone.append(result)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("a", lambda: {"charge": 1}, rollback=refund)
        await step.do("b", lambda: {"charge": 2}, rollback=lambda result: refund(result["charge"]))
        fail()

    failure(order)
    assert undone == [2, {"charge": 1}]


def test_steps_completed_before_a_crash_are_rolled_back_after_it():
    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await do(step, "b", undone)
        await step.sleep("cool off", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        error = await error_of(instance)
        assert (error.name, error.message) == ("LookupError", "sold out")
        assert undone == ["b", "a"]
        await test.crash()
        await test.advance("1 hour")
        assert undone == ["b", "a"]

    run(scenario, order)


def test_a_crash_in_the_midst_of_a_rollback_runs_no_finished_handler_again():
    begun: list[str] = []
    undone: list[str] = []

    async def undo(name: str) -> None:
        begun.append(name)
        if begun.count("b") == 1 and name == "b":
            await pass_time("1 hour")
        undone.append(name)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        for name in ("a", "b", "c"):
            await step.do(name, lambda name=name: name, rollback=undo)
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert begun == ["c", "b"]
        await test.crash()
        await test.run_until_idle()
        assert (await error_of(instance)).message == "sold out"
        assert undone == ["c", "b", "a"]
        assert begun == ["c", "b", "b", "a"]

    run(scenario, order)


def test_a_handler_that_raises_is_tried_again():
    attempts: list[str] = []

    def refund(result: str) -> None:
        attempts.append(result)
        if len(attempts) == 1:
            raise ConnectionError("bank is closed")

    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.do("b", lambda: "b", rollback=refund)
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (attempts, undone) == (["b"], [])
        await test.advance("9 seconds")
        assert attempts == ["b"]
        await test.crash()
        await test.advance("1 second")
        assert (attempts, undone) == (["b", "b"], ["a"])
        assert (await error_of(instance)).message == "sold out"

    run(scenario, order)


def test_lines_of_a_handler_say_which_attempt_they_are_of():
    refunds = Flaky(failures=3)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def refund(result: str) -> None:
            await step.log.info("refunding")
            refunds()

        await step.checkpoint("before money")
        await step.do("pay", lambda: "paid", rollback=refund)
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("11 seconds")
        await test.crash()
        await test.advance("10 minutes")
        logs = (await instance.history()).logs
        assert [(line.step_key, line.attempt) for line in logs] == [
            ("pay", number) for number in (1, 2, 3, 4)
        ]

    run(scenario, order)


def test_a_handler_that_never_succeeds_is_logged_and_the_next_one_runs():
    attempts: list[str] = []

    def refund(result: str) -> None:
        attempts.append(result)
        raise ConnectionError("bank is closed")

    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.do("b", lambda: "b", rollback=refund)
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("309 seconds")
        assert (len(attempts), undone) == (5, [])
        await test.advance("1 second")
        assert (len(attempts), undone) == (6, ["a"])
        error = await error_of(instance)
        assert (error.name, error.message) == ("LookupError", "sold out")
        logs = (await instance.history()).logs
        assert "system" in {line.category for line in logs}

    run(scenario, order)


@CRASH
@pytest.mark.parametrize(
    ("options", "timeout_s"), [({}, 600), ({"rollback_timeout": "30 seconds"}, 30)]
)
def test_a_handler_that_hangs_fails_is_tried_again_and_does_not_hold_up_the_next(
    options: dict[str, str], timeout_s: int, crash: bool
):
    begun: list[str] = []

    async def hangs(result: str) -> None:
        begun.append(result)
        await pass_time("30 days")
        begun.append("too late")

    undone: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.do("b", lambda: "b", rollback=hangs, timeout="1 second", **options)
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        retries_s = 10 + 20 + 40 + 80 + 160
        await test.advance(f"{6 * timeout_s + retries_s - 1} seconds")
        assert (begun, undone) == (["b"] * 6, [])
        if crash:
            # Its attempt begins again, and so does its time.
            await test.crash()
            await test.advance(f"{timeout_s - 1} seconds")
        await test.advance("1 second")
        assert (begun, undone) == (["b"] * (6 + crash), ["a"])
        error = await error_of(instance)
        assert (error.name, error.message) == ("LookupError", "sold out")
        (line,) = (await instance.history()).logs
        assert line.message == (
            "the rollback of b failed 6 times and is given up: StepTimeoutError: expected the "
            f'rollback of step "b" to end within {timeout_s * 1_000} ms, found it still running '
            "in attempt 6"
        )
        await test.advance("31 days")
        assert begun.count("too late") == 0

    run(scenario, order)


@pytest.mark.parametrize("timeout", [0, 0.4, -1, "soon", None])
def test_the_timeout_of_a_handler_is_a_timeout(timeout: object):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", [], rollback_timeout=timeout)

    error = failure(order)
    assert error.name == "ValueError"
    assert 'the rollback_timeout of the step "a"' in error.message


@CRASH
def test_the_iterations_that_a_loop_has_kept_are_rolled_back(crash: bool):
    undone: list[str] = []

    async def one_page(step: Step, state: dict) -> object:
        number = state["n"]
        await step.do("charge", lambda: number, rollback=undone.append)
        return Break(None) if number == 6 else Continue({"n": number + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        options = {"commit_interval": 2, "history_every": 2, "history_keep": 3}
        await step.loop("pages", one_page, state={"n": 0}, **options)
        await step.sleep("cool off", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("1 hour")
        await error_of(instance)
        assert undone[:3] == [6, 5, 4]
        assert undone[-1] == "a"
        assert set(Counter(undone).values()) == {1}

    run(scenario, order)


@pytest.mark.parametrize("crashes", [(), (22,), (22, 26), (26,)])
def test_what_a_loop_has_kept_is_rolled_back_and_no_more_wherever_a_crash_was(
    crashes: tuple[int, ...],
):
    undone: list[int] = []

    async def one_page(step: Step, state: dict) -> object:
        number = state["n"]
        await step.do("charge", lambda: number, rollback=undone.append)
        if number == 22:
            await step.sleep("nap", "1 hour")
        return Break(None) if number == 25 else Continue({"n": number + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.loop("pages", one_page, state={"n": 0})
        await step.sleep("cool off", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        for position in (22, 26):
            if position in crashes:
                await test.crash()
            await test.advance("1 hour")
        await error_of(instance)
        assert undone == list(range(25, 5, -1))

    run(scenario, order)


def test_steps_of_an_unfinished_iteration_are_rolled_back_after_a_crash():
    undone: list[str] = []

    async def one_page(step: Step, state: dict) -> object:
        number = state["n"]
        await step.do("charge", lambda: number, rollback=undone.append)
        if number == 2:
            await step.sleep("nap", "1 hour")
            fail()
        return Continue({"n": number + 1})

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.loop("pages", one_page, state={"n": 0}, commit_interval=1)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.crash()
        await test.advance("1 hour")
        await error_of(instance)
        assert undone == [2, 1, 0]

    run(scenario, order)


@CRASH
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_a_loop_took_after_an_error_of_a_task_is_rolled_back(fails: bool, crash: bool):
    undone: list[str] = []

    async def refuse() -> None:
        raise LookupError("sold out")

    async def body(step: Step, state: None) -> Break:
        try:
            await asyncio.gather(refuse(), step.do("price", lambda: 1))
        except LookupError:
            await do(step, "other shop", undone)
        if fails:
            fail()
        return Break(None)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        try:
            await step.loop("shops", body)
        finally:
            await step.sleep("think", "1 second")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        if crash:
            await test.crash()
        await test.advance("1 second")
        error = await error_of(instance)
        assert (error.name, error.message) == ("LookupError", "sold out")
        assert ("in body" in (error.traceback or "")) is fails
        assert undone == ["other shop"]

    run(scenario, order)


@CRASH
def test_the_branches_of_a_completed_join_are_rolled_back_by_completion(crash: bool):
    undone: list[str] = []

    async def slow(step: Step) -> None:
        await step.sleep("wait", "1 hour")
        await do(step, "slow", undone)

    async def quick(step: Step) -> None:
        await do(step, "quick", undone)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.join("both", slow=slow, quick=quick)
        await step.sleep("cool off", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        await error_of(instance)
        assert undone == ["slow", "quick"]

    run(scenario, order)


@CRASH
def test_the_completed_steps_of_a_loser_are_rolled_back(crash: bool):
    undone: list[str] = []

    async def loser(step: Step) -> None:
        await do(step, "booked", undone)
        await step.sleep("wait", "2 hours")

    async def winner(step: Step) -> None:
        await step.sleep("wait", "1 hour")
        await do(step, "won", undone)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.race("fastest", loser=loser, winner=winner)
        await step.sleep("cool off", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        if crash:
            await test.crash()
        await test.advance("1 hour")
        await error_of(instance)
        assert undone == ["won", "booked"]

    run(scenario, order)


def test_a_restart_after_a_rollback_does_the_work_again():
    undone: list[str] = []
    code = Deployed()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.checkpoint("before money")
        charged = await do(step, "a", undone)
        if code.version == 1:
            fail()
        return charged

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await state_of(instance) == "errored"
        code.version = 2
        await instance.restart()
        await test.run_until_idle()
        assert await output_of(instance) == "a"
        assert undone == ["a"]
        assert (await entry_at(instance, "before money")).type == "checkpoint"

    run(scenario, order)


@pytest.mark.parametrize("verb", ["restart", "terminate"])
def test_a_line_says_which_handlers_a_command_leaves_out(verb: str):
    begun: list[str] = []

    async def takes_long(result: str) -> None:
        begun.append(result)
        await pass_time("10 seconds")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await step.do("a", lambda: "a", rollback=takes_long)
        await step.do("b", lambda: "b", rollback=takes_long)
        await step.do("c", lambda: "c", rollback=takes_long)
        if event.run_number:
            await step.sleep("nap", "1 hour")
        fail()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("11 seconds")
        await getattr(instance, verb)()
        await test.advance("1 minute")
        assert begun == ["c", "b"]
        (line,) = (await instance.history()).logs
        assert line.message == (
            "run 0 ends while it is rolled back: the rollback handlers of a, b have not run, and "
            "will not"
        )

    run(scenario, order)


def test_a_rollback_error_in_a_branch_is_the_error_of_that_branch():
    undone: list[str] = []

    async def halts(step: Step) -> None:
        def halt() -> None:
            raise RollbackError("halt")

        await step.do("check", halt)

    async def other(step: Step) -> None:
        await step.sleep("nap", "1 hour")
        await do(step, "late", undone)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await step.join("both", halts=halts, other=other)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert (await state_of(instance), undone) == ("waiting", [])
        await test.advance("1 hour")
        error = await error_of(instance)
        assert error.name == "JoinError"
        assert "halts: RollbackError: halt" in error.message
        assert undone == ["late", "a"]

    run(scenario, order)


def test_a_rollback_error_in_a_gather_rolls_back_at_once():
    undone: list[str] = []

    def halt() -> None:
        raise RollbackError("halt")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        await do(step, "a", undone)
        await asyncio.gather(step.do("check", halt), step.sleep("nap", "1 hour"))

    error = failure(order)
    assert (error.name, error.message, undone) == ("RollbackError", "halt", ["a"])
