"""Topics of other programs as sources: which delivery each of their records is.

    [[source]]
    name = "orders"
    kind = "kafka"
    topic = "shop.orders"
    format = "avro"                  # or "json"
    id = { header = "x-order-id" }   # default: topic, partition and offset
    type = { cel = "value.kind" }
    subject = { cel = "value.customer.id" }
    time = { cel = "value.placed_at" }  # RFC 3339 or Unix milliseconds; default: the record's own

A record is read like a webhook whose signature is valid: nothing of it is lost. One that cannot be
read becomes a delivery that cannot be routed, with its bytes and the reason, and a dead letter.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.processors.cel_programs import ExpressionInvalid, Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem, Evaluations, Evaluator
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.input_texts import (
    JsonInvalid,
    read_json,
    read_moment,
    rfc3339,
    text_problem,
    unix_ms,
)
from headwater.processors.providers.envelope import (
    MALFORMED,
    MISSING_TYPE,
    UNKNOWN,
    UNREADABLE,
    Malformed,
    Routing,
    event_id,
    sent_at_ms,
)
from headwater.processors.providers.provider import Provider
from headwater.processors.trace_context import TRACEPARENT, TRACESTATE, context_of_headers
from headwater.schemas.records import WebhookReceived

#: Names of the values that expressions of a source may use.
VARIABLES: Final = ("value", "key", "headers", "topic", "partition", "offset", "timestamp_ms")
_NAMES: Final = Names(*VARIABLES)
#: Header of an unreadable delivery with the reason, as code and detail.
_PROBLEM: Final = "headwater-problem"
_MS_DIGITS: Final = re.compile("[0-9]{1,15}")
_DETAIL_CHARS: Final = 500
#: How far a clock may be ahead of the gateway's. The latest value of a column wins, so one with a
#: time of another year would outlive all later ones.
_AHEAD_MAX_MS: Final = 24 * 60 * 60 * 1_000


class Location(msgspec.Struct, forbid_unknown_fields=True):
    """Where a field of a delivery is: in a header, or what an expression returns."""

    header: str | None = None
    cel: str | None = None


class Located(NamedTuple):
    """A location with its compiled expression."""

    header: str | None
    expression: "Expression | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A topic of another program, whose records become deliveries.

    Attributes:
        name: Source of its deliveries.
        topic: The topic.
        format: Format of its values.
        provider: Parses the deliveries; one without types means no provider.
        fields: Locations of id, type, subject and time that are configured.
    """

    name: str
    topic: str
    format: Literal["json", "avro"]
    provider: Provider
    fields: Mapping[str, Located]


