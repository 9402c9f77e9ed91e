"""Whether open runs fit code that has changed, found out without beginning anything."""

import pytest

from headwater import Step, Workflow, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.replay_answers import ReplayedRun
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.compatibility import CheckedCode, check_run
from tests.workflows.running import run

CALLED: list[str] = []


def named(strict: bool, *steps: str, then: str = "go") -> Workflow:
    """A workflow that does steps and waits."""

    @workflow("order", strict=strict)
    async def order(event: WorkflowEvent, step: Step) -> None:
        for entry in steps:
            await step.do(entry, lambda item=entry: CALLED.append(item))
        await step.wait_for_event(then, type="go")

    return order


async def fails(event: WorkflowEvent, step: Step) -> None:
    raise ValueError("no such price")


def fitted(new: Workflow) -> ReplayedRun:
    """The result of an open run of the first code with a new one."""
    result: list[ReplayedRun] = []

    async def scenario(test: WorkflowTest) -> None:
        await test.create("order", id="open")
        ended = await test.create("order", id="ended")
        await test.run_until_idle()
        await ended.terminate()
        instances = test._partition.owner.instances
        (run,) = [engine.activate(state, 0) for engine, state in instances.open_runs()]
        CALLED.clear()
        checked = check_run(CheckedCode.of_app(App({"order": new})), run)
        assert checked is not None
        result.append(checked)
        assert not CALLED, "expected no step to be called"
        assert [step.step_key for step in (await test.get("order", "open").history()).steps] == [
            "quote",
            "go",
        ]

    run(scenario, named(False, "quote"))
    return result[0]


def test_code_that_goes_on_as_recorded_fits():
    assert fitted(named(False, "quote")).fits


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (named(False, "go"), "at go: recorded wait_for_event, requested do"),
        (workflow("order")(fails), "the code does not reach quote, which is recorded"),
        (named(False), "the code does not reach quote, which is recorded"),
        (named(False, "qoute"), "the code does not reach quote, which is recorded"),
        (named(False, "quote", "new"), "the code does not reach go, which is recorded"),
        (named(True, "quote", then="other"), "the code does not reach go, which is recorded"),
    ],
)
def test_code_that_would_fail_is_named_with_its_instance_and_why(new: Workflow, why: str):
    result = fitted(new)
    assert (result.workflow_name, result.instance_id) == ("order", "open")
    assert not result.fits
    assert why in result.reason
