"""Rules about notifications: workflows that start because an instance failed, or a dead letter.

Such a rule has the source `headwater`. A workflow that one of them starts causes no reactions when
it fails itself: rules that react to one another would otherwise start runs without end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headwater.processors.evaluations import Evaluator
from headwater.processors.input_texts import JsonInvalid
from headwater.processors.notifications import RULE_TYPES, SOURCE, Notification
from headwater.processors.providers.results import Effect
from headwater.processors.triggers.decide import (
    BODY_NOT_JSON,
    RejectedEffect,
    Subject,
    decide_rule,
    parse_body,
)
from headwater.processors.triggers.rules import Rule


def reaction_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules that react to notifications."""
    return tuple(
        rule for rule in rules if any(rule.concerns(SOURCE, type_) for type_ in RULE_TYPES)
    )


def reacting_rules(rules: Sequence[Rule], notification: Notification) -> list[Rule]:
    """Return the rules that concern a notification, of those that `reaction_rules` returned."""
    if notification.type not in RULE_TYPES:
        return []
    if notification.workflow in {rule.workflow for rule in rules}:
        return []
    return [rule for rule in rules if rule.concerns(SOURCE, notification.type)]


def decide_reactions(
    rules: Sequence[Rule],
    notification: Notification,
    more: Mapping[str, Any],
    evaluator: Evaluator | None = None,
) -> list[Effect | RejectedEffect]:
    """Return the effects of all rules that match a notification, in their order.

    Args:
        rules: All rules.
        notification: The notification.
        more: Further data of it, such as the params of the instance; may contain JSON as text.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """
    matching = reacting_rules(reaction_rules(rules), notification)
    if not matching:
        return []
    event = msgspec.json.encode(
        {
            "event_id": notification.id,
            "source": SOURCE,
            "type": notification.type,
            "sent_at_ms": notification.at_ms,
            "body": {**notification.data, **more},
        }
    )
    try:
        facts = parse_body(event)
    except JsonInvalid as error:
        return [RejectedEffect(rule.name, BODY_NOT_JSON, str(error)) for rule in matching]
    subject = Subject(
        facts,
        event.decode,
        evaluator,
        event_type=notification.type,
        instance_id=notification.id,
    )
    decided = (decide_rule(rule, subject) for rule in matching)
    return [effect for effect in decided if effect is not None]
