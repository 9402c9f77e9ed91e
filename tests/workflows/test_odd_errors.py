"""Errors that are not made as errors usually are, or raised where the engine reads a value.

Each fails its step or its run, as any other error does, and no other run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import pytest
from typing_extensions import override

from headwater import (
    NonRetryableError,
    Retry,
    Step,
    StepFailedError,
    WorkflowEvent,
    WorkflowTest,
    task,
    workflow,
)
from headwater.schemas.answers import Failure
from tests.workflows.graphing import graph, node
from tests.workflows.running import begin, error_of, run

ONCE = Retry(limit=0)
#: A step whose error is lost never ends.
_BOUND_S = 20


@dataclass
class Declined(NonRetryableError):
    """One whose `__init__` is that of a dataclass, which calls no other."""

    reason: str


class Passed(StepFailedError):
    """One that has nothing of what those of ours have."""

    @override
    def __init__(self) -> None:
        pass


class Mute(Exception):
    """One whose text ends the program that asks for it."""

    @override
    def __str__(self) -> str:
        raise SystemExit(3)


class _Nameless(type):
    @property
    def __name__(cls) -> str:
        raise LookupError("no name")


class Nameless(Exception, metaclass=_Nameless):
    """One of a class that does not tell its name."""


#: How an error is made, and what is said of it.
ERRORS = {
    "dataclass": (lambda: Declined("no credit"), ("Declined", "no credit")),
    "step failed": (Passed, ("Passed", "")),
    "mute": (Mute, ("Mute", "(its text cannot be created)")),
    "nameless": (lambda: Nameless("sold out"), ("Exception", "sold out")),
}
Body = Callable[[Step, Callable[[object], None]], Awaitable[object]]


async def in_its_own_code(step: Step, fail: Callable[[object], None]) -> None:
    fail(None)


async def in_a_step(step: Step, fail: Callable[[object], None]) -> None:
    await step.do("charge", lambda: fail(None), retries=ONCE)


async def in_a_rollback(step: Step, fail: Callable[[object], None]) -> None:
    await step.checkpoint("begin")
    await step.do("charge", lambda: 1, rollback=fail)
    fail(None)


async def in_a_task(step: Step, fail: Callable[[object], None]) -> None:
    async def beside() -> None:
        fail(None)

    await asyncio.gather(beside())


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("body", [in_its_own_code, in_a_step, in_a_rollback, in_a_task])
def test_an_odd_error_fails_its_instance_by_name_and_text(body: Body, error: str):
    make, reported = ERRORS[error]

    def fail(_: object) -> None:
        raise make()

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await body(step, fail)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 day")
        assert said(await error_of(instance)) == reported

    in_time(scenario, order)


@pytest.mark.parametrize("error", ERRORS)
def test_an_odd_error_fails_the_task_of_a_graph(error: str):
    make, reported = ERRORS[error]

    @task("charge")
    async def charge(given: object) -> None:
        raise make()

    async def scenario() -> None:
        definition = graph([node("a", "charge")], [])
        async with WorkflowTest([definition], tasks=[charge]) as test:
            assert said(await error_of(await begin(test, "g"))) == reported

    asyncio.run(asyncio.wait_for(scenario(), _BOUND_S))


@dataclass
class Checked:
    """Params that check themselves, and not by a ValueError."""

    amount: int

    def __post_init__(self) -> None:
        raise LookupError("no such currency")


class Made(msgspec.Struct):
    """Params with a part that cannot be made."""

    amount: int
    currency: str = msgspec.field(default_factory=lambda: {}["none"])


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Checked, "Checked, found: LookupError: no such currency"), (Made, "found: KeyError: 'none'")],
)
def test_params_whose_own_code_fails_are_no_params_of_their_type(kind: type, told: str):
    @workflow("order")
    async def order(event: WorkflowEvent[kind], step: Step) -> None:
        raise AssertionError("expected no code to run without its params")

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, params={"amount": 1})
        error = await error_of(instance)
        assert error.name == "INVALID_PARAMS"
        assert error.message.endswith(told)

    run(scenario, order)


class Broken(dict[str, int]):
    """An output that cannot be read."""

    @override
    def items(self) -> NoReturn:
        raise LookupError("not now")


def test_an_output_whose_own_code_fails_fails_its_instance():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return Broken(a=1)

    async def scenario(test: WorkflowTest) -> None:
        assert said(await error_of(await begin(test))) == ("LookupError", "not now")

    run(scenario, order)


def said(failure: Failure) -> tuple[str, str]:
    return failure.name, failure.message


def in_time(scenario: Callable[[WorkflowTest], Awaitable[None]], order: object) -> None:
    async def bounded(test: WorkflowTest) -> None:
        await asyncio.wait_for(scenario(test), _BOUND_S)

    run(bounded, order)
