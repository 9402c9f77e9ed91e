"""Spans of the past: their shape, and that their ids follow from the log."""

from datetime import UTC, datetime, timedelta

import msgspec

from headwater.processors.trace_context import (
    TraceContext,
    attempt_context,
    context_of,
    delivery_context,
    run_context,
)
from headwater.processors.trace_spans import (
    ProcessedDelivery,
    Span,
    SpanLink,
    TracedDelivery,
    TracedRun,
    TracedStep,
    span_of_run,
    span_of_step,
    spans_of_delivery,
)

EVENT = "5f1d7a84b2c9e03f6a1b8d7c4e2f9a60"
SENDER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
AT = datetime(2026, 7, 1, 8, tzinfo=UTC)


def at(ms: int) -> datetime:
    return AT + timedelta(milliseconds=ms)


def processed(position: str = "webhooks/3@17", **more: object) -> ProcessedDelivery:
    known = {"status": "processed", "reason": "", "rows": 2, "admitted_at": at(5), "at": at(9)}
    return msgspec.convert({**known, "position": position, **more}, ProcessedDelivery)


def delivery(*outcomes: ProcessedDelivery, trace: str = "") -> list[Span]:
    return list(
        spans_of_delivery(
            TracedDelivery(
                event_id=EVENT,
                request_id="r-1",
                source="terra",
                type="daily",
                received_at=at(0),
                trace=trace,
                processed=outcomes,
            )
        )
    )


def ms(span: Span) -> tuple[int, int]:
    began = round(AT.timestamp() * 1_000_000)
    return (span.start_us - began) // 1_000, (span.end_us - began) // 1_000


def test_a_delivery_is_received_and_processed_in_the_trace_of_its_sender():
    received, process = delivery(processed(), trace=SENDER.text)
    context = delivery_context(EVENT, SENDER.text)
    assert (received.trace_id, received.span_id) == (SENDER.trace_id, context.span_id)
    assert received.parent_id == SENDER.span_id
    assert (received.kind, received.name) == ("server", "POST /webhooks/terra")
    assert (process.trace_id, process.parent_id) == (SENDER.trace_id, context.span_id)
    assert (process.kind, process.name, ms(process)) == ("consumer", "process webhooks", (5, 9))
    assert process.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "webhooks",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
        "messaging.message.id": EVENT,
        "headwater.status": "processed",
        "headwater.rows": 2,
    }


def test_a_delivery_without_a_trace_is_one():
    received, process = delivery(processed())
    assert {received.trace_id, process.trace_id} == {EVENT}
    assert received.parent_id == ""


def test_a_wait_is_a_span_and_what_died_has_an_error():
    parked = processed(parked_at=at(6), released_at=at(80), at=at(81), waited_for="no_connection")
    _, wait, process = delivery(parked)
    assert (wait.name, ms(wait)) == ("wait for a connection", (6, 80))
    assert ms(process) == (80, 81)
    _, waiting, _ = delivery(processed(status="parked", parked_at=at(6), at=at(6)))
    assert ms(waiting) == (6, 6)
    *_, dead = delivery(processed(status="dead", reason="malformed_payload"))
    assert dead.error == dead.attributes["headwater.reason"] == "malformed_payload"


def test_a_replay_is_linked_with_the_receipt_and_has_a_span_of_its_own():
    received, first, again = delivery(
        processed(), processed("webhooks/3@40", replay="replay-7", at=at(900))
    )
    assert first.links == ()
    assert again.links == (SpanLink(received.trace_id, received.span_id),)
    assert first.span_id != again.span_id
    assert again.attributes["headwater.replay"] == "replay-7"


def test_the_same_facts_have_the_same_spans():
    assert delivery(processed(), trace=SENDER.text) == delivery(processed(), trace=SENDER.text)


RUN = run_context("order", "o-1", 1, "seed", SENDER.text)
BEFORE = run_context("order", "o-1", 0, "seed", SENDER.text)


def test_a_run_is_a_child_of_what_started_it_and_linked_with_the_run_that_it_retries():
    span = span_of_run(
        TracedRun(
            workflow_name="order",
            instance_id="o-1",
            run_number=1,
            status="errored",
            error_name="ValueError",
            error_message="no stock",
            started_at=at(0),
            ended_at=at(70),
            traceparent=RUN.traceparent,
            parent_span_id=SENDER.span_id,
            previous=BEFORE.traceparent,
        )
    )
    assert span is not None
    assert (span.trace_id, span.span_id, span.parent_id) == (
        *(SENDER.trace_id, RUN.span_id),
        SENDER.span_id,
    )
    assert (span.name, span.error, ms(span)) == ("run order", "ValueError: no stock", (0, 70))
    assert span.links == (SpanLink(SENDER.trace_id, BEFORE.span_id),)
    assert span.attributes == {
        "headwater.workflow": "order",
        "headwater.instance_id": "o-1",
        "headwater.run_number": 1,
        "headwater.status": "errored",
    }


def step(**more: object) -> Span | None:
    known = {
        "workflow_name": "order",
        "instance_id": "o-1",
        "run_number": 1,
        "key": "pay",
        "name": "pay",
        "type": "do",
        "status": "completed",
        "attempts": 2,
        "started_at": at(5),
        "ended_at": at(25),
        "traceparent": RUN.traceparent,
    }
    return span_of_step(msgspec.convert({**known, **more}, TracedStep))


def test_a_step_has_the_id_that_its_code_passed_on():
    span = step()
    context = context_of(RUN.traceparent)
    assert span is not None
    assert context is not None
    assert span.span_id == attempt_context(context, "pay", 2).span_id
    assert (span.parent_id, span.name, ms(span)) == (RUN.span_id, "step pay", (5, 25))
    sleep = step(type="sleep", attempts=0)
    assert sleep is not None
    assert (sleep.name, sleep.attributes["headwater.attempts"]) == ("sleep pay", 0)


def test_what_has_no_context_has_no_span():
    assert step(traceparent="") is None
    assert step(ended_at=at(0)) is not None
