"""Spans while they happen: which traces are recorded, and what reaches a receiver of OTLP."""

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import msgspec
import pytest
from litestar.types import Message, Receive, Scope, Send
from typing_extensions import override

from headwater import Step, WorkflowEvent, workflow
from headwater.gateway.api.traced_requests import serve_traced
from headwater.processors.code.host_messages import Activate
from headwater.processors.runs.decisions import StepReturned
from headwater.processors.trace_context import TraceContext, context_of, current_context
from headwater.processors.trace_spans import Span, SpanLink, receipt_spans, unit_spans
from headwater.schemas.errors import ProcessUnavailable
from headwater.schemas.records import OutcomeRecorded
from headwater.streams import telemetry as module
from headwater.streams.code_host.host import Host
from headwater.streams.telemetry import (
    Sampling,
    Telemetry,
    is_configured,
    sampling_of,
    start_telemetry,
    telemetry,
)
from tests.unit.streams.test_cloud_events import DELIVERY

RECORDED = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
UNRECORDED = RECORDED.within("00f067aa0ba902b7")
LOW, HIGH = "1" * 16 + "0" * 15 + "1", "1" * 16 + "f" * 16


class Collected(Telemetry):
    """Keeps spans instead of exporting them."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self.spans: list[Span] = []

    @override
    def emit_all(self, spans: Iterable[Span]) -> None:
        self.spans += spans


@pytest.mark.parametrize(
    ("variables", "root", "recorded_parent", "other_parent"),
    [
        ({}, (True, True), True, False),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, (True, True), True, True),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, (False, False), False, False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, (False, False), True, False),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
            (True, False),
            False,
            False,
        ),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ".5"},
            (True, False),
            True,
            False,
        ),
    ],
)
def test_a_trace_is_recorded_as_the_standard_samplers_decide(
    variables: Mapping[str, str],
    root: tuple[bool, bool],
    recorded_parent: bool,
    other_parent: bool,
):
    sampling = sampling_of(variables)
    roots = [TraceContext(trace_id, "1" * 16) for trace_id in (LOW, HIGH)]
    assert tuple(sampling.records(one, is_root=True) for one in roots) == root
    parents = [TraceContext(HIGH, "1" * 16, flags) for flags in (1, 0)]
    assert [sampling.records(one, is_root=False) for one in parents] == [
        *(recorded_parent, other_parent)
    ]


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "jaeger_remote"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
    ],
)
def test_a_sampler_that_does_not_exist_is_named(variables: Mapping[str, str]):
    with pytest.raises(ValueError, match="expected OTEL_TRACES_SAMPLER"):
        sampling_of(variables)


@pytest.mark.parametrize(
    ("variables", "configured"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "shop"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_nothing_is_exported_unless_a_variable_asks_for_it(
    variables: Mapping[str, str], configured: bool
):
    assert is_configured(variables) is configured
    if not configured:
        start_telemetry("gateway", variables)
        assert telemetry() is None


def test_a_delivery_carries_whether_its_trace_is_recorded():
    exporter = Collected(Sampling(1 << 60))
    assert exporter.trace_of(LOW, "") == TraceContext(LOW, LOW[:16], 1).text
    assert exporter.trace_of(HIGH, "") == ""
    assert exporter.trace_of(HIGH, RECORDED.text) == RECORDED.text
    unrecorded = msgspec.structs.replace(RECORDED, flags=0, state="a=1")
    assert exporter.trace_of(LOW, unrecorded.text) == unrecorded.text


def test_a_request_has_a_span_for_its_append():
    traced = msgspec.structs.replace(DELIVERY, trace=RECORDED.text)
    receipt, send = receipt_spans(traced, traced.received_at_ms + 30, 0.01)
    assert (receipt.trace_id, receipt.parent_id) == (RECORDED.trace_id, RECORDED.span_id)
    assert (receipt.end_us - receipt.start_us, send.end_us - send.start_us) == (30_000, 10_000)
    assert (send.kind, send.parent_id) == ("producer", receipt.span_id)
    assert list(receipt_spans(DELIVERY, DELIVERY.received_at_ms, 0.01)) == []


def outcome(event_id: str, trace: str) -> OutcomeRecorded:
    return OutcomeRecorded(
        event_id=event_id, request_id="r", source="terra", type="daily", subject="t1",
        status="processed", reason="", rows=1, partition=0, offset=1, received_at_ms=1,
        admitted_at_ms=5, at_ms=9, stage="intake", position="webhooks/0@1", trace=trace,
    )  # fmt: skip


def test_a_batch_is_linked_with_its_deliveries_whose_traces_are_recorded():
    one, two, other = "1" * 32, "2" * 32, "3" * 32
    unrecorded = msgspec.structs.replace(RECORDED, flags=0)
    outcomes = [
        outcome(one, RECORDED.text), outcome(other, unrecorded.text), outcome(two, RECORDED.text)
    ]  # fmt: skip
    first, second, batch = unit_spans(outcomes, 3)
    assert [span.parent_id for span in (first, second)] == [one[:16], two[:16]]
    assert batch.links == tuple(SpanLink(RECORDED.trace_id, name[:16]) for name in (one, two))
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert len(batch.trace_id) == 32
    assert list(unit_spans(outcomes[1:2], 3)) == []


@pytest.mark.parametrize(("trace", "names"), [(RECORDED, ["step pay"]), (None, [])])
def test_an_attempt_of_a_recorded_trace_has_a_span(
    monkeypatch: pytest.MonkeyPatch, trace: TraceContext | None, names: list[str]
):
    exporter = Collected(Sampling())
    monkeypatch.setattr(module, "_telemetry", exporter)

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("pay", lambda: step.traceparent)

    async def scenario() -> str:
        sent: asyncio.Queue[object] = asyncio.Queue()
        host = Host({"order": order}, emit=sent.put_nowait, now_ms=lambda: 7)
        own = trace.text if trace else TraceContext(LOW, LOW[:16]).text
        identity = (1, "order", "i", 0, "null", "s", 0, 0, 0, 0, {}, 10, {}, 0)
        host.handle([Activate(*identity, trace=own)])
        while True:
            returned = getattr(await sent.get(), "request", None)
            if isinstance(returned, StepReturned):
                host.stop()
                return returned.result

    result = asyncio.run(scenario())
    assert [span.name for span in exporter.spans] == names
    for span in exporter.spans:
        assert result == f'"00-{RECORDED.trace_id}-{span.span_id}-01"'
        assert span.parent_id == RECORDED.span_id
        assert span.start_us == span.end_us == 7_000


class Api:
    """An application that remembers the trace in which it served a request."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.context: TraceContext | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.context = current_context()
        cast("Any", scope)["path_template"] = "/v1/runs/{runId}"
        await send({"type": "http.response.start", "status": self.status, "headers": []})


