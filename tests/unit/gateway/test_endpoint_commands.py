"""`headwater endpoints`: what it sends, and what it prints."""

import json
from typing import Any

import pytest

from tests.unit.gateway.test_workflow_commands import headwater
from tests.unit.gateway.workflow_network import AT, Network, answer

ID = "ep_00"
ENDPOINT: dict[str, Any] = {
    "id": ID, "url": "https://example.com/hooks", "description": "on call",
    "types": ["instance_errored", "dead_letter"], "workflows": ["order"], "tables": [],
    "reasons": ["rule_failed"], "state": "active", "why": None, "stateSetAt": None,
    "stateSetBy": None, "createdAt": AT, "createdBy": "admin:1", "rotatedAt": None,
    "previousUntil": None,
}  # fmt: skip
SHOWN = ENDPOINT | {"secret": "whsec_00"}
DELIVERY: dict[str, Any] = {
    "id": "ep_00-ff", "messageId": "msg_ff", "type": "test", "state": "delivered", "error": None,
    "createdAt": AT, "updatedAt": AT, "nextAttemptAt": None,
    "attempts": [
        {"run": 0, "number": 1, "at": AT, "outcome": "accepted", "status": 204, "detail": "",
         "response": "thanks", "ms": 12},
    ],
}  # fmt: skip
FAILED = DELIVERY | {"state": "failed", "error": "none of 1 attempts was accepted"}


def sent(network: Network) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(network.asked[-1].content)


def paths(network: Network) -> list[str]:
    return [f"{asked.method} {asked.url.path}" for asked in network.asked]


def test_a_secret_is_printed_alone():
    network = Network(answer(SHOWN))
    options = ("--type", "instance_errored", "--type", "dead_letter", "--workflow", "order")
    result = headwater(network, "endpoints", "create", ENDPOINT["url"], *options)
    assert result.stdout == "whsec_00\n"
    assert (
        "ep_00: https://example.com/hooks receives instance_errored, dead_letter" in result.stderr
    )
    assert sent(network) == {
        "url": ENDPOINT["url"], "description": "", "types": ["instance_errored", "dead_letter"],
        "workflows": ["order"], "tables": [], "reasons": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create", "https://example.com"), "--type"),
        (("create", "https://example.com", "--type", "test"), "instance_errored"),
        (("delete", ID), "expected --yes, or a terminal"),
        (("replay", ID), "expected DELIVERY or --since, found neither"),
        (("replay", ID, "x", "--since", AT), "expected DELIVERY or --since, found both"),
        (("rotate", ID, "--overlap", "soon"), "soon"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], text: str):
    result = headwater(Network(answer(ENDPOINT)), "endpoints", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_endpoints_are_listed_with_their_filters():
    network = Network(answer({"endpoints": [ENDPOINT, ENDPOINT | {"state": "disabled"}]}))
    result = headwater(network, "endpoints", "list")
    assert "order, rule_failed" in result.stdout
    assert "disabled" in result.stdout
    assert "on call" in headwater(Network(answer(ENDPOINT)), "endpoints", "show", ID).stdout


def test_the_overlap_of_a_rotation_is_printed():
    network = Network(answer(SHOWN | {"previousUntil": AT}))
    result = headwater(network, "endpoints", "rotate", ID, "--overlap", "1h")
    assert sent(network) == {"overlapSeconds": 3600}
    assert "also signed with the previous secret until" in result.stderr


def test_an_endpoint_is_disabled_enabled_and_deleted():
    network = Network(*(answer(ENDPOINT) for _ in range(4)))
    headwater(network, "endpoints", "disable", ID, "--why", "moving")
    assert sent(network) == {"why": "moving"}
    assert "replay" in headwater(network, "endpoints", "enable", ID).stderr
    headwater(network, "endpoints", "delete", ID, "--yes")
    assert paths(network) == [
        "POST /v1/endpoints/ep_00/disable", "POST /v1/endpoints/ep_00/enable",
        "GET /v1/endpoints/ep_00", "DELETE /v1/endpoints/ep_00",
    ]  # fmt: skip


@pytest.mark.parametrize(("delivery", "code"), [(DELIVERY, 0), (FAILED, 1)])
def test_a_test_ends_with_its_outcome(delivery: dict[str, Any], code: int):
    network = Network(answer(DELIVERY), answer(DELIVERY | {"state": "pending"}), answer(delivery))
    result = headwater(network, "endpoints", "test", ID)
    assert result.exit_code == code
    assert "204" in result.stdout
    assert paths(network)[0] == "POST /v1/endpoints/ep_00/test"


def test_deliveries_are_listed_and_one_has_its_attempts():
    network = Network(answer({"deliveries": [FAILED], "cursor": None}))
    result = headwater(network, "endpoints", "deliveries", ID, "--state", "failed")
    assert "none of 1 attempts was accepted" in result.stdout
    assert network.asked[-1].url.params["state"] == "failed"
    result = headwater(Network(answer(FAILED)), "endpoints", "deliveries", ID, "ep_00-ff")
    assert result.exit_code == 0
    assert "thanks" in result.stdout


def test_one_delivery_is_replayed_or_what_was_missed():
    network = Network(answer(DELIVERY))
    headwater(network, "endpoints", "replay", ID, "ep_00-ff")
    assert paths(network) == ["POST /v1/endpoints/ep_00/deliveries/ep_00-ff/replay"]
    running = {"id": "r-1", "state": "running", "sent": 0, "restarted": 0}
    network = Network(answer(running), answer(running | {"state": "done", "sent": 3}))
    result = headwater(network, "endpoints", "replay", ID, "--since", AT, "--delivered")
    assert sent_first(network) == {"since": AT, "until": None, "delivered": True}
    assert paths(network)[-1] == "GET /v1/endpoints/ep_00/replays/r-1"
    assert "3 sent, 0 started again" in result.stderr


def sent_first(network: Network) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(network.asked[0].content)
