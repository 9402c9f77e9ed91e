"""The topics that steps publish to: those that a test has, that a workflow declares, and ours."""

import asyncio

import pytest

from headwater import Retry, Step, StepTx, Workflow, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.topics import TOPICS
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


def publishing_to(topic: str, declared: list[str] | None) -> Workflow:
    @workflow("order", publishes=declared)
    async def order(event: WorkflowEvent, step: Step) -> object:
        once = Retry(limit=0)
        return await step.do("tell", lambda tx: tx.publish(topic, "k", 1), retries=once)

    return order


def error_of_publishing(topic: str, declared: list[str] | None) -> str | None:
    async def scenario() -> str | None:
        async with WorkflowTest([publishing_to(topic, declared)]) as test:
            status = await (await begin(test)).status()
            assert len(test.published(topic)) == (status.error is None)
            return status.error and status.error.message

    return asyncio.run(scenario())


def test_a_workflow_that_declares_its_topics_publishes_to_these_alone():
    assert error_of_publishing("orders", ["orders", "bills"]) is None
    reported = "the workflow declares, publishes=['bills', 'orders'], found 'order'"
    assert reported in (error_of_publishing("order", ["orders", "bills"]) or "")
    assert "publishes=[], found 'orders'" in (error_of_publishing("orders", []) or "")


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS])
def test_no_step_publishes_to_a_topic_of_headwaters(topic: str):
    assert f"found {topic!r}, which is Headwater's" in (error_of_publishing(topic, None) or "")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("orders", "such as publishes=[\"orders-kept\"], found 'orders'"),
        ([b"orders"], "found [b'orders']"),
        (["a b"], "of the workflow order: expected the name of a topic, of 1 to 249 characters"),
        (["workflow-history"], "expected a topic of your own, found 'workflow-history'"),
    ],
)
def test_topics_that_cannot_be_are_refused_where_they_are_declared(declared: list[str], told: str):
    with pytest.raises((TypeError, ValueError)) as caught:
        publishing_to("orders", declared)
    assert told in str(caught.value)
