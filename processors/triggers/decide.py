"""Decide the effects of a delivery on workflows, and the commands for these effects.

An effect happens once. It is identified by its delivery and its rule, and consumers skip one
that was there before. A repeated start does nothing, because the instance id is taken. A signal
names its sender and its number: the rule, the partition of the topic `effects`, and the offset.
Owners accept no number twice from one sender, and none below the highest accepted one. So signals
must be sent in the order of offsets, but may be sent any number of times. Every rule is a separate
sender, because two rules may signal one instance.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import orjson

from headwater.processors.evaluations import EvaluationProblem, Evaluations, Evaluator
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.input_texts import JsonInvalid, read_json
from headwater.processors.providers.results import Effect
from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    PROGRAM,
    WORKFLOW_NAME_MAX,
    labels_of,
    labels_problem,
    name_problem,
    value_problem,
)
from headwater.processors.triggers.rules import Rule
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import Command, Json, Label, Sender, SendEvent, StartRun
from headwater.schemas.records import EffectDecided, WebhookAdmitted

#: Reasons of dead letters. For a rejected command it is the lowercase code.
RULE_FAILED: Final = "rule_failed"
BODY_NOT_JSON: Final = "body_not_json"
INVALID_EFFECT: Final = "invalid_effect"

#: Processor time, in ns, of all rules of one delivery that are evaluated outside the pipeline.
TASKS_NS: Final = 10_000_000_000

#: An effect's name is also part of a sender's name, after a prefix.
EFFECT_NAME_MAX: Final = WORKFLOW_NAME_MAX - len(PROGRAM)


class EffectCommand(msgspec.Struct, frozen=True):
    """The command of an effect; `command_id` is the same however often it is sent."""

    name: str
    command_id: str
    workflow: str
    instance_id: str
    command: Command


class RejectedEffect(msgspec.Struct, frozen=True):
    """An effect that a delivery cannot have, identified by its rule."""

    name: str
    reason: str
    detail: str


def decide(
    rules: Iterable[Rule],
    event: WebhookAdmitted,
    *,
    only: str | None = None,
    evaluator: Evaluator | None = None,
) -> list[Effect | RejectedEffect]:
    """Evaluate the rules that match a delivery, in their order.

    Args:
        rules: All rules.
        event: The delivery.
        only: Name of the only rule to evaluate; None for all.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """
    matching = [
        rule
        for rule in rules
        if rule.concerns(event.source, event.type) and only in (None, rule.name)
    ]
    if not matching:
        return []
    metadata = {name: getattr(event, name) for name in _METADATA}
    try:
        facts = _Delivery({"event": {**metadata, "body": _parsed(event.body)}}, evaluator)
    except JsonInvalid as error:
        detail = f"expected a body that is JSON with numbers and depth in bounds, found: {error}"
        return [_failed(rule, BODY_NOT_JSON, detail) for rule in matching]
    whole = _WholeDelivery(metadata, event.body)
    decided = (_effect_of(rule, facts, whole, event) for rule in matching)
    return [effect for effect in decided if effect is not None]


def check_effect(effect: Effect) -> Effect | RejectedEffect:
    """Return an effect of a normalizer, or its rejection if it is invalid."""
    command = effect.command
    problems = [
        name_problem("the name of an effect", effect.name, EFFECT_NAME_MAX),
        name_problem("workflow", effect.workflow, WORKFLOW_NAME_MAX),
        name_problem("an instance id", effect.instance_id, INSTANCE_ID_MAX),
    ]
    if isinstance(command, SendEvent):
        problems.append(name_problem("an event type", command.type, EVENT_TYPE_MAX))
        problems.append(value_problem("payload", command.payload))
    params = command.params if isinstance(command, StartRun) else command.start
    problems.append(value_problem("params", params or ""))
    for problem in filter(None, problems):
        return RejectedEffect(effect.name, INVALID_EFFECT, f"effect {effect.name!a}: {problem}")
    return effect


def command_for(effect: EffectDecided, partition: int, offset: int) -> EffectCommand:
    """Return the command for an effect at an offset of a partition of `effects`."""
    sender = Sender(f"{PROGRAM}{effect.name}", f"effects-{partition}", 0, offset)
    command_id = f"{sender.workflow}/{sender.instance_id}#{sender.number}"
    command = effect.command
    if isinstance(command, SendEvent):
        command = msgspec.structs.replace(command, event_id=command_id, sender=sender)
    return EffectCommand(effect.name, command_id, effect.workflow, effect.instance_id, command)


def refused(send: EffectCommand, code: str, message: str) -> RejectedEffect | None:
    """Return the failure of an effect by its command's outcome, or None if it happened."""
    exists = code == INSTANCE_EXISTS and isinstance(send.command, StartRun)
    if exists or not is_refused(code):
        return None
    return RejectedEffect(send.name, code.lower(), f"{send.name}: {message}")


