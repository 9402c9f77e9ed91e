"""How pytest runs the tests of authors, with the plugin that comes with Headwater."""

import asyncio

import pytest

from headwater import Step, WorkflowEvent, WorkflowTest, workflow


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    return await step.do("work", lambda: event.payload)


async def test_a_parameter_with_a_default_is_no_fixture(
    workflow_test: type[WorkflowTest],
    payload: str = "given",  # noqa: PT028, what is tested
):
    async with workflow_test([order]) as test:
        instance = await test.create("order", params=payload)
        await test.run_until_idle()
        assert (await instance.status()).output == "given"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def loop_of_fixtures(anyio_backend: str) -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest.mark.anyio
async def test_a_test_of_another_plugin_runs_in_the_loop_of_its_fixtures(
    workflow_test: type[WorkflowTest], loop_of_fixtures: asyncio.AbstractEventLoop
):
    assert asyncio.get_running_loop() is loop_of_fixtures
    async with workflow_test([order]) as test:
        assert await test.tick() == 0
