"""Spans of the past: what deliveries, runs and steps were, as OpenTelemetry describes work.

Computed from what the log says of them, so nothing has to be sampled or recorded in advance. Ids
follow from the log (`trace_context`): an export of the same time has the same spans, and replays
and retries are linked with what they repeat. Names and attributes are those of OpenTelemetry's
semantic conventions for messaging; attributes of ours begin with `headwater.`.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from headwater.processors.trace_context import (
    TraceContext,
    attempt_context,
    context_of,
    delivery_context,
    span_id_of,
)
from headwater.schemas.history import Failure
from headwater.schemas.records import OutcomeRecorded, WebhookReceived

SpanKind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
Attribute: TypeAlias = str | int

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Entries of code that are not calls of steps.
_STEP: Final = "do"


class SpanLink(msgspec.Struct, frozen=True):
    """Another span that a span repeats or continues."""

    trace_id: str
    span_id: str


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A span. Times are Unix microseconds.

    Attributes:
        parent_id: Its parent within the trace; empty for a root.
        error: Why it failed; empty if it did not.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    kind: SpanKind = "internal"
    start_us: int
    end_us: int
    attributes: dict[str, Attribute] = {}
    links: tuple[SpanLink, ...] = ()
    error: str = ""


# -- deliveries


class ProcessedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One processing of a delivery; a delivery that was replayed has several."""

    status: str
    reason: str
    rows: int
    admitted_at: datetime
    parked_at: datetime | None = None
    released_at: datetime | None = None
    at: datetime
    position: str
    replay: str = ""
    waited_for: str = ""


class TracedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery with all that is known of its processing.

    Attributes:
        trace: Its trace context as text; or empty.
        processed: The earlier ones first.
    """

    event_id: str
    request_id: str
    source: str
    type: str
    received_at: datetime
    trace: str
    processed: tuple[ProcessedDelivery, ...]


def spans_of_delivery(delivery: TracedDelivery) -> Iterator[Span]:
    """Yield the spans of a delivery: its receipt, and each processing of it."""
    context = delivery_context(delivery.event_id, delivery.trace)
    at_us = _us(delivery.received_at)
    yield _receipt(delivery, at_us, at_us)
    for one in delivery.processed:
        yield from _spans_of_processing(delivery, context, one)


def receipt_spans(delivery: WebhookReceived, now_ms: int, append_s: float) -> Iterator[Span]:
    """Yield the spans of a request that has appended a delivery, if its trace is recorded.

    Args:
        delivery: The delivery, with its context.
        now_ms: The time of the response, in Unix milliseconds.
        append_s: How long the append took, with what was appended together, in seconds.
    """
    context = delivery_context(delivery.event_id, delivery.trace)
    if not context.is_sampled:
        return
    end_us = 1_000 * now_ms
    yield _receipt(delivery, 1_000 * delivery.received_at_ms, end_us)
    yield Span(
        trace_id=context.trace_id,
        span_id=span_id_of("send", context.span_id),
        parent_id=context.span_id,
        name="send webhooks",
        kind="producer",
        start_us=end_us - round(append_s * 1_000_000),
        end_us=end_us,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": "webhooks",
            "messaging.message.id": delivery.event_id,
        },
    )


def _receipt(delivery: TracedDelivery | WebhookReceived, start_us: int, end_us: int) -> Span:
    context, sender = (
        delivery_context(delivery.event_id, delivery.trace),
        context_of(delivery.trace),
    )
    return Span(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=sender.span_id if sender and sender.span_id != context.span_id else "",
        name=f"POST /webhooks/{delivery.source}",
        kind="server",
        start_us=start_us,
        end_us=max(start_us, end_us),
        attributes={
            "http.request.method": "POST",
            "http.route": f"/webhooks/{delivery.source}",
            "headwater.request_id": delivery.request_id,
            "headwater.event_id": delivery.event_id,
            "headwater.source": delivery.source,
            "headwater.type": delivery.type,
        },
    )


def _spans_of_processing(
    delivery: TracedDelivery, context: TraceContext, one: ProcessedDelivery
) -> Iterator[Span]:
    identity = (context.span_id, one.position)
    links = (SpanLink(context.trace_id, context.span_id),) if one.replay else ()
    start = one.admitted_at
    if one.parked_at is not None:
        start = one.released_at or one.at
        yield Span(
            trace_id=context.trace_id,
            span_id=span_id_of("wait", *identity),
            parent_id=context.span_id,
            name="wait for a connection",
            start_us=_us(one.parked_at),
            end_us=_us(max(start, one.parked_at)),
            attributes={
                "headwater.event_id": delivery.event_id,
                "headwater.waited_for": one.waited_for,
            },
        )
    topic, partition, offset = _position(one.position)
    attributes: dict[str, Attribute] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": partition,
        "messaging.message.id": delivery.event_id,
        "headwater.status": one.status,
        "headwater.rows": one.rows,
    }
    more = {"headwater.reason": one.reason, "headwater.replay": one.replay}
    if offset.isdecimal():
        attributes["messaging.kafka.offset"] = int(offset)
    yield Span(
        trace_id=context.trace_id,
        span_id=span_id_of("process", *identity),
        parent_id=context.span_id,
        name=f"process {topic}",
        kind="consumer",
        start_us=_us(start),
        end_us=_us(max(one.at, start)),
        attributes=attributes | {name: value for name, value in more.items() if value},
        links=links,
        error=one.reason if one.status == "dead" else "",
    )


def _position(position: str) -> tuple[str, str, str]:
    """Return topic, partition and offset of a position, topic/partition@offset."""
    topic, _, rest = position.partition("/")
    partition, _, offset = rest.partition("@")
    return topic, partition, offset


#: Deliveries with which a batch is linked.
_LINKS_MAX: Final = 128


def unit_spans(outcomes: Sequence[OutcomeRecorded], partition: int) -> Iterator[Span]:
    """Yield the spans of deliveries that were processed together and whose traces are recorded.

    The batch has a span in a trace of its own, with links to the deliveries.

    Args:
        outcomes: Outcomes of deliveries with a trace.
        partition: The partition.
    """
    recorded = [
        (outcome, context)
        for outcome in outcomes
        if (context := delivery_context(outcome.event_id, outcome.trace)).is_sampled
    ]
    for outcome, context in recorded:
        delivery = _traced(outcome)
        yield from _spans_of_processing(delivery, context, delivery.processed[0])
    if recorded:
        first, _ = recorded[0]
        digest = span_id_of("batch", first.event_id, first.position)
        yield Span(
            trace_id=span_id_of("batch trace", digest) + digest,
            span_id=digest,
            name="process webhooks batch",
            kind="consumer",
            start_us=1_000 * min(outcome.admitted_at_ms for outcome, _ in recorded),
            end_us=1_000 * max(outcome.at_ms for outcome, _ in recorded),
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": "webhooks",
                "messaging.destination.partition.id": str(partition),
                "messaging.batch.message_count": len(recorded),
            },
            links=tuple(
                SpanLink(context.trace_id, context.span_id) for _, context in recorded[:_LINKS_MAX]
            ),
        )


def _traced(outcome: OutcomeRecorded) -> TracedDelivery:
    one = ProcessedDelivery(
        status=outcome.status,
        reason=outcome.reason,
        rows=outcome.rows,
        admitted_at=_at(outcome.admitted_at_ms),
        parked_at=_at(outcome.parked_at_ms) if outcome.parked_at_ms else None,
        released_at=_at(outcome.released_at_ms) if outcome.released_at_ms else None,
        at=_at(outcome.at_ms),
        position=outcome.position,
        replay=outcome.replay,
        waited_for=outcome.waited_for,
    )
    return TracedDelivery(
        event_id=outcome.event_id,
        request_id=outcome.request_id,
        source=outcome.source,
        type=outcome.type,
        received_at=_at(outcome.received_at_ms),
        trace=outcome.trace,
        processed=(one,),
    )


# -- runs and steps


class TracedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an instance.

    Attributes:
        traceparent: Its trace context.
        parent_span_id: The span that started it, if any.
        previous: Trace context of the run that it retries or follows.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    status: str
    error_name: str | None = None
    error_message: str | None = None
    started_at: datetime
    ended_at: datetime
    traceparent: str
    parent_span_id: str | None = None
    previous: str | None = None


def span_of_run(run: TracedRun) -> Span | None:
    """Return the span of a run; None if it has no trace context."""
    context, previous = context_of(run.traceparent), context_of(run.previous or "")
    if context is None:
        return None
    return Span(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=run.parent_span_id or "",
        name=f"run {run.workflow_name}",
        start_us=_us(run.started_at),
        end_us=_us(max(run.ended_at, run.started_at)),
        attributes={**_of_run(run), "headwater.status": run.status},
        links=(SpanLink(previous.trace_id, previous.span_id),) if previous else (),
        error=_error(run.error_name, run.error_message),
    )


class TracedStep(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a run, or a token of a graph.

    Attributes:
        key: Key of the entry; number of the token.
        name: Name of the entry; node of the token.
        type: Kind of the entry; `task` of a token.
        traceparent: Trace context of its run.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    key: str
    name: str
    type: str
    status: str
    attempts: int
    error_name: str | None = None
    error_message: str | None = None
    started_at: datetime
    ended_at: datetime
    traceparent: str


def span_of_step(step: TracedStep) -> Span | None:
    """Return the span of a step's last attempt, or of another entry; None without a context."""
    run = context_of(step.traceparent)
    if run is None:
        return None
    kind = "step" if step.type == _STEP else step.type
    return Span(
        trace_id=run.trace_id,
        span_id=attempt_context(run, step.key, step.attempts).span_id,
        parent_id=run.span_id,
        name=f"{kind} {step.name}",
        start_us=_us(step.started_at),
        end_us=_us(max(step.ended_at, step.started_at)),
        attributes={
            **_of_run(step),
            "headwater.step": step.key,
            "headwater.attempts": step.attempts,
            "headwater.status": step.status,
        },
        error=_error(step.error_name, step.error_message),
    )


