"""Whether recorded runs fit code that has changed, without calling a step."""

import asyncio
from random import Random

import pytest

from headwater import Step, Workflow, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.runs.history_files import lines_of, read_history
from headwater.schemas.history import LogWritten
from headwater.schemas.replay_answers import ReplayedRun, ReplayPoint
from tests.workflows.drawn_changes import Drawn, act, changed, checked, draw, history_of

CALLED: list[str] = []


def named(*steps: str, then: str = "go", strict: bool = False) -> Workflow:
    """A workflow that does steps and waits."""

    @workflow("order", strict=strict)
    async def order(event: WorkflowEvent, step: Step) -> str:
        for entry in steps:
            await step.do(entry, lambda item=entry: CALLED.append(item))
        await step.wait_for_event(then, type="go")
        return "over"

    return order


def recorded_with(old: Workflow, new: Workflow, *, ends: bool = False) -> ReplayedRun:
    """Record a run of the first workflow, and replay it against another one."""

    async def scenario() -> ReplayedRun:
        async with WorkflowTest([old]) as test:
            instance = await test.create("order", id="o-1")
            await test.run_until_idle()
            if ends:
                await instance.send_event("go")
                await test.run_until_idle()
            history = history_of(test, "order", "o-1")
            CALLED.clear()
            result = checked(history, new)
            assert not CALLED, "expected no step to be called"
            return result

    return asyncio.run(scenario())


def test_unchanged_code_fits():
    assert recorded_with(named("quote"), named("quote")).fits


def test_a_renamed_step_is_shown_next_to_the_recorded_one():
    result = recorded_with(named("quote"), named("qoute"))
    assert not result.fits
    assert result.recorded == ReplayPoint(kind="do", name="quote", sequence=1)
    assert result.requested is not None
    assert (result.requested.kind, result.requested.name) == ("do", "qoute")
    file, _, line = (result.requested.location or "").rpartition(":")
    assert file == __file__
    assert line.isdigit()


def test_an_entry_of_another_kind_is_shown_with_both_kinds():
    result = recorded_with(named("quote"), named(then="quote"))
    assert result.recorded == ReplayPoint(kind="do", name="quote", sequence=1)
    assert result.requested is not None
    assert result.requested.kind == "wait_for_event"


def test_a_removed_step_differs_even_if_nothing_new_is_requested():
    result = recorded_with(named("quote"), named())
    assert result.recorded == ReplayPoint(kind="do", name="quote", sequence=1)
    assert result.requested == ReplayPoint(kind="nothing")


def test_steps_beyond_the_recorded_ones_fit():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote", lambda: None)
        await step.wait_for_event("go", type="go")
        await step.do("ship", lambda: None)

    assert recorded_with(named("quote"), order).fits


def test_code_that_fails_is_shown_with_its_error():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("quote", lambda: None)
        raise ValueError("no such price")

    result = recorded_with(named("quote"), order)
    assert result.recorded is not None
    assert result.recorded.name == "go"
    assert result.requested is not None
    assert (result.requested.kind, result.requested.name) == ("error", "ValueError: no such price")
    assert (result.requested.location or "").startswith(__file__)


def test_an_ended_run_has_to_end_as_recorded():
    assert recorded_with(named("quote"), named("quote"), ends=True).fits

    @workflow("order")
    async def other(event: WorkflowEvent, step: Step) -> str:
        await step.do("quote", lambda: None)
        await step.wait_for_event("go", type="go")
        return "otherwise"

    result = recorded_with(named("quote"), other, ends=True)
    assert result.recorded is not None
    assert result.recorded.kind == "complete"


def test_a_lost_rollback_handler_differs():
    def charging(*, undo: bool) -> Workflow:
        @workflow("order")
        async def order(event: WorkflowEvent, step: Step) -> None:
            await step.checkpoint("begin")
            options = {"rollback": lambda _: None} if undo else {}
            await step.do("charge", lambda: 1, **options)
            await step.wait_for_event("go", type="go")

        return order

    assert recorded_with(charging(undo=True), charging(undo=True)).fits
    result = recorded_with(charging(undo=True), charging(undo=False))
    assert result.requested == ReplayPoint(kind="do without rollback", name="charge")


# -- random programs


@pytest.mark.parametrize("block", range(4))
def test_what_is_said_to_fit_does_not_diverge_and_unchanged_programs_always_fit(block: int):
    outcomes = [
        asyncio.run(_continue_on_changed_code(seed)) for seed in range(block * 60, block * 60 + 60)
    ]
    assert {True, False} <= set(outcomes)


async def _continue_on_changed_code(seed: int) -> bool:
    """Record a run, check it, and continue it on the changed code. Return whether it fits."""
    random = Random(seed)
    drawn = Drawn(draw(random))
    async with WorkflowTest([drawn.workflow()], seed=seed) as test:
        instance = await test.create("drawn", id="d")
        await test.run_until_idle()
        for _ in range(random.randrange(8)):
            await act(random, test, instance)
        history = history_of(test, "drawn", "d")
        assert read_history(lines_of(history)) == history
        same = checked(history, drawn.workflow())
        assert same.fits, (seed, drawn.program, same)
        other = changed(random, drawn.program)
        result = checked(history, Drawn(other).workflow())
        if not result.fits or (await instance.status()).ended:
            return result.fits
        before, drawn.program = drawn.program, other
        recorded = len(test.records("drawn", "d"))
        await test.crash()
        for _ in range(60):
            await act(random, test, instance)
        error = (await instance.status()).error
        assert error is None, (seed, before, other, error)
        lines = [
            event
            for record in test.records("drawn", "d")[recorded:]
            for event in record.events
            if isinstance(event, LogWritten) and event.missed
        ]
        assert not lines, (seed, before, other, lines)
        return True