#: Fields of a delivery that expressions and payloads can use, besides its body.
_METADATA: Final = (
    "event_id",
    "request_id",
    "source",
    "type",
    "subject",
    "reference",
    "user_id",
    "sent_at_ms",
    "updated_at_ms",
    "received_at_ms",
)


class _WholeDelivery:
    """The delivery as a payload: its body is passed on as the text that was received."""

    def __init__(self, metadata: dict[str, Any], body: bytes) -> None:
        self._metadata = metadata
        self._body = body
        self._text: Json | None = None

    def text(self) -> Json:
        if self._text is None:
            whole = {**self._metadata, "body": msgspec.Raw(self._body.strip())}
            self._text = msgspec.json.encode(whole).decode()
        return self._text


class _Delivery:
    """Values for the expressions of all rules of a delivery, and their evaluation budget."""

    def __init__(self, values: dict[str, Any], evaluator: Evaluator | None) -> None:
        self._facts = ExpressionValues(values)
        self._evaluations = Evaluations(evaluator, TASKS_NS)

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        return expression.evaluate(self._facts, evaluations=self._evaluations)


def _parsed(body: bytes) -> Any:  # noqa: ANN401
    """Parse a body for expressions, with NUL replaced, because the library ends texts at NUL.

    Raises:
        JsonInvalid: The body is not JSON or exceeds a limit.
    """
    # CEL has no integers beyond 64 bits; orjson makes them floats.
    value = read_json(body, orjson.loads)
    return _without_nul(value) if b"\\u0000" in body else value


def _without_nul(value: Any) -> Any:  # noqa: ANN401
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case dict():
            return {_without_nul(key): _without_nul(item) for key, item in value.items()}
        case list():
            return [_without_nul(item) for item in value]
        case _:
            return value


class _RuleFailed(Exception):
    """A rule cannot produce a command for a delivery."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _effect_of(
    rule: Rule, facts: _Delivery, whole: _WholeDelivery, event: WebhookAdmitted
) -> Effect | RejectedEffect | None:
    try:
        if not _matches(rule, facts):
            return None
        instance_id = _instance_id(rule, facts)
        command: StartRun | SendEvent
        if rule.mode == "start":
            params = _json(rule, "params", facts, whole)
            command = StartRun(params, labels=_labels(rule, facts))
        else:
            payload = _json(rule, "payload", facts, whole)
            start = None if rule.mode == "signal" else _json(rule, "params", facts, whole)
            type_, labels = _event_type(rule, event), _labels(rule, facts)
            command = SendEvent("", type_, payload, None, start, labels=labels)
    except _RuleFailed as failure:
        return _failed(rule, failure.reason, str(failure))
    return Effect(rule.name, rule.workflow, instance_id, command)


def _failed(rule: Rule, reason: str, detail: str) -> RejectedEffect:
    return RejectedEffect(rule.name, reason, f"rule {rule.name}: {detail}")


def _matches(rule: Rule, facts: _Delivery) -> bool:
    if rule.when is None:
        return True
    value = facts.value(rule.when)
    if isinstance(value, EvaluationProblem):
        if value.missing:
            return False
        raise _rule_failed("when", rule.when, value)
    return bool(value)


def _instance_id(rule: Rule, facts: _Delivery) -> str:
    value = _value("id", rule.id, facts)
    problem = name_problem("an instance id", value, INSTANCE_ID_MAX)
    if problem:
        raise _RuleFailed("invalid_instance_id", f"{problem}\n  {rule.id.source}")
    return value


def _event_type(rule: Rule, event: WebhookAdmitted) -> str:
    value = event.type if rule.event is None else rule.event
    problem = name_problem("an event type", value, EVENT_TYPE_MAX)
    if problem:
        raise _RuleFailed("invalid_event_type", problem)
    return value


def _json(rule: Rule, field: str, facts: _Delivery, whole: _WholeDelivery) -> Json:
    expression: Expression | None = getattr(rule, field)
    text = whole.text() if expression is None else _value(field, expression, facts)
    problem = value_problem(field, text)
    if problem:
        raise _RuleFailed(f"{field}_too_large", f"{problem}; name what is needed in {field}")
    return text


def _labels(rule: Rule, facts: _Delivery) -> tuple[Label, ...]:
    if rule.labels is None:
        return ()
    labels = msgspec.json.decode(_value("labels", rule.labels, facts))
    problem = labels_problem(labels) if isinstance(labels, dict) else "expected texts by name"
    if problem:
        raise _RuleFailed("invalid_labels", f"{problem}\n  {rule.labels.source}")
    return labels_of(labels)


def _value(field: str, expression: Expression, facts: _Delivery) -> str:
    value = facts.value(expression)
    if isinstance(value, EvaluationProblem):
        raise _rule_failed(field, expression, value)
    return str(value)


def _rule_failed(field: str, expression: Expression, problem: EvaluationProblem) -> _RuleFailed:
    expected = expression.result_kind.value
    detail = f"expected {field} to give {expected}, found: {problem.message}"
    return _RuleFailed(RULE_FAILED, f"{detail}\n  {expression.source}")