class TopicRecord(NamedTuple):
    """A record of a source's topic.

    Attributes:
        body: Its value as JSON; as it is, if there is a problem.
        problem: Why it cannot be decoded.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    headers: Mapping[str, str]
    body: bytes
    problem: Malformed | None = None

    @property
    def position(self) -> str:
        """Position as topic/partition@offset."""
        return f"{self.topic}/{self.partition}@{self.offset}"


_Field: TypeAlias = str | int | None


class _Unusable(Exception):
    """A record that is no usable delivery; `again` if its provider finds the reason again."""

    def __init__(self, code: str, detail: str, *, again: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason_of(Malformed(code, detail))
        self.again = again


def reason_of(problem: Malformed) -> str:
    """Return a problem as the text that an unreadable delivery keeps."""
    return f"{problem.code}: {problem.detail[:_DETAIL_CHARS]}"


def provider_for(provider: Provider | None, name: str) -> Provider:
    """Return the provider of a topic's deliveries; without one, they are only recorded.

    It states the reason of an unreadable delivery, which the body alone may not show.
    """
    inner = provider or Provider(name=name, scheme=None, read=_recorded, types={})

    def read(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
        code, found, detail = headers.get(_PROBLEM, "").partition(": ")
        return Malformed(code, detail) if found else inner.read(body, headers)

    return replace(inner, read=read)


def _recorded(body: bytes, headers: Mapping[str, str]) -> Routing:
    del body, headers
    return Routing(UNKNOWN, "")


def delivery_of(
    source: KafkaSource, record: TopicRecord, *, now_ms: int, evaluator: Evaluator | None = None
) -> WebhookReceived:
    """Return the delivery of a record.

    It depends on the record alone, so a record that is read again is a duplicate; except that a
    time ahead of its receipt may be usable later. The position is the request id, by which its
    trace is found.

    Args:
        source: The source.
        record: The record.
        now_ms: The time, in Unix milliseconds.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """
    problem = record.problem
    if problem is not None:
        return unreadable_delivery(source, record, reason_of(problem), now_ms)
    try:
        return _readable(source, record, now_ms, evaluator)
    except _Unusable as error:
        return unreadable_delivery(source, record, "" if error.again else error.reason, now_ms)


def _readable(
    source: KafkaSource, record: TopicRecord, now_ms: int, evaluator: Evaluator | None
) -> WebhookReceived:
    fields = _fields(source, record, evaluator)
    routing = _routing(source, record, fields)
    identity = record.position if "id" not in source.fields else _text("id", fields)
    if not identity:
        raise _Unusable(MALFORMED, "id: expected a text or number, found none")
    written = fields.get("time")
    time_ms = record.timestamp_ms if written is None else _time(written)
    if _is_ahead(time_ms, now_ms):
        detail = f"time: expected at most a day after its receipt at {rfc3339(now_ms)}, "
        raise _Unusable(MALFORMED, f"{detail}found {time_ms} in Unix milliseconds")
    parts = (source.name, routing.type, routing.subject, identity.encode())
    return WebhookReceived(
        event_id=event_id(*parts),
        request_id=record.position,
        source=source.name,
        type=routing.type,
        subject=routing.subject,
        reference=routing.reference,
        sent_at_ms=sent_at_ms(time_ms, routing.ordered_ms),
        updated_at_ms=routing.updated_at_ms,
        received_at_ms=now_ms,
        body=record.body,
        origin=record.position,
        trace=_trace(record.headers),
    )


def _trace(headers: Mapping[str, str]) -> str:
    """Return the trace context of a record's headers as text; empty without a valid one."""
    parents, states = (
        [headers[name]] if name in headers else [] for name in (TRACEPARENT, TRACESTATE)
    )
    context = context_of_headers(parents, states) if parents else None
    return "" if context is None else context.text


def unreadable_delivery(
    source: KafkaSource, record: TopicRecord, reason: str, now_ms: int
) -> WebhookReceived:
    """Return the delivery of a record that cannot be used.

    Args:
        source: The source.
        record: The record.
        reason: See `reason_of`; empty if its provider finds the reason in the body.
        now_ms: The time, in Unix milliseconds.
    """
    names = [name for name in source.provider.headers if name in record.headers]
    kept = [text for name in names for text in (name, record.headers[name])]
    kept += [_PROBLEM, reason] if reason else []
    return WebhookReceived(
        event_id=event_id(source.name, UNREADABLE, "", record.position.encode()),
        request_id=record.position,
        source=source.name,
        type=UNREADABLE,
        subject="",
        sent_at_ms=now_ms if _is_ahead(record.timestamp_ms, now_ms) else record.timestamp_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=record.body,
        headers=tuple(kept),
        origin=record.position,
    )


def _routing(source: KafkaSource, record: TopicRecord, fields: Mapping[str, _Field]) -> Routing:
    if source.provider.types:
        routing = source.provider.route(record.body, record.headers)
        if isinstance(routing, Malformed):
            raise _Unusable(routing.code, routing.detail, again=True)
        return routing
    type_ = _text("type", fields)
    if not type_ and "type" in source.fields:
        raise _Unusable(MISSING_TYPE, "type: expected a text or number, found none")
    return Routing(type_ or UNKNOWN, _text("subject", fields))


