"""Exported histories as tests of authors: `check_replay` and `replay_history`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater import (
    GraphWorkflow,
    InstanceFailedError,
    NonRetryableError,
    ReplayDivergedError,
    Step,
    StepFailedError,
    StepTx,
    Task,
    Workflow,
    WorkflowEvent,
    WorkflowTest,
    check_replay,
    replay_history,
    task,
    workflow,
)
from headwater.processors.runs.history_files import lines_of
from headwater.processors.runs.redaction import Redaction
from tests.workflows.drawn_changes import history_of


def export(
    folder: Path,
    *definitions: Any,  # noqa: ANN401, workflows and graphs
    name: str = "order",
    tasks: tuple[Task, ...] = (),
    params: object = None,
    redacted: tuple[str, ...] = (),
) -> Path:
    """The file of a run that waits or has ended without time passing."""

    async def scenario() -> Path:
        async with WorkflowTest(list(definitions), tasks=list(tasks)) as test:
            await test.create(name, id="o-1", params=params)
            await test.run_until_idle()
            history = Redaction(redacted, "salt").redact(history_of(test, name, "o-1"))
            file = folder / f"{name}-o-1.jsonl"
            file.write_text("\n".join(lines_of(history)))
            return file

    return asyncio.run(scenario())


def order_with(quote: Callable[..., object], *, name: str = "quote") -> Workflow:
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do(name, quote)

    return order


# -- folders of histories


def test_histories_that_fit_are_reported_and_others_raise(tmp_path: Path):
    def quote() -> int:
        return 3

    export(tmp_path, order_with(quote))
    assert [run.fits for run in check_replay(tmp_path, [order_with(quote)]).runs] == [True]
    with pytest.raises(ReplayDivergedError) as raised:
        check_replay(tmp_path, [order_with(quote, name="price")])
    text = str(raised.value)
    assert "order/o-1, run 0: the code does not reach quote, which is recorded" in text
    assert "    recorded: do quote, event 1\n" in text
    assert f"    requested: do price at {__file__}:" in text


def test_a_folder_without_histories_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="headwater histories export"):
        check_replay(tmp_path, [order_with(int)])


# -- one history


def test_an_error_of_the_workflows_own_code_is_raised_until_it_is_fixed(tmp_path: Path):
    def order_that(read: Callable[[dict[str, int]], object]) -> Workflow:
        @workflow("order")
        async def order(event: WorkflowEvent, step: Step) -> object:
            return read(await step.do("quote", lambda: {"price": 3}))

        return order

    file = export(tmp_path, order_that(lambda quote: quote["prize"]))
    with pytest.raises(KeyError, match="prize"):
        replay_history(file, [order_that(lambda quote: quote["prize"])])
    replay_history(file, [order_that(lambda quote: quote["price"])])


def test_a_failed_step_is_called_if_it_is_named(tmp_path: Path):
    def breaks(tx: StepTx) -> object:
        raise NonRetryableError("no such price")

    async def works(tx: StepTx) -> object:
        tx.send_event("other", "o-2", type="go")
        return 3

    file = export(tmp_path, order_with(breaks))
    with pytest.raises(StepFailedError):
        replay_history(file, [order_with(works)])
    with pytest.raises(NonRetryableError, match="no such price"):
        replay_history(file, [order_with(breaks)], calls=["quote"])
    replay_history(file, [order_with(works)], calls=["quote"])


def test_fixed_code_that_does_not_fit_is_no_fix(tmp_path: Path):
    def breaks() -> object:
        raise NonRetryableError("no such price")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("first", lambda: 1)
        return await step.do("quote", breaks)

    file = export(tmp_path, order)
    with pytest.raises(ReplayDivergedError, match="does not reach first"):
        replay_history(file, [order_with(int)], calls=["quote"])


def test_an_unknown_workflow_is_an_error(tmp_path: Path):
    file = export(tmp_path, order_with(int))

    @workflow("other")
    async def other(event: WorkflowEvent, step: Step) -> None:
        return

    with pytest.raises(LookupError, match="found only other"):
        replay_history(file, [other])


# -- graphs


def review(condition: str = "state.vote == 'yes'") -> GraphWorkflow:
    return GraphWorkflow(
        name="review",
        initial_node_ref="vote",
        nodes=[
            {"ref": "vote", "task": "vote", "output_mapping": {"state.vote": "result.vote"}},
            {"ref": "publish", "task": "noop"},
        ],
        transitions=[
            {
                "ref": "accepted",
                "from_node_ref": "vote",
                "to_node_ref": "publish",
                "condition": condition,
            }
        ],
    )


@task("vote")
def vote(given: Any) -> dict[str, str]:  # noqa: ANN401, what a task is given
    return {"vote": "yes"}


@task("vote")
def broken_vote(given: Any) -> dict[str, str]:  # noqa: ANN401, what a task is given
    raise NonRetryableError("no voters")


def test_a_definition_that_decides_otherwise_differs(tmp_path: Path):
    export(tmp_path, review(), name="review", tasks=(vote,))
    assert check_replay(tmp_path, [review()]).runs[0].fits
    with pytest.raises(ReplayDivergedError) as raised:
        check_replay(tmp_path, [review("state.vote == 'no'")])
    assert "recorded: TokensCreated publish" in str(raised.value)


def test_a_failed_task_is_called_if_its_node_is_named(tmp_path: Path):
    file = export(tmp_path, review(), name="review", tasks=(broken_vote,))
    with pytest.raises(InstanceFailedError, match="no voters"):
        replay_history(file, [review()], [vote])
    with pytest.raises(NonRetryableError, match="no voters"):
        replay_history(file, [review()], [broken_vote], calls=["vote"])
    replay_history(file, [review()], [vote], calls=["vote"])


def test_an_error_of_a_definition_is_raised_until_it_is_fixed(tmp_path: Path):
    wrong = review("state.vote.count == 1")
    file = export(tmp_path, wrong, name="review", tasks=(vote,))
    header = json.loads(file.read_text().splitlines()[0])
    assert header["status"] == "errored"
    with pytest.raises(InstanceFailedError):
        replay_history(file, [wrong])
    replay_history(file, [review()])


# -- redaction


def test_redacted_histories_fit_as_before(tmp_path: Path):
    def order_for(address: str) -> Workflow:
        @workflow("order")
        async def order(event: WorkflowEvent, step: Step) -> object:
            same = event.payload["email"] == event.payload["backup"]["email"]
            await step.do("same" if same else "other", lambda: {"to": event.payload["email"]})
            await step.do("mail", lambda: f"mailed {event.payload['email']}")
            raise NonRetryableError(f"no mailbox {address}")

        return order

    params = {"email": "ann@example.org", "backup": {"email": "ann@example.org"}, "count": 7}
    file = export(tmp_path, order_for("ann@example.org"), params=params, redacted=("*email*",))
    text = file.read_text()
    assert "ann@example.org" not in text
    assert '"count":7' in text
    assert check_replay(tmp_path, [order_for("elsewhere")]).runs[0].fits
