"""What a delivery does to workflows: the effects that rules find, and commands for effects.

Once. An effect is named by its delivery and its rule, and those who carry effects out pass over one
that was there before. A start is repeated without harm, because its id is taken then. A signal says
who sent it, and under which number: the rule, the partition of the topic `effects`, the offset.
Owners take no number twice from one sender, and none below the highest that they have taken; so
signals must be sent in the order of the offsets, as often as need be. Each rule is a sender of its
own: two may signal one instance.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import orjson

from headwater.processors.evaluations import EvaluationProblem, Evaluations, Evaluator
from headwater.processors.expressions import Expression, Facts
from headwater.processors.json_texts import JsonInvalid, read_json
from headwater.processors.providers.results import Effect
from headwater.processors.runs.labels import labels_of, labels_problem
from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    PROGRAM,
    WORKFLOW_NAME_MAX,
    name_problem,
    value_problem,
)
from headwater.processors.triggers.rules import Rule
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import Command, Json, Label, Sender, SendEvent, StartRun
from headwater.schemas.records import EffectDecided, WebhookAdmitted

#: Reasons of dead letters; a refusal's is its code in small letters.
RULE_FAILED: Final = "rule_failed"
BODY_NOT_JSON: Final = "body_not_json"
INVALID_EFFECT: Final = "invalid_effect"

#: Processor time of what the rules evaluate of one delivery beside the pipeline.
TASKS_NS: Final = 10_000_000_000

#: The name of an effect is that of a sender, too, behind a mark.
EFFECT_NAME_MAX: Final = WORKFLOW_NAME_MAX - len(PROGRAM)


class Send(msgspec.Struct, frozen=True):
    """A command that is sent for an effect; `command_id` is the same however often it is sent."""

    name: str
    command_id: str
    workflow: str
    instance_id: str
    command: Command


class NoEffect(msgspec.Struct, frozen=True):
    """An effect that a delivery cannot have; name and detail name it, by its rule."""

    name: str
    reason: str
    detail: str


def decide(
    rules: Iterable[Rule],
    event: WebhookAdmitted,
    *,
    only: str | None = None,
    evaluator: Evaluator | None = None,
) -> list[Effect | NoEffect]:
    """Follows the rules that concern a delivery, in their order.

    Shape:  only is the name of the one rule to follow, None for all. evaluator evaluates what may
            take long; without it nothing is limited.
    """
    found = [
        rule
        for rule in rules
        if rule.concerns(event.source, event.type) and only in (None, rule.name)
    ]
    if not found:
        return []
    about = {name: getattr(event, name) for name in _ABOUT}
    try:
        facts = _Delivery({"event": {**about, "body": _read(event.body)}}, evaluator)
    except JsonInvalid as error:
        detail = f"expected a body that is JSON with numbers and depth in bounds, found: {error}"
        return [_failed(rule, BODY_NOT_JSON, detail) for rule in found]
    whole = _Whole(about, event.body)
    decided = (_follow(rule, facts, whole, event) for rule in found)
    return [each for each in decided if each is not None]


def checked(effect: Effect) -> Effect | NoEffect:
    """An effect of a normalizer, or what is wrong with it."""
    command = effect.command
    faults = [
        name_problem("the name of an effect", effect.name, EFFECT_NAME_MAX),
        name_problem("workflow", effect.workflow, WORKFLOW_NAME_MAX),
        name_problem("an instance id", effect.instance_id, INSTANCE_ID_MAX),
    ]
    if isinstance(command, SendEvent):
        faults.append(name_problem("an event type", command.type, EVENT_TYPE_MAX))
        faults.append(value_problem("payload", command.payload))
    params = command.params if isinstance(command, StartRun) else command.start
    faults.append(value_problem("params", params or ""))
    for fault in filter(None, faults):
        return NoEffect(effect.name, INVALID_EFFECT, f"effect {effect.name!a}: {fault}")
    return effect


def send_of(effect: EffectDecided, partition: int, offset: int) -> Send:
    """The command for an effect that lies at an offset of a partition of `effects`."""
    sender = Sender(f"{PROGRAM}{effect.name}", f"effects-{partition}", 0, offset)
    command_id = f"{sender.workflow}/{sender.instance_id}#{sender.number}"
    command = effect.command
    if isinstance(command, SendEvent):
        command = msgspec.structs.replace(command, event_id=command_id, sender=sender)
    return Send(effect.name, command_id, effect.workflow, effect.instance_id, command)


def refused(send: Send, code: str, message: str) -> NoEffect | None:
    """What a command's outcome means for its effect: None if it did what was asked."""
    exists = code == INSTANCE_EXISTS and isinstance(send.command, StartRun)
    if exists or not is_refused(code):
        return None
    return NoEffect(send.name, code.lower(), f"{send.name}: {message}")