def _fields(
    source: KafkaSource, record: TopicRecord, evaluator: Evaluator | None
) -> dict[str, _Field]:
    """Return the values of the configured fields; None for one that is missing."""
    values: dict[str, _Field] = {}
    expressions = {}
    for name, located in source.fields.items():
        if located.expression is None:
            values[name] = record.headers.get(located.header or "")
        else:
            expressions[name] = located.expression
    return values | _evaluated(expressions, record, evaluator) if expressions else values


def _evaluated(
    expressions: Mapping[str, Expression], record: TopicRecord, evaluator: Evaluator | None
) -> dict[str, _Field]:
    try:
        value = read_json(record.body)
    except JsonInvalid as error:
        raise _Unusable(MALFORMED, f"expected a value that is JSON, found: {error}") from None
    key = None if record.key is None else record.key.decode(errors="replace")
    facts = ExpressionValues(
        names=_NAMES,
        values={
            "value": value,
            "key": key,
            "headers": dict(record.headers),
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
        },
    )
    evaluations = Evaluations(evaluator)
    values: dict[str, _Field] = {}
    for name, expression in expressions.items():
        result = expression.evaluate(facts, evaluations=evaluations)
        if isinstance(result, EvaluationProblem) and not result.missing:
            raise _Unusable(MALFORMED, f"{name}: {result.message}")
        values[name] = None if isinstance(result, EvaluationProblem) else _scalar(name, result)
    return values


def _scalar(name: str, value: Any) -> _Field:  # noqa: ANN401 (JSON)
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _Unusable(MALFORMED, f"{name}: expected a text or number, found {value!r:.60}")


def _text(name: str, fields: Mapping[str, _Field]) -> str:
    value = fields.get(name)
    text = "" if value is None else str(value)
    problem = text_problem(name, text)
    if problem is not None:
        raise _Unusable("malformed_id", problem)
    return text


def _time(value: str | int) -> int:
    """Return a time in Unix milliseconds."""
    text = str(value)
    if _MS_DIGITS.fullmatch(text):
        return int(text)
    moment = read_moment(text)
    if moment is None:
        detail = f"time: expected RFC 3339 or Unix milliseconds, found {text[:40]!a}"
        raise _Unusable(MALFORMED, detail)
    return max(0, unix_ms(moment))


def _is_ahead(time_ms: int, now_ms: int) -> bool:
    return time_ms > now_ms + _AHEAD_MAX_MS


# -- the file of sources


class WrittenTopic(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A source of the kind `kafka` as it is written."""

    name: str
    kind: Literal["kafka"]
    topic: str
    format: Literal["json", "avro"]
    provider: str | None = None
    id: Location | None = None
    type: Location | None = None
    subject: Location | None = None
    time: Location | None = None


_FIELDS: Final = ("id", "type", "subject", "time")
_TOPIC: Final = re.compile("[a-zA-Z0-9._-]{1,249}")


def source_of_topic(
    written: WrittenTopic, provider: Provider | None, problems: list[str]
) -> KafkaSource | None:
    """Return a source as it is written; None if there are problems, which are appended."""
    problems += _problems(written)
    fields = {}
    for name in _FIELDS:
        location: Location | None = getattr(written, name)
        if location is not None:
            fields[name] = _located(name, location, problems)
    if problems:
        return None
    return KafkaSource(
        name=written.name,
        topic=written.topic,
        format=written.format,
        provider=provider_for(provider, written.name),
        fields=fields,
    )


def _problems(written: WrittenTopic) -> Iterable[str]:
    if not _TOPIC.fullmatch(written.topic):
        yield f"topic: expected the name of a topic, found {written.topic!r}"
    if written.provider is not None and (written.type or written.subject):
        yield "expected type and subject without a provider only: it reads them itself"


def _located(name: str, location: Location, problems: list[str]) -> Located:
    if (location.header is None) is (location.cel is None):
        problems.append(f'{name}: expected {{ header = "…" }} or {{ cel = "…" }}')
    if location.cel is None:
        return Located(location.header and location.header.lower(), None)
    try:
        return Located(None, Expression(location.cel, ResultKind.VALUE, _NAMES))
    except ExpressionInvalid as error:
        problems.append(f"{name}, {error}\n  {location.cel}")
        return Located(None, None)
