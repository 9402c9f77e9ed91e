"""What rules make of deliveries: given rules and a delivery, then commands or failures."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.providers.results import Effect
from headwater.processors.runs.decide import send_event
from headwater.processors.runs.limits import VALUE_BYTES_MAX
from headwater.processors.runs.state import Run
from headwater.processors.triggers.decide import (
    EffectCommand,
    RejectedEffect,
    check_effect,
    command_for,
    decide,
    refused,
)
from headwater.processors.triggers.rules import Rule, read_rules
from headwater.schemas.failures import EVENT_ALREADY_RECEIVED, INSTANCE_EXISTS
from headwater.schemas.history import EventReceived, Label, Sender, SendEvent, StartRun
from headwater.schemas.records import EffectDecided, WebhookAdmitted
from headwater.schemas.statuses import RunStatus
from tests.unit.processors.deliveries import admitted

BODY = b' {"type": "sleep", "data": [{"score": 81, "id": "n-1"}]}\n'
START = """
    name = "review"
    source = "terra"
    type = "sleep"
    workflow = "night-review"
    mode = "start"
    id = '"night-" + event.body.data[0].id'
"""
SIGNAL = """
    name = "tell"
    source = "terra"
    type = "sleep"
    workflow = "watch"
    mode = "signal"
    id = 'event.user_id'
