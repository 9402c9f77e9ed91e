"""`headwater queue`, and the client beneath it: what they ask and print."""

import json

import pytest

from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.workflow_network import Network, answer

PUBLISHED = {"messageId": "run_1", "deduped": False}


def test_a_command_and_a_client_publish():
    network = Network(answer(PUBLISHED))
    result = headwater(
        network, "queue", "send", "a//b", '{"sku": "x"}', "--delay", "30s",
        "--idempotency-key", "k", "--deployment", "dep_1",
    )  # fmt: skip
    assert result.stdout == "run_1\n"
    assert "Published." in result.stderr
    (requested,) = network.asked
    assert requested.url.raw_path == b"/v1/queues/a%2F%2Fb/messages"
    assert requested.headers["idempotency-key"] == "k"
    assert network.body() == {
        "message": {"sku": "x"}, "delaySeconds": 30.0, "deploymentId": "dep_1"
    }  # fmt: skip


def test_without_a_message_and_a_delay_it_is_null_at_once():
    network = Network(answer(PUBLISHED | {"deduped": True}))
    result = headwater(network, "queue", "send", "order", "--json")
    assert json.loads(result.stdout) == PUBLISHED | {"deduped": True}
    assert network.body() == {"message": None}


def test_queues_are_listed():
    network = Network(answer({"data": [{"name": "order", "waiting": 2}]}))
    result = headwater(network, "queue", "list")
    assert result.stdout.splitlines() == ["queue\twaiting", "order\t2"]


@pytest.mark.parametrize("delay", ["soon", "30 parsecs"])
def test_a_wrong_delay_is_refused_before_anything_is_sent(delay: str):
    network = Network()
    result = headwater(network, "queue", "send", "order", "--delay", delay)
    assert result.exit_code == 2
    assert "delay of a message" in result.stderr
    assert not network.asked
