"""What rules make of a delivery: commands to workflows, or why there is none.

Pure: (rules, delivery, its place in `effects`) -> for each rule that concerns it a Send or a
Failed.

Once. A start is repeated without harm, because its id is taken then. A signal says who sent it, and
under which number: the rule, the partition, the offset. Owners take no number twice from one
sender, and none below the highest that they have taken; so signals must be sent in the order of
the offsets, as often as need be. Each rule is a sender of its own: two may signal one instance.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import orjson

from headwater.processors.expressions import Expression, Facts, Fault
from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    PROGRAM,
    name_fault,
    value_fault,
)
from headwater.processors.triggers.rules import Rule
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import Command, Json, Sender, SendEvent, StartRun
from headwater.schemas.records import WebhookAdmitted

#: Reasons of dead letters; a refusal's is its code in small letters.
RULE_FAILED: Final = "rule_failed"
BODY_NOT_JSON: Final = "body_not_json"


class Send(msgspec.Struct, frozen=True):
    """A command that a rule sends; `command_id` is the same however often it is sent."""

    rule: str
    command_id: str
    workflow: str
    instance_id: str
    command: Command


class Failed(msgspec.Struct, frozen=True):
    """A rule that could not be followed for a delivery; detail names the rule."""

    rule: str
    reason: str
    detail: str


def decide(
    rules: Iterable[Rule],
    event: WebhookAdmitted,
    partition: int,
    offset: int,
    *,
    only: str | None = None,
) -> list[Send | Failed]:
    """Follows the rules that concern a delivery, in their order.

    Shape:  partition and offset are those of the topic `effects`; only is the name of the one rule
            to follow, None for all.
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
        facts = Facts({**about, "body": _read(event.body)})
    except (ValueError, RecursionError) as error:  # orjson's own is a ValueError
        detail = f"expected a body that is JSON with numbers and depth in bounds, found: {error}"
        return [_failed(rule, BODY_NOT_JSON, detail) for rule in found]
    whole = _Whole(about, event.body)
    decided = (_follow(rule, facts, whole, event, (partition, offset)) for rule in found)
    return [each for each in decided if each is not None]


def refused(send: Send, code: str, message: str) -> Failed | None:
    """What a command's outcome means for its rule: None if it did what was asked."""
    exists = code == INSTANCE_EXISTS and isinstance(send.command, StartRun)
    if exists or not is_refused(code):
        return None
    return Failed(send.rule, code.lower(), f"rule {send.rule}: {message}")


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


def _read(body: bytes) -> Any:  # noqa: ANN401
    """A body for expressions. The library ends a text at a NUL, so it gets another character.

    Errors: ValueError.
    """
    value = orjson.loads(body)
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
    rule: Rule, facts: Facts, whole: _Whole, event: WebhookAdmitted, place: tuple[int, int]
) -> Send | Failed | None:
    sender = Sender(f"{PROGRAM}{rule.name}", f"effects-{place[0]}", 0, place[1])
    command_id = f"{sender.workflow}/{sender.instance_id}#{sender.number}"
    try:
        if not _holds(rule, facts):
            return None
        instance_id = _instance_id(rule, facts)
        command: Command
        if rule.mode == "start":
            command = StartRun(_json(rule, "params", facts, whole))
        else:
            command = SendEvent(
                command_id,
                _event_type(rule, event),
                _json(rule, "payload", facts, whole),
                sender,
                None if rule.mode == "signal" else _json(rule, "params", facts, whole),
            )
    except _Unfit as unfit:
        return _failed(rule, unfit.reason, str(unfit))
    return Send(rule.name, command_id, rule.workflow, instance_id, command)


def _failed(rule: Rule, reason: str, detail: str) -> Failed:
    return Failed(rule.name, reason, f"rule {rule.name}: {detail}")


def _holds(rule: Rule, facts: Facts) -> bool:
    if rule.when is None:
        return True
    found = rule.when.evaluate(facts)
    if isinstance(found, Fault):
        if found.missing:
            return False
        raise _unfit("when", rule.when, found)
    return bool(found)


def _instance_id(rule: Rule, facts: Facts) -> str:
    found = _value("id", rule.id, facts)
    fault = name_fault("an instance id", found, INSTANCE_ID_MAX)
    if fault:
        raise _Unfit("invalid_instance_id", f"{fault}\n  {rule.id.source}")
    return found


def _event_type(rule: Rule, event: WebhookAdmitted) -> str:
    found = event.type if rule.event is None else rule.event
    fault = name_fault("an event type", found, EVENT_TYPE_MAX)
    if fault:
        raise _Unfit("invalid_event_type", fault)
    return found


def _json(rule: Rule, field: str, facts: Facts, whole: _Whole) -> Json:
    expression: Expression | None = getattr(rule, field)
    text = whole.text() if expression is None else _value(field, expression, facts)
    fault = value_fault(field, text)
    if fault:
        raise _Unfit(f"{field}_too_large", f"{fault}; name what is needed in {field}")
    return text


def _value(field: str, expression: Expression, facts: Facts) -> str:
    found = expression.evaluate(facts)
    if isinstance(found, Fault):
        raise _unfit(field, expression, found)
    return str(found)


def _unfit(field: str, expression: Expression, fault: Fault) -> _Unfit:
    detail = f"expected {field} to give {expression.gives.value}, found: {fault.message}"
    return _Unfit(RULE_FAILED, f"{detail}\n  {expression.source}")
