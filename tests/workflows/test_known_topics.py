"""A test names the topics that there are: a step that publishes elsewhere fails, and says so."""

import asyncio

import pytest

from headwater import Step, StepTx, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import begin, error_of


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Publishes one record."""

    def callback(tx: StepTx) -> None:
        tx.publish("orders", "o-1", {"price": 7})

    await step.do("publish", callback)


@pytest.mark.parametrize("topics", [None, ["orders", "bills"]])
def test_a_step_publishes_to_the_topics_that_a_test_has(topics: list[str] | None):
    async def scenario() -> None:
        async with WorkflowTest([order], topics=topics) as test:
            assert (await (await begin(test)).status()).status == "complete"
            assert len(test.published("orders")) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("topics", "has"), [(["bills", "audit"], "audit, bills"), ([], "none")])
def test_a_step_that_publishes_to_another_topic_fails_for_good(topics: list[str], has: str):
    async def scenario() -> None:
        async with WorkflowTest([order], topics=topics) as test:
            error = await error_of(await begin(test))
            assert error.name == "TopicNotFound"
            assert f"topics of this test, {has}, found 'orders'" in error.message
            assert test.published("orders") == []

    asyncio.run(scenario())
