"""Decide the effects of a delivery on workflows, and the commands for these effects.

An effect happens once. It is identified by its delivery and its rule, and consumers skip one
that was there before. A repeated start does nothing, because the instance id is taken. A signal
names its sender and its number: the rule, the partition of the topic `effects`, and the offset.
Owners accept no number twice from one sender, and none below the highest accepted one. So signals
must be sent in the order of offsets, but may be sent any number of times. Every rule is a separate
sender, because two rules may signal one instance.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

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
    trace: str = ""


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
        facts = {**metadata, "body": parse_body(event.body)}
    except JsonInvalid as error:
        detail = f"expected a body that is JSON with numbers and depth in bounds, found: {error}"
        return [_failed(rule, BODY_NOT_JSON, detail) for rule in matching]
    whole = _WholeDelivery(metadata, event.body)
    subject = Subject(facts, whole.text, evaluator, event_type=event.type)
    decided = (decide_rule(rule, subject) for rule in matching)
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
    return EffectCommand(
        *(effect.name, command_id, effect.workflow, effect.instance_id), command, effect.trace
    )


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


class Subject:
    """A delivery or message: values for the expressions of all its rules, and their budget.

    Args:
        event: Value of the variable `event`.
        text: Returns the JSON text that is the default of params and payload.
        evaluator: Evaluates expensive expressions; without it there are no limits.
        event_type: Default type of a signal.
        instance_id: Default id of an instance that is started; empty if a rule has to name one.
    """

    def __init__(
        self,
        event: dict[str, Any],
        text: Callable[[], Json],
        evaluator: Evaluator | None,
        *,
        event_type: str = "",
        instance_id: str = "",
    ) -> None:
        self._facts = ExpressionValues({"event": event})
        self._evaluations = Evaluations(evaluator, TASKS_NS)
        self.text = text
        self.event_type = event_type
        self.instance_id = instance_id

    def value(self, expression: Expression) -> Any | EvaluationProblem:  # noqa: ANN401
        """Return the value of an expression, or why it has none."""
        return expression.evaluate(self._facts, evaluations=self._evaluations)


def parse_body(body: bytes) -> Any:  # noqa: ANN401
    """Parse a body for expressions, with NUL replaced, because the library ends texts at NUL.

    Raises:
        JsonInvalid: The body is not JSON or exceeds a limit.
    """
    # Of the extra `server`, while authors' tests import this module, and need it only for rules.
    import orjson  # noqa: PLC0415 (see above)

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


def decide_rule(rule: Rule, subject: Subject) -> Effect | RejectedEffect | None:
    """Return the effect of a rule, why it has none, or None if it does not match."""
    try:
        if not _matches(rule, subject):
            return None
        instance_id = _instance_id(rule, subject)
        command: StartRun | SendEvent
        if rule.mode == "start":
            params = _json(rule, "params", subject)
            command = StartRun(params, labels=_labels(rule, subject))
        else:
            payload = _json(rule, "payload", subject)
            start = None if rule.mode == "signal" else _json(rule, "params", subject)
            type_, labels = _event_type(rule, subject), _labels(rule, subject)
            command = SendEvent("", type_, payload, None, start, labels=labels)
    except _RuleFailed as failure:
        return _failed(rule, failure.reason, str(failure))
    return Effect(rule.name, rule.workflow, instance_id, command)


def _failed(rule: Rule, reason: str, detail: str) -> RejectedEffect:
    return RejectedEffect(rule.name, reason, f"rule {rule.name}: {detail}")


def _matches(rule: Rule, subject: Subject) -> bool:
    if rule.when is None:
        return True
    value = subject.value(rule.when)
    if isinstance(value, EvaluationProblem):
        if value.missing:
            return False
        raise _rule_failed("when", rule.when, value)
    return bool(value)


def _instance_id(rule: Rule, subject: Subject) -> str:
    if rule.id is None:
        return subject.instance_id
    value = _value("id", rule.id, subject)
    problem = name_problem("an instance id", value, INSTANCE_ID_MAX)
    if problem:
        raise _RuleFailed("invalid_instance_id", f"{problem}\n  {rule.id.source}")
    return value


def _event_type(rule: Rule, subject: Subject) -> str:
    value = subject.event_type if rule.event is None else rule.event
    problem = name_problem("an event type", value, EVENT_TYPE_MAX)
    if problem:
        raise _RuleFailed("invalid_event_type", problem)
    return value


def _json(rule: Rule, field: str, subject: Subject) -> Json:
    expression: Expression | None = getattr(rule, field)
    text = subject.text() if expression is None else _value(field, expression, subject)
    problem = value_problem(field, text)
    if problem:
        raise _RuleFailed(f"{field}_too_large", f"{problem}; name what is needed in {field}")
    return text


def _labels(rule: Rule, subject: Subject) -> tuple[Label, ...]:
    if rule.labels is None:
        return ()
    labels = msgspec.json.decode(_value("labels", rule.labels, subject))
    problem = labels_problem(labels) if isinstance(labels, dict) else "expected texts by name"
    if problem:
        raise _RuleFailed("invalid_labels", f"{problem}\n  {rule.labels.source}")
    return labels_of(labels)


def _value(field: str, expression: Expression, subject: Subject) -> str:
    value = subject.value(expression)
    if isinstance(value, EvaluationProblem):
        raise _rule_failed(field, expression, value)
    return str(value)


def _rule_failed(field: str, expression: Expression, problem: EvaluationProblem) -> _RuleFailed:
    expected = expression.result_kind.value
    detail = f"expected {field} to give {expected}, found: {problem.message}"
    return _RuleFailed(RULE_FAILED, f"{detail}\n  {expression.source}")
