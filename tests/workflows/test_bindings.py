"""Workflows by keys of a program's own: the same program with a server and in a test."""

import pytest

from headwater import Step, WorkflowEvent, Workflows, WorkflowTest, workflow
from tests.unit.gateway.workflow_network import Network, answer
from tests.workflows.running import run


@workflow("billing")
async def billing(event: WorkflowEvent[dict[str, str]], step: Step) -> str:
    return f"billed {event.payload['order']}"


class Shop:
    """A program that embeds Headwater: it is given its workflows, and asks nothing else."""

    def __init__(self, workflows: Workflows) -> None:
        self._workflows = workflows

    async def sell(self, order: str) -> str:
        instance = await self._workflows.BILLING.create(id=order, params={"order": order})
        return instance.id


def test_a_program_runs_in_a_test_as_it_does_with_a_server():
    async def scenario(test: WorkflowTest) -> None:
        workflows = Workflows({"BILLING": billing, "OTHER": "billing"}, test)
        assert await Shop(workflows).sell("order-1") == "order-1"
        assert await workflows[billing].get("order-1").result() == "billed order-1"
        assert await workflows["OTHER"].get("order-1").result() == "billed order-1"
        new = await workflows.OTHER.create_batch(
            [{"id": name, "params": {"order": name}} for name in ("order-1", "b")]
        )
        assert [item.id for item in new] == ["b"]

        network = Network(answer({"id": "order-1", "details": {"status": "active"}}))
        async with network.client() as client:
            assert await Shop(Workflows({"BILLING": billing}, client)).sell("order-1") == "order-1"
        # Over HTTP a workflow has its name, never the key.
        assert network.lines == ["POST /workflows/billing/instances"]

    run(scenario, billing)


def test_a_key_that_is_not_bound_is_refused_by_the_names_of_those_that_are():
    async def scenario(test: WorkflowTest) -> None:
        workflows = Workflows({"BILLING": "billing"}, test)
        assert list(workflows) == ["BILLING"]
        with pytest.raises(AttributeError, match="expected one of BILLING, found BILING"):
            _ = workflows.BILING
        with pytest.raises(KeyError, match="expected one of BILLING, found billing"):
            _ = workflows["billing"]

    run(scenario, billing)


@pytest.mark.parametrize("key", ["", "_private", "two words", "a-b"])
def test_keys_are_names_of_attributes(key: str):
    with pytest.raises(ValueError, match="expected keys such as BILLING"):
        Workflows({key: billing}, WorkflowTest([billing]))


def test_what_is_bound_is_a_workflow_or_its_name():
    with pytest.raises(TypeError, match="or its name, found"):
        Workflows({"BILLING": test_keys_are_names_of_attributes}, WorkflowTest([billing]))
