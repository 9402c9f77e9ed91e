"""Decide what a message of a queue does: start a run, or send an event to an instance."""

from collections.abc import Iterable
from typing import Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.input_texts import JsonInvalid
from headwater.processors.providers.results import Effect
from headwater.processors.queue_messages import QueueMessage
from headwater.processors.runs.limits import BUILTIN_PREFIX, WORKFLOW_NAME_MAX, name_problem
from headwater.processors.triggers.decide import (
    BODY_NOT_JSON,
    RejectedEffect,
    Subject,
    decide_rule,
    parse_body,
)
from headwater.processors.triggers.rules import Rule
from headwater.schemas.history import StartRun

#: Reason of a message that no rule of its queue matches.
NO_RULE: Final = "no_rule"


def workflows_of(rules: Iterable[Rule], queue: str) -> list[str]:
    """Return the workflows that messages of a queue may start or signal."""
    return list(dict.fromkeys(rule.workflow for rule in rules if rule.takes(queue))) or [queue]


def route_problem(rules: Iterable[Rule], queue: str) -> str | None:
    """Return why no message of a queue can be delivered, or None."""
    if any(rule.takes(queue) for rule in rules):
        return None
    problem = name_problem("the name of a queue without a rule", queue, WORKFLOW_NAME_MAX)
    if problem:
        return f"{problem}; a rule with this queue names its workflow"
    if queue.startswith(BUILTIN_PREFIX):
        return f"expected a workflow of your own, found the built-in workflow {queue}"
    return None


def decide_message(
    rules: Iterable[Rule],
    message: QueueMessage,
    *,
    message_id: str,
    published_at_ms: int,
    evaluator: Evaluator | None = None,
) -> Effect | RejectedEffect:
    """Return the effect of a message: of the first rule of its queue that matches.

    Args:
        rules: All rules.
        message: The message.
        message_id: Its id; also the id of the instance that it starts, unless a rule names one.
        published_at_ms: When it was published, Unix milliseconds.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """
    queue, text = message.queue, bytes(message.body)
    own = [rule for rule in rules if rule.takes(queue)]
    if not own:
        problem = route_problem((), queue)
        if problem:
            return RejectedEffect("", NO_RULE, problem)
        return Effect("", queue, message_id, StartRun(text.decode()))
    try:
        facts = {
            "queue": queue,
            "message_id": message_id,
            "headers": message.headers,
            "published_at_ms": published_at_ms,
            "body": parse_body(text),
        }
    except JsonInvalid as error:
        return RejectedEffect("", BODY_NOT_JSON, f"queue {queue}: {error}")
    subject = Subject(facts, text.decode, evaluator, instance_id=message_id)
    for rule in own:
        effect = decide_rule(rule, subject)
        if effect is not None:
            return effect
    names = ", ".join(rule.name for rule in own)
    return RejectedEffect(
        "", NO_RULE, f"expected a message that a rule of its queue matches ({names}), none does"
    )
