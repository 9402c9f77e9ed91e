"""Where an error was raised: the author's own frames, wherever a failure is looked at."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headwater import Retry, Step, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import begin, run

ONCE = Retry(limit=0)


def deep_inside() -> None:
    raise KeyError("nope")


def helper() -> None:
    deep_inside()


@workflow("order")
async def in_a_step(event: WorkflowEvent, step: Step) -> None:
    await step.do("charge", helper, retries=ONCE)


@workflow("order")
async def in_its_own_code(event: WorkflowEvent, step: Step) -> None:
    await step.do("work", lambda: 1)
    helper()


@workflow("order")
async def from_a_cause(event: WorkflowEvent, step: Step) -> None:
    try:
        helper()
    except KeyError as error:
        raise LookupError("no such thing") from error


def is_of_the_author(trace: str) -> bool:
    """Whether a traceback leads to `deep_inside` through this file alone."""
    files = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return (
        files != []
        and all(__file__ in line for line in files)
        and "in helper" in trace
        and "in deep_inside" in trace
        and 'raise KeyError("nope")' in trace
    )


@pytest.mark.parametrize("order", [in_a_step, in_its_own_code, from_a_cause])
def test_an_error_deep_in_a_helper_says_where_it_was(
    order: object, caplog: pytest.LogCaptureFixture
):
    async def scenario(test: WorkflowTest) -> None:
        error = (await (await begin(test)).status()).error
        assert is_of_the_author(error.traceback)
        await test.crash()

    with caplog.at_level(logging.WARNING):
        run(scenario, order)
    assert any(
        line.startswith("order/i-1: run 0 failed") and is_of_the_author(line)
        for line in caplog.messages
    )


def test_a_failed_attempt_says_where_it_was_in_history_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
):
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.do("charge", helper)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        (charge,) = (await instance.history()).steps
        assert (charge.error.name, charge.error.message) == ("KeyError", "'nope'")
        assert is_of_the_author(charge.error.traceback)

    with caplog.at_level(logging.WARNING):
        run(scenario, order)
    (line,) = caplog.messages
    assert line.startswith('order/i-1: step "charge", attempt 1 failed: Traceback')
    assert is_of_the_author(line)


def test_a_long_traceback_keeps_its_end():
    # Functions of different names: a traceback of one that calls itself is short.
    scope: dict[str, Callable[[], None]] = {"level_200": deep_inside}
    for number in range(200):
        exec(f"def level_{number}(): level_{number + 1}()", scope)  # noqa: S102, our own text

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        scope["level_0"]()

    async def scenario(test: WorkflowTest) -> None:
        trace = (await (await begin(test)).status()).error.traceback
        assert len(trace) < 5_000
        assert trace.rstrip().endswith("KeyError: 'nope'")

    run(scenario, order)


def test_a_long_message_leaves_room_for_the_frames():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        raise ValueError("x" * 10_000)

    async def scenario(test: WorkflowTest) -> None:
        trace = (await (await begin(test)).status()).error.traceback
        assert len(trace) < 5_000
        assert "in order" in trace
        assert "ValueError: xxx" in trace

    run(scenario, order)


class Unprintable(Exception):
    """An error of which Python can make no traceback."""

    @property
    def __cause__(self) -> BaseException:
        raise LookupError("no cause")


async def raises_in_a_step(event: WorkflowEvent, step: Step) -> None:
    def charge() -> None:
        raise Unprintable("sold out")

    await step.do("charge", charge, retries=ONCE)


async def raises_in_its_own_code(event: WorkflowEvent, step: Step) -> None:
    raise Unprintable("sold out")


async def raises_in_a_rollback(event: WorkflowEvent, step: Step) -> None:
    def undo(output: object) -> None:
        raise Unprintable("not undone")

    await step.checkpoint("begin")
    await step.do("charge", lambda: 1, rollback=undo)
    raise Unprintable("sold out")


@pytest.mark.parametrize(
    "function", [raises_in_a_step, raises_in_its_own_code, raises_in_a_rollback]
)
def test_an_error_without_a_traceback_fails_like_any_other(function: Callable[..., Any]):
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 day")
        status = await instance.status()
        assert status.status == "errored"
        assert (status.error.name, status.error.message) == ("Unprintable", "sold out")
        assert status.error.traceback == "(its traceback cannot be created)"

    async def in_time(test: WorkflowTest) -> None:
        await asyncio.wait_for(scenario(test), 60)

    run(in_time, workflow("order")(function))


def test_a_long_traceback_has_the_authors_line_and_the_failing_one():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        async def charge() -> None:
            namespace: dict[str, Any] = {"deep_inside": deep_inside}
            for number in range(80):
                body = f"f{number - 1}()" if number else "deep_inside()"
                code = compile(f"def f{number}(): {body}", f"library{number}.py", "exec")
                exec(code, namespace)  # noqa: S102 (frames of a library)
            namespace["f79"]()

        await step.do("charge", charge, retries=ONCE)

    async def scenario(test: WorkflowTest) -> None:
        error = (await (await begin(test)).status()).error
        assert error is not None
        assert error.traceback is not None
        assert "in charge" in error.traceback
        assert 'raise KeyError("nope")' in error.traceback
        assert len(error.traceback) < 4_100

    run(scenario, order)
