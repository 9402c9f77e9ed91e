"""Scenarios in the harness, and callbacks that remember how often they ran."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.answers import Failure, InstanceStatus
from headwater.schemas.answers import Step as Entry
from headwater.streams.harness.handles import TestInstance as Instance

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Unreachable(Exception):
    """What a callback raises whose peer does not answer."""


class Calls:
    """Which callbacks ran, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def of(self, name: str, value: object = None) -> Callable[[], object]:
        """A callback that remembers its call by this name and returns the value."""

        def callback() -> object:
            self.names.append(name)
            return value

        return callback


class Flaky:
    """A callback that fails some times before it succeeds."""

    def __init__(
        self, failures: float, value: object = "ok", error: type[BaseException] = Unreachable
    ) -> None:
        self.failures = failures
        self.value = value
        self.error = error
        self.calls = 0

    def __call__(self) -> object:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls}")
        return self.value


#: Plays a test once as it is, and once with a crash.
CRASH = pytest.mark.parametrize("crash", [False, True])


def order_that(callback: object, **options: object) -> object:
    """A workflow of one step, `charge`."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("charge", callback, **options)

    return order


class Deployed:
    """Which version of a workflow's code is deployed; its body asks."""

    version = 1


Scenario = Callable[[WorkflowTest], Awaitable[None]]

_current: list[WorkflowTest] = []


def run(scenario: Scenario, *workflows: object, seed: int = 7) -> None:
    """Run a scenario in a harness that knows these workflows."""

    async def whole() -> None:
        async with WorkflowTest(list(workflows), seed=seed, start="2026-01-01T00:00:00Z") as test:
            _current.append(test)
            try:
                await scenario(test)
            finally:
                _current.pop()

    asyncio.run(whole())


async def pass_time(duration: str | float) -> None:
    """Take virtual time; for callbacks, which are written before the harness is there."""
    await _current[-1].sleep(duration)


async def begin(
    test: WorkflowTest, name: str = "order", instance: str = "i-1", params: object = None
) -> Instance:
    """Create an instance and run until it waits or ends."""
    created = await test.create(name, id=instance, params=params)
    await test.run_until_idle()
    return created


def outcome(*workflows: object, name: str = "order", params: object = None) -> InstanceStatus:
    """The status of an instance that was run until idle, without time passing."""
    seen: list[InstanceStatus] = []

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, name, params=params)
        seen.append(await instance.status())

    run(scenario, *workflows)
    return seen[0]


def output(*workflows: object, name: str = "order", params: object = None) -> object:
    """What an instance returns that ends without time passing."""
    status = outcome(*workflows, name=name, params=params)
    assert status.status == "complete", (status.status, status.error)
    return status.output


def failure(*workflows: object, name: str = "order", params: object = None) -> Failure:
    """The error of an instance that fails without time passing."""
    status = outcome(*workflows, name=name, params=params)
    assert status.status == "errored", (status.status, status.output)
    assert status.error is not None
    return status.error


async def state_of(instance: Instance) -> str:
    """Its status, in one word."""
    return (await instance.status()).status


async def output_of(instance: Instance) -> object:
    """What an instance has returned; it must be complete."""
    status = await instance.status()
    assert status.status == "complete", (status.status, status.error)
    return status.output


async def error_of(instance: Instance) -> Failure:
    """What an instance has failed with; it must be errored."""
    status = await instance.status()
    assert status.status == "errored", (status.status, status.output)
    assert status.error is not None
    return status.error


async def keys_of(instance: Instance) -> list[str]:
    """The keys of the current run's entries, in the order of the history."""
    return [entry.step_key for entry in (await instance.history()).steps]


async def entry_at(instance: Instance, key: str) -> Entry:
    """The one row of the current run with this key."""
    result = [entry for entry in (await instance.history()).steps if entry.step_key == key]
    assert len(result) == 1, f"expected one entry {key}, found {await keys_of(instance)}"
    return result[0]


def published(test: WorkflowTest, topic: str) -> list[tuple[object, object]]:
    """Key and value of each record that step transactions have put on a topic."""
    return [(record.key, record.value) for record in test.published(topic)]
