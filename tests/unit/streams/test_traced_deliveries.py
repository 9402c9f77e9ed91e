"""A delivery's trace reaches what follows from it: outcome, rows, hops, waits, effects, copies."""

import msgspec

from headwater.processors.providers.envelope import event_id
from headwater.processors.trace_context import TraceContext, context_of, delivery_context
from headwater.processors.triggers.decide import command_for
from headwater.schemas.codec import decode, encode
from headwater.schemas.records import (
    EffectDecided,
    OutcomeRecorded,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.topics import EFFECTS, OUTCOMES, WAITING, WEBHOOKS
from headwater.streams.kafka.dead_letters import RESTATED
from headwater.streams.kafka.records import Outgoing
from headwater.streams.pipeline.delivery_headers import delivery_headers
from tests.unit.streams.test_intake import AUTH, DAILY, NOW, intake_of, on, raw, received, step

SENDER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "a=1")
RULES = """
[[rule]]
name = "report"
mode = "start"
source = "terra"
type = "daily"
workflow = "report"
id = '"w-" + event.type'
"""


def delivery(**changes: object) -> WebhookReceived:
    body = changes.get("body", DAILY)
    assert isinstance(body, bytes)
    identity = event_id("terra", "daily", "t1", body)
    return received(**({"event_id": identity, "reference": "user_1"} | changes))


def trace_of(record: Outgoing) -> TraceContext | None:
    headers = {name: value.decode() for name, value in record.headers or ()}
    return context_of(f"{headers.get('traceparent', '')} {headers.get('tracestate', '')}".strip())


def test_a_trace_reaches_outcome_rows_and_workflows():
    traced = delivery(trace=SENDER.text)
    expected = SENDER.within(traced.event_id[:16])
    emitted = step(intake_of(rules=RULES), raw(traced))
    (outcome,) = on(emitted, OUTCOMES)
    assert decode(outcome.value, OutcomeRecorded).trace == SENDER.text
    assert trace_of(outcome) == expected
    (row,) = on(emitted, "daily-summary")
    assert trace_of(row) == expected
    (record,) = on(emitted, EFFECTS)
    effect = decode(record.value, EffectDecided)
    assert context_of(effect.trace) == expected
    assert command_for(effect, 0, 7).trace == effect.trace


def test_without_a_trace_only_effects_have_one_whose_id_is_that_of_the_delivery():
    emitted = step(intake_of(rules=RULES), raw(untraced := delivery()))
    (outcome,), (row,) = on(emitted, OUTCOMES), on(emitted, "daily-summary")
    assert [trace_of(record) for record in (outcome, row)] == [None, None]
    assert decode(outcome.value, OutcomeRecorded).trace == ""
    (record,) = on(emitted, EFFECTS)
    assert context_of(decode(record.value, EffectDecided).trace) == TraceContext(
        untraced.event_id, untraced.event_id[:16]
    )


def test_a_trace_outlasts_a_wait():
    intake = intake_of()
    parked = delivery(reference=None, trace=SENDER.text)
    (waiting,) = on(step(intake, raw(parked)), WAITING)
    assert decode(waiting.value, WebhookAdmitted).trace == SENDER.text
    auth = received(event_id="e2", type="auth", body=AUTH, reference="user_1")
    outcomes = [
        decode(record.value, OutcomeRecorded) for record in on(step(intake, raw(auth, 1)), OUTCOMES)
    ]
    assert [one.trace for one in outcomes if one.event_id == parked.event_id] == [SENDER.text]


def test_a_row_has_the_trace_of_the_last_traced_delivery_of_a_unit():
    first, second = delivery(trace=SENDER.text), delivery(body=DAILY.replace(b"100", b"200"))
    (row,) = on(step(intake_of(), raw(first), raw(second, 1)), "daily-summary")
    assert trace_of(row) == SENDER.within(first.event_id[:16])


def test_the_record_of_a_delivery_has_a_trace_always_and_keeps_its_headers_when_it_is_restated():
    traced = delivery(trace=SENDER.text)
    assert trace_of(Outgoing(WEBHOOKS, 0, b"", b"", delivery_headers(traced))) == SENDER.within(
        traced.event_id[:16]
    )
    untraced = delivery()
    headers = delivery_headers(untraced)
    assert trace_of(Outgoing(WEBHOOKS, 0, b"", b"", headers)) == delivery_context(
        untraced.event_id, ""
    )
    intake = intake_of()
    step(intake, raw(untraced, headers=tuple(headers)))
    later = msgspec.structs.replace(untraced, sent_at_ms=NOW + 60_000)
    emitted = step(intake, raw(later, 1, headers=tuple(headers)))
    (restated,) = on(emitted, WEBHOOKS)
    assert restated.headers == [*headers, (RESTATED, b"1")]
    assert decode(restated.value, WebhookReceived) == untraced
    assert encode(untraced) == restated.value
