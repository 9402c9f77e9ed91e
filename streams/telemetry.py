"""OpenTelemetry: spans of this process, exported by the SDK of the extra `otel`.

Off unless the standard variables configure an exporter; until then nothing of OpenTelemetry is
imported. Spans are those of `processors.trace_spans`, with ids that follow from the log. So a later
export of the past has the same ids, and processes need no context of the SDK.
"""

import atexit
import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater.processors.trace_context import TraceContext, context_of, delivery_context
from headwater.processors.trace_spans import Span
from headwater.schemas.errors import ProcessUnavailable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

_RANDOM_BITS: Final = 64
_RATIO: Final = re.compile(r"[0-9]*\.?[0-9]+")
_SAMPLED: Final = 1


class Sampling(NamedTuple):
    """Which traces are recorded: the standard samplers of OTEL_TRACES_SAMPLER.

    Attributes:
        below: Traces are recorded whose last 64 bits are below this.
        follows_parent: Whether the decision of a sender counts.
    """

    below: int = 1 << _RANDOM_BITS
    follows_parent: bool = True

    def records(self, context: TraceContext, *, is_root: bool) -> bool:
        """Return whether a trace is recorded; the same in all processes.

        Args:
            context: The context of a span.
            is_root: Whether Headwater began the trace.
        """
        if self.follows_parent and not is_root:
            return context.is_sampled
        return int(context.trace_id[16:], 16) < self.below


def sampling_of(variables: Mapping[str, str]) -> Sampling:
    """Return the sampler that the standard variables choose.

    Raises:
        ValueError: They choose none.
    """
    name = variables.get("OTEL_TRACES_SAMPLER", "") or "parentbased_always_on"
    kind, follows_parent = name.removeprefix("parentbased_"), name.startswith("parentbased_")
    argument = variables.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
    text = {"always_on": "1", "always_off": "0", "traceidratio": argument}.get(kind, "")
    ratio = float(text) if _RATIO.fullmatch(text) else -1.0
    if not 0 <= ratio <= 1:
        raise ValueError(
            "expected OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG to be a sampler of "
            f"OpenTelemetry, such as parentbased_traceidratio and 0.01, found {name!r}"
        )
    return Sampling(round(ratio * (1 << _RANDOM_BITS)), follows_parent)


class Telemetry:
    """Exports spans of this process.

    Args:
        sampling: Which traces are recorded.
        processor: Takes spans of the SDK, and exports them in the background.
        resource: What the process is, as the SDK describes it.
    """

    def __init__(self, sampling: Sampling, processor: "SpanProcessor", resource: Any) -> None:  # noqa: ANN401 (the SDK's)
        self._sampling = sampling
        self._processor = processor
        self._resource = resource

    def records(self, context: TraceContext, *, is_root: bool) -> bool:
        """Return whether a trace is recorded; see `Sampling`."""
        return self._sampling.records(context, is_root=is_root)

    def trace_of(self, event_id: str, trace: str) -> str:
        """Return the trace context of a delivery as text, with the decision whether it is recorded.

        A trace that Headwater would begin, and does not record, needs none.

        Args:
            event_id: The delivery.
            trace: The context of its sender; or empty.
        """
        sender = context_of(trace)
        own = delivery_context(event_id, "") if sender is None else sender
        recorded = self.records(own, is_root=sender is None)
        if sender is None and not recorded:
            return ""
        flags = own.flags | _SAMPLED if recorded else own.flags & ~_SAMPLED
        return TraceContext(own.trace_id, own.span_id, flags, own.state).text

    def emit_all(self, spans: Iterable[Span]) -> None:
        """Export spans of a trace that is recorded. Returns at once."""
        for span in spans:
            self._processor.on_end(_readable(span, self._resource))

    def stop(self) -> None:
        """Export what is left, within seconds."""
        self._processor.shutdown()


def _readable(span: Span, resource: Any) -> Any:  # noqa: ANN401 (the SDK's)
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 (of an extra)
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import (  # noqa: PLC0415
        Link,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
    )

    def context(trace_id: str, span_id: str) -> Any:  # noqa: ANN401
        return SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(_SAMPLED)
        )

    return ReadableSpan(
        name=span.name,
        context=context(span.trace_id, span.span_id),
        parent=context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=span.attributes,
        links=[Link(context(link.trace_id, link.span_id)) for link in span.links],
        kind=SpanKind[span.kind.upper()],
        instrumentation_scope=InstrumentationScope("headwater"),
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_us * 1_000,
        end_time=span.end_us * 1_000,
    )


# -- of this process

_telemetry: Telemetry | None = None


def telemetry() -> Telemetry | None:
    """Return the exporter of this process; None if nothing is exported."""
    return _telemetry


def is_configured(variables: Mapping[str, str]) -> bool:
    """Return whether the standard variables ask for traces."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = variables.get("OTEL_TRACES_EXPORTER", "")
    if exporter:
        return exporter == "otlp"
    return any(
        variables.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )


def start_telemetry(service: str, variables: Mapping[str, str]) -> None:
    """Begin to export spans of this process, if the standard variables ask for it.

    Args:
        service: Name of the service, unless OTEL_SERVICE_NAME names it.
        variables: Environment variables.

    Raises:
        ProcessUnavailable: The extra `otel` is not installed, or a variable is invalid.
    """
    global _telemetry  # noqa: PLW0603 (one exporter for each process)
    if not is_configured(variables):
        return
    if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise ProcessUnavailable(
            "expected the SDK of OpenTelemetry, because OTEL_ variables configure an exporter, "
            "found none; install headwater[otel], or set OTEL_TRACES_EXPORTER=none"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 (of an extra)
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    try:
        sampling = sampling_of(variables)
    except ValueError as error:
        raise ProcessUnavailable(str(error)) from None
    named = variables.get("OTEL_SERVICE_NAME", "")
    resource = Resource.create({"service.name": named or f"headwater-{service}"})
    _telemetry = Telemetry(sampling, BatchSpanProcessor(OTLPSpanExporter()), resource)
    atexit.register(_telemetry.stop)
