"""What rules make of messages of queues, and which rules about queues cannot be."""

import msgspec
import pytest

from headwater.processors.providers.results import Effect
from headwater.processors.queue_messages import QueueMessage
from headwater.processors.triggers.decide import RejectedEffect
from headwater.processors.triggers.queues import decide_message, route_problem, workflows_of
from headwater.processors.triggers.rules import Rule, RulesInvalid, read_rules
from headwater.schemas.history import Label, SendEvent, StartRun

START = """
[[rule]]
name = "orders"
queue = "orders"
workflow = "order"
mode = "start"
when = 'event.body.kind == "new"'
labels = '{"from": event.headers["x-from"]}'
"""
SIGNAL = """
[[rule]]
name = "paid"
queue = "ord*"
workflow = "order"
mode = "signal"
id = 'event.body.order'
event = "paid"
"""


def decided(rules: tuple[Rule, ...], body: object, queue: str = "orders") -> object:
    message = QueueMessage(
        queue=queue, body=msgspec.Raw(msgspec.json.encode(body)), headers={"x-from": "shop"}
    )
    return decide_message(rules, message, message_id="run_1", published_at_ms=7)


def test_the_first_rule_that_matches_decides():
    rules = read_rules(START + SIGNAL)
    assert decided(rules, {"kind": "new"}) == Effect(
        "orders", "order", "run_1", StartRun('{"kind":"new"}', labels=(Label("from", "shop"),))
    )
    assert decided(rules, {"order": "o-1"}) == Effect(
        "paid", "order", "o-1", SendEvent("", "paid", '{"order":"o-1"}')
    )
    failed = decided(rules, {"else": 1})
    assert isinstance(failed, RejectedEffect)
    assert failed.reason == "rule_failed"


def test_without_a_rule_a_queue_is_the_workflow_of_its_name():
    assert decided((), 1, "order") == Effect("", "order", "run_1", StartRun("1"))
    assert workflows_of((), "order") == ["order"]
    assert workflows_of(read_rules(START), "orders") == ["order"]
    for name in ("a//b", "headwater-prune", "x" * 65):
        assert route_problem((), name) is not None
        assert isinstance(decided((), 1, name), RejectedEffect)
    assert route_problem(read_rules(SIGNAL), "ord//x") is None


def test_a_rule_of_a_queue_concerns_no_delivery():
    (rule,) = read_rules(START, {"terra"})
    assert not rule.concerns("terra", "sleep")
    assert not rule.takes("order")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            START + 'source = "terra"',
            "expected the field `source` or the field `queue`, found both",
        ),
        (
            START.replace("queue =", "#"),
            "expected the field `source` or the field `queue`, found n",
        ),
        (START + 'type = "sleep"', "expected type with the field source only"),
        (SIGNAL.replace("id =", "#"), "expected the field `id`, the instance that is signaled"),
        (SIGNAL.replace("event = ", "#"), "expected event, the type of the signal"),
        (
            START.replace('"orders"\nworkflow', '"\\u0000"\nworkflow'),
            "expected the name of a queue",
        ),
    ],
)
def test_a_rule_about_a_queue_that_cannot_be(changed: str, told: str):
    with pytest.raises(RulesInvalid) as caught:
        read_rules(changed, {"terra"})
    assert told in caught.value.message