@pytest.mark.parametrize(
    ("headers", "recorded", "trace_id"),
    [
        ([(b"traceparent", RECORDED.traceparent.encode())], True, RECORDED.trace_id),
        ([(b"traceparent", RECORDED.traceparent[:-1].encode() + b"0")], False, RECORDED.trace_id),
        ([], True, None),
    ],
)
def test_a_request_to_the_api_has_a_span_in_which_it_is_served(
    headers: list[tuple[bytes, bytes]], recorded: bool, trace_id: str | None
):
    exporter, api = Collected(Sampling()), Api(503)
    scope: Any = {"type": "http", "method": "GET", "headers": headers}

    async def ignore(_: Message) -> None:
        pass

    async def serve() -> None:
        await serve_traced(api, scope, cast("Any", None), ignore, exporter, "01JZ")

    asyncio.run(serve())
    assert api.context is not None
    assert trace_id in (None, api.context.trace_id)
    assert bool(exporter.spans) is recorded
    for span in exporter.spans:
        assert (span.trace_id, span.span_id) == (api.context.trace_id, api.context.span_id)
        assert span.parent_id == (RECORDED.span_id if headers else "")
        assert (span.name, span.error) == ("GET /v1/runs/{runId}", "status 503")
        assert span.attributes["http.response.status_code"] == 503


# -- the SDK


class Receiver(ThreadingHTTPServer):
    """Keeps the requests of an exporter."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_receiver_with_the_ids_of_the_log(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel`")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    endpoint = f"http://127.0.0.1:{receiver.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setattr(module, "_telemetry", None)
    start_telemetry("gateway", {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    exporter = telemetry()
    assert exporter is not None
    traced = msgspec.structs.replace(DELIVERY, trace=RECORDED.text)
    sent = list(receipt_spans(traced, traced.received_at_ms + 30, 0.01))
    exporter.emit_all([*sent, msgspec.structs.replace(sent[1], error="lost", span_id="1" * 16)])
    exporter.stop()

    request = ExportTraceServiceRequest.FromString(b"".join(receiver.bodies))
    (resource,) = request.resource_spans
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert attributes["service.name"] == "headwater-gateway"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert [(span.trace_id.hex(), span.span_id.hex(), span.name) for span in spans] == [
        *((one.trace_id, one.span_id, one.name) for one in sent),
        (RECORDED.trace_id, "1" * 16, "send webhooks"),
    ]
    assert spans[0].parent_span_id.hex() == RECORDED.span_id
    assert spans[0].start_time_unix_nano == 1_000 * sent[0].start_us
    assert (spans[2].status.code, spans[2].status.message) == (2, "lost")


def test_without_the_extra_a_process_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ProcessUnavailable, match=r"install headwater\[otel\]"):
        start_telemetry("gateway", {"OTEL_TRACES_EXPORTER": "otlp"})
    assert context_of(UNRECORDED.text) == UNRECORDED