"""
BOTH = SIGNAL.replace('"signal"', '"signal_with_start"').replace('"tell"', '"both"')


def rules(*texts: str) -> tuple[Rule, ...]:
    return read_rules("".join(f"[[rule]]{text}\n" for text in texts))


def delivery(body: bytes = BODY, type_: str = "sleep") -> WebhookAdmitted:
    return admitted(type_, body)


def sent(*texts: str, event: WebhookAdmitted | None = None) -> EffectCommand:
    """The command for the one effect that rules find; it lies at offset 17."""
    event = event or delivery()
    (result,) = decide(rules(*texts), event)
    assert isinstance(result, Effect), result
    return carried_out(event, result, 17)


def carried_out(event: WebhookAdmitted, effect: Effect, offset: int) -> EffectCommand:
    fields = msgspec.structs.asdict(effect)
    decided = EffectDecided(event_id=event.event_id, request_id=event.request_id, **fields)
    return command_for(decided, 3, offset)


def failed(*texts: str, event: WebhookAdmitted | None = None) -> RejectedEffect:
    (result,) = decide(rules(*texts), event or delivery())
    assert isinstance(result, RejectedEffect), result
    return result


def test_a_start_has_the_delivery_as_its_params():
    result = sent(START)
    assert (result.workflow, result.instance_id) == ("night-review", "night-n-1")
    assert isinstance(result.command, StartRun)
    assert json.loads(result.command.params) == {
        "event_id": "e" * 32,
        "request_id": "r-1",
        "source": "terra",
        "type": "sleep",
        "subject": "s-1",
        "reference": "user_1",
        "user_id": "user_1",
        "sent_at_ms": delivery().sent_at_ms,
        "updated_at_ms": 7,
        "received_at_ms": delivery().received_at_ms,
        "body": json.loads(BODY),
    }


def test_the_body_is_passed_on_as_it_came():
    body = b'{"big": 123456789012345678901234567890, "pi": 3.10, "data": [{"id": "n"}]}'
    command = sent(START, event=delivery(body)).command
    assert isinstance(command, StartRun)
    assert body.decode() in command.params


def test_a_nul_is_another_character_to_expressions_and_itself_in_a_payload():
    event = delivery(b'{"data": [{"id": "n"}], "a\\u0000b": "c\\u0000d"}')
    command = sent(START + "params = 'event.body[\"a\ufffdb\"]'", event=event).command
    assert command == StartRun('"c\ufffdd"')
    command = sent(START, event=event).command
    assert isinstance(command, StartRun)
    assert json.loads(command.params)["body"]["a\0b"] == "c\0d"


def test_params_may_be_chosen():
    command = sent(START + "params = '{\"score\": event.body.data[0].score}'").command
    assert command == StartRun('{"score":81}')


@pytest.mark.parametrize("rule", [START, BOTH])
def test_labels_may_be_chosen(rule: str):
    command = sent(rule + 'labels = \'{"user": event.user_id, "at": "night"}\'').command
    assert isinstance(command, StartRun | SendEvent)
    assert command.labels == (Label("at", "night"), Label("user", "user_1"))


@pytest.mark.parametrize("labels", ["1", '{"a": 1}', '{"a b": "c"}'])
def test_labels_that_break_the_rules_are_named(labels: str):
    result = failed(START + f"labels = '{labels}'")
    assert result.reason in {"invalid_labels", "rule_failed"}
    assert labels in result.detail


def test_a_signal_says_who_sent_it_and_under_which_number():
    result = sent(SIGNAL + "payload = 'event.body.data[0].score'")
    assert result.instance_id == "user_1"
    assert result.command == SendEvent(
        "~tell/effects-3#17", "sleep", "81", Sender("~tell", "effects-3", 0, 17), None
    )
    assert result.command_id == "~tell/effects-3#17"


def test_a_signal_with_start_brings_the_params_along():
    more = "event = \"night\"\nparams = '{\"user\": event.user_id}'\npayload = '1'"
    command = sent(BOTH + more).command
    assert isinstance(command, SendEvent)
    assert (command.type, command.payload, command.start) == ("night", "1", '{"user":"user_1"}')


def test_rules_that_do_not_concern_a_delivery_are_silent():
    assert decide(rules(START, SIGNAL), delivery(type_="daily")) == []
    assert decide(rules(START), msgspec.structs.replace(delivery(), source="x")) == []


def test_a_body_is_not_looked_at_that_no_rule_concerns():
    assert decide(rules(START), delivery(b"no JSON", "daily")) == []


@pytest.mark.parametrize(
    ("when", "follows"),
    [
        ("event.body.data[0].score > 80", True),
        ("event.body.data[0].score > 81", False),
        ("event.body.data[0].missing", False),
        ("event.body.data[9].score > 1", False),
        ("event.body.missing || true", True),
    ],
)
def test_a_rule_is_followed_where_its_condition_holds(when: str, follows: bool):
    assert bool(decide(rules(START + f"when = '{when}'"), delivery())) is follows


def test_several_rules_are_followed_in_their_order():
    result = decide(rules(SIGNAL, START, BOTH), delivery())
    assert [item.name for item in result] == ["tell", "review", "both"]
    effects = [item for item in result if isinstance(item, Effect)]
    sends = [carried_out(delivery(), effect, 5) for effect in effects]
    senders = [send.command.sender for send in sends if isinstance(send.command, SendEvent)]
    assert [sender and sender.workflow for sender in senders] == ["~tell", "~both"]


def test_one_rule_alone_is_followed_where_it_is_named():
    result = decide(rules(SIGNAL, START, BOTH), delivery(), only="review")
    assert [item.name for item in result] == ["review"]


@pytest.mark.parametrize(
    ("text", "reason", "told"),
    [
        (
            START.replace("data[0].id", "data[0].name"),
            "rule_failed",
            'expected id to give a text, found: NOT_FOUND: Key not found in map : "name"\n'
            '  "night-" + event.body.data[0].name',
        ),
        (
            START.replace('"night-" + event.body.data[0].id', '"a b" + event.user_id'),
            "invalid_instance_id",
            "not beginning with -, found 'a buser_1'",
        ),
        (
            START + "when = 'event.body.data[0].score'",
            "rule_failed",
            "expected when to give true or false, found: expected true or false, found 81",
        ),
        (START + "params = 'event.body.none'", "rule_failed", "expected params to give a JSON"),
        (
            BOTH.replace('type = "sleep"', 'event = "x"\npayload = "event.body.none"'),
            "rule_failed",
            "rule both: expected payload to give a JSON value",
        ),
    ],
)
def test_a_rule_that_fails_is_named_with_its_reason(text: str, reason: str, told: str):
    result = failed(text)
    assert (result.reason, result.detail.startswith(f"rule {result.name}: ")) == (reason, True)
    assert told in result.detail


def test_one_rule_that_fails_stops_no_other():
    bad = START.replace('"review"', '"bad"').replace("data[0].id", "none")
    result = decide(rules(bad, SIGNAL), delivery())
    assert [type(item) for item in result] == [RejectedEffect, Effect]


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": NaN}', b"[" * 2_000 + b"]" * 2_000, b'"\\ud800"', b"\xff"]
)
def test_a_body_that_is_no_json_fails_every_rule(body: bytes):
    result = decide(rules(START, SIGNAL), delivery(body))
    assert [(type(item), item.name) for item in result] == [
        (RejectedEffect, "review"),
        (RejectedEffect, "tell"),
    ]
    assert {item.reason for item in result if isinstance(item, RejectedEffect)} == {"body_not_json"}


def test_a_delivery_that_is_too_large_needs_an_expression():
    body = json.dumps({"data": [{"id": "n"}], "x": "y" * VALUE_BYTES_MAX}).encode()
    result = failed(START, event=delivery(body))
    assert result.reason == "params_too_large"
    assert "name what is needed in params" in result.detail
    assert isinstance(
        sent(START + "params = 'event.user_id'", event=delivery(body)).command, StartRun
    )


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (START, "", None),
        (START, INSTANCE_EXISTS, None),
        (START, "WORKFLOW_NOT_FOUND", "workflow_not_found"),
        (SIGNAL, "", None),
        (SIGNAL, EVENT_ALREADY_RECEIVED, None),
        (SIGNAL, "INSTANCE_NOT_FOUND", "instance_not_found"),
        (SIGNAL, "INSTANCE_TERMINAL", "instance_terminal"),
        (BOTH, INSTANCE_EXISTS, "instance_id_already_exists"),
        (BOTH, "MAILBOX_FULL", "mailbox_full"),
    ],
)
def test_what_an_outcome_means(text: str, code: str, reason: str | None):
    result = refused(sent(text), code, "expected this, found that")
    assert (result and result.reason) == reason
    if result:
        assert result.detail == f"{result.name}: expected this, found that"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "two words"}, "expected the name of an effect of 1 to 63 characters"),
        ({"workflow": ""}, "expected workflow of 1 to"),
        ({"instance_id": "a/b"}, "expected an instance id of 1 to"),
        ({"command": SendEvent("", "", "1")}, "expected an event type of 1 to"),
        ({"command": SendEvent("", "day", f'"{"x" * VALUE_BYTES_MAX}"')}, "as payload, found"),
        ({"command": StartRun(f'"{"x" * VALUE_BYTES_MAX}"')}, "as params, found"),
    ],
)
def test_an_effect_of_a_normalizer_that_cannot_be_is_named(changes: dict[str, Any], told: str):
    good = Effect("backfill", "import", "user_1", StartRun("null"))
    assert check_effect(good) is good
    result = check_effect(msgspec.structs.replace(good, **changes))
    assert isinstance(result, RejectedEffect)
    assert result.reason == "invalid_effect"
    assert told in result.detail


@dataclass
class Mailbox:
    """An instance's mailbox, by the rules of its owner."""

    run: Run = field(
        default_factory=lambda: Run(
            workflow="watch",
            instance_id="user_1",
            run_number=0,
            sequence=0,
            status=RunStatus.WAITING,
            params="null",
            seed="",
            parent=None,
            created_at_ms=0,
            started_at_ms=0,
            updated_at_ms=0,
            received={},
        )
    )
    received: list[str] = field(default_factory=list)

    def take(self, command: SendEvent) -> None:
        result = send_event(self.run, command, 0)
        if isinstance(result, EventReceived):
            sender, _, number = result.event_id.rpartition("#")
            self.run.received[sender] = int(number)
            self.received.append(result.payload)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 20)), max_size=8))
def test_however_often_deliveries_are_read_again_each_signals_once_and_in_order(
    readings: list[tuple[int, int]],
):
    """Every reading goes on from an offset that was reached, or from before it."""
    followed = rules(SIGNAL + "payload = 'event.body.n'", BOTH + "payload = 'event.body.n'")
    box = Mailbox()
    reached = 0
    for back, length in [*readings, (0, 20)]:
        first = max(0, reached - back)
        for offset in range(first, min(20, first + length)):
            event = delivery(json.dumps({"n": offset}).encode())
            for at, item in enumerate(decide(followed, event)):
                assert isinstance(item, Effect)
                command = carried_out(event, item, 2 * offset + at).command
                assert isinstance(command, SendEvent)
                box.take(command)
        reached = max(reached, min(20, first + length))
    assert box.received == [str(n) for n in range(reached) for _ in followed]
