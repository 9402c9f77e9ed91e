"""W3C Trace Context: reading and writing the headers, and the ids of Headwater's own spans.

A delivery continues its sender's trace. Without one, its trace id is its event id: both have 128
bits, and the event id is a digest. Ids of spans are digests of what they are about. So every
process, and every later export, computes the same ids from the log, and nothing has to be drawn or
stored. Source: https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final

import msgspec

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

#: Flags that are propagated: sampled, and random trace id. Others are undefined.
_FLAGS: Final = 0b11
_SAMPLED: Final = 0b01
#: Length of version 00; later versions may append fields.
_LENGTH: Final = 55
#: Longest header that is looked at: a later version may be longer, but not without end.
_LENGTH_MAX: Final = 256
_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16

#: Limits of the specification: members of a list, and characters that everyone propagates.
_MEMBERS_MAX: Final = 32
_STATE_MAX: Final = 512
#: Members longer than this are dropped first.
_MEMBER_MAX: Final = 128
#: Header bytes that are looked at; the members that the specification allows have 17 KB.
_STATE_READ_MAX: Final = 32 * 1024
_KEY: Final = r"[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER: Final = re.compile(rf"({_KEY})=({_VALUE})")


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A span within a trace, which others continue.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        flags: See the specification; 1 if the sender records the trace.
        state: Members of `tracestate`; or empty.
    """

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the sender records the trace."""
        return bool(self.flags & _SAMPLED)

    @property
    def traceparent(self) -> str:
        """Return the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def text(self) -> str:
        """Return the context as records have it: `traceparent` and, after a space, `tracestate`."""
        return f"{self.traceparent} {self.state}" if self.state else self.traceparent

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of a request or record that continues the trace."""
        state = [(TRACESTATE, self.state)] if self.state else []
        return [(TRACEPARENT, self.traceparent), *state]

    def within(self, span_id: str) -> "TraceContext":
        """Return the context of a span of the same trace."""
        return TraceContext(self.trace_id, span_id, self.flags, self.state)


def context_of_headers(
    traceparents: Sequence[str], tracestates: Sequence[str] = ()
) -> TraceContext | None:
    """Return the context of a request; None without a valid one, as the specification demands.

    An invalid `tracestate` is dropped; the trace continues without it.

    Args:
        traceparents: Values of the header `traceparent`. Several are invalid.
        tracestates: Values of the header `tracestate`, which form one list.
    """
    if len(traceparents) != 1:
        return None
    context = _parent(traceparents[0].strip(" \t"))
    if context is None or not tracestates:
        return context
    return TraceContext(context.trace_id, context.span_id, context.flags, _state(tracestates))


def context_of(text: str) -> TraceContext | None:
    """Return the context that a record has as text; None if it has none."""
    if not text:
        return None
    traceparent, _, state = text.partition(" ")
    return context_of_headers([traceparent], [state] if state else ())


def _parent(text: str) -> TraceContext | None:
    match = _PARENT.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        return None
    version, trace_id, span_id, flags, _ = match.groups()
    if version == "ff" or (version == "00" and len(text) != _LENGTH):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16) & _FLAGS)


def _state(values: Sequence[str]) -> str:
    """Return the members of a valid `tracestate`, as far as there is space; else empty."""
    if sum(map(len, values)) > _STATE_READ_MAX:
        return ""
    members = [part for value in values for raw in value.split(",") if (part := raw.strip(" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    # Of several members with one key, or an invalid one, none can be trusted.
    if len(keys) < len(members) or len(members) > _MEMBERS_MAX:
        return ""
    if len(",".join(members)) > _STATE_MAX:
        members = [member for member in members if len(member) <= _MEMBER_MAX]
    while len(",".join(members)) > _STATE_MAX:
        members.pop()
    return ",".join(members)


# -- ids


def span_id_of(*parts: str) -> str:
    """Return the id of a span, which is a digest of what it is about."""
    return blake2b("\0".join(parts).encode(errors="replace"), digest_size=8).hexdigest()


def trace_id_of(*parts: str) -> str:
    """Return the id of a trace that Headwater begins, which is a digest of what it is about."""
    return blake2b("\0".join(parts).encode(errors="replace"), digest_size=16).hexdigest()


def delivery_context(event_id: str, trace: str) -> TraceContext:
    """Return the context in which a delivery is processed.

    Args:
        event_id: Id of the delivery, 32 hexadecimal digits. Its first half is the id of the span.
        trace: The context of its request as text; or empty.
    """
    sender = context_of(trace) if trace else None
    span_id = event_id[:16]
    return TraceContext(event_id, span_id) if sender is None else sender.within(span_id)


def run_context(
    workflow: str, instance_id: str, run_number: int, seed: str, trace: str
) -> TraceContext:
    """Return the context of a run of an instance.

    A retry of a run keeps its seed, and so its trace; a restart without a context begins another.

    Args:
        workflow: Its workflow.
        instance_id: Its instance.
        run_number: Its number.
        seed: Its seed.
        trace: The context that started it, as text; or empty.
    """
    key = f"{workflow}/{instance_id}"
    span_id = span_id_of("run", key, str(run_number), seed)
    cause = context_of(trace)
    if cause is not None:
        return cause.within(span_id)
    return TraceContext(trace_id_of("trace", key, seed), span_id)


def attempt_context(run: TraceContext, key: str, attempt: int) -> TraceContext:
    """Return the context of an attempt of a step, or of a task of a graph."""
    return run.within(span_id_of("attempt", run.span_id, key, str(attempt)))


# -- the current context

#: Returns the context of the running request or step, which is computed only if it is needed.
CURRENT: ContextVar[Callable[[], TraceContext | None] | None] = ContextVar(
    "headwater_trace", default=None
)


def current_context() -> TraceContext | None:
    """Return the context of the request or step that is running; None if it has none."""
    current = CURRENT.get()
    return None if current is None else current()


def current_text() -> str:
    """Return the current context as records have it; empty if there is none."""
    context = current_context()
    return "" if context is None else context.text
