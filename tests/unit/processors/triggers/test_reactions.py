"""Rules about notifications."""

import msgspec
import pytest

from headwater.processors.notifications import Notification
from headwater.processors.providers.results import Effect
from headwater.processors.triggers.decide import RejectedEffect
from headwater.processors.triggers.reactions import (
    decide_reactions,
    reacting_rules,
    reaction_rules,
)
from headwater.processors.triggers.rules import Rule, RulesInvalid, read_rules
from headwater.schemas.history import SendEvent, StartRun

RULES = """
[[rule]]
name = "failed"
source = "headwater"
type = "instance_errored"
workflow = "support"
mode = "start"

[[rule]]
name = "dead"
source = "headwater"
type = "dead_letter"
workflow = "support"
mode = "signal_with_start"
id = '"letters"'
event = "letter"
payload = 'event.body.reason'
params = 'null'

[[rule]]
name = "reports"
source = "headwater"
type = "lab_uploaded"
workflow = "labs"
mode = "start"
id = 'event.user_id'

[[rule]]
name = "nights"
source = "terra"
workflow = "review"
mode = "start"
id = 'event.event_id'
"""


def errored(workflow: str = "order") -> Notification:
    data = {"workflow": workflow, "id": "o-1"}
    return Notification(id="msg_1", type="instance_errored", at_ms=5, workflow=workflow, data=data)


def dead() -> Notification:
    return Notification(id="msg_2", type="dead_letter", at_ms=5, data={"reason": "rule_failed"})


def rules(text: str = RULES) -> tuple[Rule, ...]:
    return read_rules(text, {"terra", "headwater"})


def names(of: tuple[Rule, ...] | list[Rule]) -> list[str]:
    return [rule.name for rule in of]


def test_only_rules_about_notifications_react():
    assert names(reaction_rules(rules())) == ["failed", "dead"]
    assert names(reacting_rules(reaction_rules(rules()), errored())) == ["failed"]
    assert names(reacting_rules(reaction_rules(rules()), dead())) == ["dead"]
    completed = msgspec.structs.replace(errored(), type="instance_completed")
    assert not reacting_rules(reaction_rules(rules()), completed)


def test_workflows_that_react_cause_no_reactions():
    assert not reacting_rules(reaction_rules(rules()), errored("support"))
    assert not decide_reactions(rules(), errored("support"), {})


def test_without_an_id_the_instance_has_that_of_the_event():
    params = msgspec.Raw(b'{"sku": "x"}')  # As Postgres has them.
    (effect,) = decide_reactions(rules(), errored(), {"params": params})
    assert isinstance(effect, Effect)
    assert (effect.workflow, effect.instance_id) == ("support", "msg_1")
    assert isinstance(effect.command, StartRun)
    assert msgspec.json.decode(effect.command.params) == {
        "event_id": "msg_1", "source": "headwater", "type": "instance_errored", "sent_at_ms": 5,
        "body": {"workflow": "order", "id": "o-1", "params": {"sku": "x"}},
    }  # fmt: skip


def test_expressions_read_params():
    text = RULES.replace(
        'mode = "start"\n', 'mode = "start"\nparams = "event.body.params.sku"\n', 1
    )
    params = msgspec.Raw(b'{"sku": "x\\u0000"}')
    (effect,) = decide_reactions(rules(text), errored(), {"params": params})
    assert isinstance(effect, Effect)
    assert isinstance(effect.command, StartRun)
    assert msgspec.json.decode(effect.command.params) == "x\ufffd"


def test_a_reaction_may_be_a_signal():
    (effect,) = decide_reactions(rules(), dead(), {})
    assert isinstance(effect, Effect)
    assert isinstance(effect.command, SendEvent)
    assert effect.command.payload == '"rule_failed"'


def test_a_rule_that_fails_is_rejected():
    text = RULES.replace("'\"letters\"'", "'event.body.nothing'")
    (effect,) = decide_reactions(rules(text), dead(), {})
    assert isinstance(effect, RejectedEffect)
    assert "rule dead" in effect.detail


@pytest.mark.parametrize("id_", ["id = '\"letters\"'", "id = 'event.event_id'"])
def test_other_rules_need_an_id(id_: str):
    """Those that signal, and those about deliveries."""
    with pytest.raises(RulesInvalid, match="expected the field `id`"):
        rules(RULES.replace(id_, ""))
