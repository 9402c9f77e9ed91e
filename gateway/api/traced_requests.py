"""Spans of requests to the API, while spans are exported; deliveries have their own."""

from time import perf_counter
from typing import Any, Final, cast

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from headwater.gateway.api.request_scope import request_trace
from headwater.processors.trace_context import CURRENT, TraceContext, span_id_of, trace_id_of
from headwater.processors.trace_spans import Span
from headwater.streams.clock import now_ms
from headwater.streams.telemetry import Telemetry

_SERVER_ERROR: Final = 500


async def serve_traced(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    exporter: Telemetry,
    unique: str,
) -> None:
    """Serve a request, and export its span if its trace is recorded.

    A request without a trace begins one. What it sends, such as the start of a run, continues that.

    Args:
        app: The application.
        scope: The request.
        receive: Of ASGI.
        send: Of ASGI.
        exporter: Exports the span.
        unique: A new id, of which the ids of trace and span are digests.
    """
    sender = request_trace(scope)
    begun = sender or TraceContext(trace_id_of("request", unique), "")
    if not exporter.records(begun, is_root=sender is None):
        await app(scope, receive, send)
        return
    span_id = span_id_of("request", unique)
    context = TraceContext(begun.trace_id, span_id, begun.flags | 1, begun.state)
    CURRENT.set(lambda: context)
    status, start_us, started = 0, 1_000 * now_ms(), perf_counter()

    async def send_noting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, send_noting)
    finally:
        end_us = start_us + round((perf_counter() - started) * 1_000_000)
        exporter.emit_all([_span(scope, context, begun.span_id, (start_us, end_us), status)])


def _span(
    scope: Scope, context: TraceContext, parent_id: str, times_us: tuple[int, int], status: int
) -> Span:
    state = cast("dict[str, Any]", scope)
    # Litestar stores the route while it routes.
    method, route = str(state["method"]), str(state.get("path_template", ""))
    return Span(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=parent_id,
        name=f"{method} {route}".rstrip(),
        kind="server",
        start_us=times_us[0],
        end_us=times_us[1],
        attributes={
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        },
        error=f"status {status}" if not status or status >= _SERVER_ERROR else "",
    )
