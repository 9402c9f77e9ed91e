"""Whether open runs fit code that has changed, found out without beginning anything."""

import pytest

from headwater import Step, Workflow, WorkflowEvent, WorkflowTest, workflow
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.compatibility import CompatibilityReport, check_runs
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


def fitted(new: Workflow) -> CompatibilityReport:
    """What is found of a run of the first code, and of one that has ended, with a new one."""
    result: list[CompatibilityReport] = []

    async def scenario(test: WorkflowTest) -> None:
        await test.create("order", id="open")
        ended = await test.create("order", id="ended")
        await test.run_until_idle()
        await ended.terminate()
        instances = test._partition.owner.instances
        runs = [engine.activate(state, 0) for engine, state in instances.open_runs()]
        CALLED.clear()
        result.append(check_runs(App({"order": new}), runs))
        assert not CALLED, "expected no step to be called"
        assert [step.step_key for step in (await test.get("order", "open").history()).steps] == [
            "quote",
            "go",
        ]

    run(scenario, named(False, "quote"))
    return result[0]


@pytest.mark.parametrize(
    "new", [named(False, "quote"), named(False), named(False, "quote", then="go")]
)
def test_code_that_goes_on_as_recorded_fits(new: Workflow):
    assert fitted(new).incompatible == []


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (named(False, "go"), "HistoryDivergedError"),
        (workflow("order")(fails), "ValueError: no such price"),
        (named(False, "qoute"), "the code has reached qoute, which is new, but not quote, "),
        (named(False, "quote", "new"), "the code has reached new, which is new, but not go, "),
        (named(True, "quote", then="other"), "the code has reached other, which is new, but not"),
    ],
)
def test_code_that_would_fail_is_named_with_its_instance_and_why(new: Workflow, why: str):
    (run,) = fitted(new).incompatible
    assert run.instance == "order/open"
    assert run.reason.startswith(why)