def attempt_span(
    run: tuple[str, str, int],
    context: TraceContext,
    step: tuple[str, str, int],
    times_ms: tuple[int, int],
    failure: Failure | None,
) -> Span:
    """Return the span of an attempt of a step that has just ended.

    Args:
        run: Workflow, instance and number of the run.
        context: The run's context.
        step: Key and name of the step, and number of the attempt.
        times_ms: When the attempt began and ended, in Unix milliseconds.
        failure: Why it failed, if it did.
    """
    workflow, instance_id, number = run
    key, name, attempt = step
    traced = TracedStep(
        workflow_name=workflow,
        instance_id=instance_id,
        run_number=number,
        key=key,
        name=name,
        type=_STEP,
        status="errored" if failure else "completed",
        attempts=attempt,
        error_name=None if failure is None else failure.name,
        error_message=None if failure is None else failure.message,
        started_at=_at(times_ms[0]),
        ended_at=_at(times_ms[1]),
        traceparent=context.traceparent,
    )
    span = span_of_step(traced)
    assert span is not None, "it has a context"  # noqa: S101
    return span


def _of_run(run: TracedRun | TracedStep) -> dict[str, Attribute]:
    return {
        "headwater.workflow": run.workflow_name,
        "headwater.instance_id": run.instance_id,
        "headwater.run_number": run.run_number,
    }


def _at(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _error(name: str | None, message: str | None) -> str:
    return "" if name is None else f"{name}: {message}" if message else name