#: What expressions and payloads have of a delivery, beside its body.
_ABOUT: Final = (
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


class _Whole:
    """The delivery as a payload: its body is passed on as the text that it came as."""

    def __init__(self, about: dict[str, Any], body: bytes) -> None:
        self._about = about
        self._body = body
        self._text: Json | None = None

    def text(self) -> Json:
        if self._text is None:
            whole = {**self._about, "body": msgspec.Raw(self._body.strip())}
            self._text = msgspec.json.encode(whole).decode()
        return self._text


class _Delivery:
    """What the expressions of all rules see of a delivery, and what they may spend on it."""

    def __init__(self, values: dict[str, Any], evaluator: Evaluator | None) -> None:
        self._facts = Facts(values)
        self._evaluations = Evaluations(evaluator, TASKS_NS)

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        return expression.evaluate(self._facts, evaluations=self._evaluations)


def _read(body: bytes) -> Any:  # noqa: ANN401
    """A body for expressions. The library ends a text at a NUL, so it gets another character.

    Errors: JsonInvalid.
    """
    # CEL has no integers beyond 64 bits; orjson makes them floats.
    value = read_json(body, orjson.loads)
    return _without_nul(value) if b"\\u0000" in body else value


def _without_nul(value: Any) -> Any:  # noqa: ANN401
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case dict():
            return {_without_nul(key): _without_nul(each) for key, each in value.items()}
        case list():
            return [_without_nul(each) for each in value]
        case _:
            return value


class _Unfit(Exception):
    """A rule that has no command for a delivery."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _follow(
    rule: Rule, facts: _Delivery, whole: _Whole, event: WebhookAdmitted
) -> Effect | NoEffect | None:
    try:
        if not _holds(rule, facts):
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
    except _Unfit as unfit:
        return _failed(rule, unfit.reason, str(unfit))
    return Effect(rule.name, rule.workflow, instance_id, command)


def _failed(rule: Rule, reason: str, detail: str) -> NoEffect:
    return NoEffect(rule.name, reason, f"rule {rule.name}: {detail}")


def _holds(rule: Rule, facts: _Delivery) -> bool:
    if rule.when is None:
        return True
    found = facts.value(rule.when)
    if isinstance(found, EvaluationProblem):
        if found.missing:
            return False
        raise _unfit("when", rule.when, found)
    return bool(found)


def _instance_id(rule: Rule, facts: _Delivery) -> str:
    found = _value("id", rule.id, facts)
    fault = name_problem("an instance id", found, INSTANCE_ID_MAX)
    if fault:
        raise _Unfit("invalid_instance_id", f"{fault}\n  {rule.id.source}")
    return found


def _event_type(rule: Rule, event: WebhookAdmitted) -> str:
    found = event.type if rule.event is None else rule.event
    fault = name_problem("an event type", found, EVENT_TYPE_MAX)
    if fault:
        raise _Unfit("invalid_event_type", fault)
    return found


def _json(rule: Rule, field: str, facts: _Delivery, whole: _Whole) -> Json:
    expression: Expression | None = getattr(rule, field)
    text = whole.text() if expression is None else _value(field, expression, facts)
    fault = value_problem(field, text)
    if fault:
        raise _Unfit(f"{field}_too_large", f"{fault}; name what is needed in {field}")
    return text


def _labels(rule: Rule, facts: _Delivery) -> tuple[Label, ...]:
    if rule.labels is None:
        return ()
    found = msgspec.json.decode(_value("labels", rule.labels, facts))
    fault = labels_problem(found) if isinstance(found, dict) else "expected texts by name"
    if fault:
        raise _Unfit("invalid_labels", f"{fault}\n  {rule.labels.source}")
    return labels_of(found)


def _value(field: str, expression: Expression, facts: _Delivery) -> str:
    found = facts.value(expression)
    if isinstance(found, EvaluationProblem):
        raise _unfit(field, expression, found)
    return str(found)


def _unfit(field: str, expression: Expression, fault: EvaluationProblem) -> _Unfit:
    detail = f"expected {field} to give {expression.gives.value}, found: {fault.message}"
    return _Unfit(RULE_FAILED, f"{detail}\n  {expression.source}")
