"""The route for deliveries: verify the raw bytes, append them, respond.

This is a plain ASGI function and not a request handler of Litestar, which costs about 48
microseconds more per request: as much as all the rest of the work. It does not use Postgres, so
deliveries are accepted while Postgres is down.

Order of checks: announced size, format and time of the signature, size, signature, empty body,
routing, append. A body is not read if the headers already rule it out, bytes are not parsed before
their signature is verified, and no success is sent before Kafka has acknowledged.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPMethod
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from litestar.types import Receive, Scope, Send
from typing_extensions import override

from headwater.gateway.api.body_limits import BodyReader, Hold, Refusal
from headwater.gateway.api.delivery_reader import (
    DeliveryReader,
    HandshakeResponse,
    IncomingDelivery,
)
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.api.problems import MEDIA_TYPE, document, retry_headers
from headwater.gateway.api.refusals import Refusals
from headwater.gateway.api.request_scope import TRACE_HEADERS, keep_request_id, trace_text
from headwater.gateway.client.requests import usable
from headwater.processors.signatures import Claim, Refused, read_claim
from headwater.processors.sources import GITHUB_EVENT, Source
from headwater.processors.trace_context import delivery_context
from headwater.processors.trace_spans import receipt_spans
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.records import RequestAnswered
from headwater.streams.pipeline.webhook_log import Appended, WebhookLog
from headwater.streams.telemetry import telemetry

_LOG: Final = logging.getLogger("headwater.gateway")

_ACCEPTED: Final = "accepted"
_POST: Final = HTTPMethod.POST.value
#: The largest size that is recorded: some clients announce more than a record can hold.
_SIZE_MAX: Final = 2**53


class Accepted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Response to a delivery that Kafka acknowledged; `duplicate` is present only if true."""

    ok: bool
    duplicate: bool = False
    raw_event_id: str
    type: str
    request_id: str

    @property
    def outcome(self) -> str:
        """Outcome for metrics and records."""
        return "duplicate" if self.duplicate else _ACCEPTED


class ProbableCopy(Accepted, frozen=True, omit_defaults=True, kw_only=True):
    """Response to a delivery that was appended, but is probably a duplicate: intake records it."""

    @property
    @override
    def outcome(self) -> str:
        """Outcome for metrics and records."""
        return _ACCEPTED


class _Head(NamedTuple):
    """Parsed headers.

    Attributes:
        length: Announced length of the body in bytes.
        request_id: The client's request id, if it is valid.
        headers: Headers that the scheme or the provider reads.
        trace: The client's trace context as text; empty without a valid one.
    """

    length: int | None
    request_id: str | None
    headers: Mapping[str, str]
    trace: str


class Receiver:
    """Receives the deliveries of one source."""

    def __init__(  # noqa: PLR0913 (one parameter per dependency)
        self,
        source: Source,
        *,
        log: WebhookLog,
        bodies: BodyReader,
        peer_of: Callable[[Scope], str],
        refusals: Refusals,
        metrics: Metrics,
        clock: Callable[[], int],
        new_request_id: Callable[[], str],
    ) -> None:
        self._source = source.name
        self._scheme = source.scheme
        self._reader = DeliveryReader(source, log)
        self._bodies = bodies
        self._peer_of = peer_of
        self._refusals = refusals
        self._metrics = metrics
        self._clock = clock
        self._new_request_id = new_request_id
        self._encode = msgspec.json.Encoder().encode
        names = [*source.scheme.header_names, GITHUB_EVENT, *source.provider.headers]
        self._header_names = {name.encode(): name for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        head = self._read_head(scope)
        request_id = head.request_id or self._new_request_id()
        keep_request_id(scope, request_id)
        peer = self._peer_of(scope)
        hold = self._bodies.hold(peer)
        answer: Accepted | HandshakeResponse | Refusal
        try:
            answer = await self._answer(scope, receive, head, request_id, hold)
        except Exception:  # noqa: BLE001 (outermost handler of this route: log it and answer 500)
            _LOG.exception("request %s failed", request_id)
            answer = Refusal("internal_error", "The failure is logged under this request's id.")
        finally:
            size = min(head.length or hold.size, _SIZE_MAX)
            hold.release()
        claimed = ""
        if isinstance(answer, Refusal) and head.request_id is not None:
            # The client is not authenticated, so it could have chosen the id of another request.
            claimed, request_id = request_id, self._new_request_id()
            keep_request_id(scope, request_id)
        self._record(answer, request_id, claimed, peer, size)
        if isinstance(answer, Accepted):
            await _send(send, 200, b"application/json", self._encode(answer), request_id)
        elif isinstance(answer, HandshakeResponse):
            await _send(send, 200, b"text/plain; charset=utf-8", answer.text.encode(), request_id)
        else:
            await self._refuse(scope, send, request_id, claimed, answer)

    def _record(
        self,
        answer: Accepted | HandshakeResponse | Refusal,
        request_id: str,
        claimed: str,
        peer: str,
        size: int,
    ) -> None:
        """Count a response, and record one without a new delivery."""
        refusal = answer if isinstance(answer, Refusal) else None
        code = answer.code if isinstance(answer, Refusal) else answer.outcome
        self._metrics.answered(self._source, code)
        if code == _ACCEPTED:
            return
        answered = RequestAnswered(
            request_id=request_id,
            claimed_request_id=claimed,
            source=self._source,
            code=code,
            reason=(refusal and refusal.reason) or "",
            detail=(refusal and refusal.detail) or "",
            event_id=answer.raw_event_id if isinstance(answer, Accepted) else "",
            size=size,
            peer=peer,
            left_out=0,
            at_ms=self._clock(),
        )
        if refusal is not None:
            self._refusals.refused(answered)
        else:
            self._refusals.answered(answered)

    def _read_head(self, scope: Scope) -> _Head:
        length = request_id = None
        headers = {}
        trace: list[tuple[bytes, bytes]] = []
        for name, value in scope["headers"]:
            if name in self._header_names:
                # Latin-1 decodes any bytes; non-ASCII text is then refused as malformed.
                headers[self._header_names[name]] = value.decode("latin-1")
            elif name == b"content-length":
                length = int(value) if value.isdigit() else None
            elif name == b"x-request-id":
                request_id = usable(value)
            elif name in TRACE_HEADERS:
                trace.append((name, value))
        return _Head(length, request_id, headers, trace_text(trace) if trace else "")

    async def _answer(
        self, scope: Scope, receive: Receive, head: _Head, request_id: str, hold: Hold
    ) -> Accepted | HandshakeResponse | Refusal:
        """Process a request; return the response."""
        if scope.get("method") != _POST:
            return Refusal("method_not_allowed", "Deliveries are posted to this path.")
        now_ms = self._clock()
        pieces: list[bytes] = []
        claim = self._claim(head, now_ms)
        if isinstance(claim, Claim):
            claim = await self._bodies.feed(receive, head.length, hold, pieces.append) or claim
        if isinstance(claim, Refusal):
            await self._bodies.drain(receive, hold)
            return claim
        body = b"".join(pieces)
        return await self._append(
            IncomingDelivery(body, claim, head.headers, request_id, now_ms, head.trace)
        )

    def _claim(self, head: _Head, now_ms: int) -> Claim | Refusal:
        """Return the signature claim of the headers, or a refusal if they rule the body out."""
        refusal = self._bodies.refusal_of(head.length)
        if refusal is not None:
            return refusal
        claim = read_claim(self._scheme, head.headers, now_ms / 1000)
        return claim if isinstance(claim, Claim) else self._unsigned(claim)

    def _unsigned(self, refused: Refused) -> Refusal:
        self._metrics.refused(self._source, refused.reason)
        return Refusal("invalid_signature", refused.detail, refused.reason)

    async def _append(self, incoming: IncomingDelivery) -> Accepted | HandshakeResponse | Refusal:
        started = perf_counter()  # a duration for a metric, not part of the delivery
        try:
            answer = await self._reader.process(incoming)
        except (BrokerUnavailable, Overloaded, NotYetReadable) as error:
            return Refusal(error.code, error.message)
        if isinstance(answer, Refused):
            return self._unsigned(answer)
        if not isinstance(answer, Appended):
            return answer
        delivery = incoming.delivery
        assert delivery is not None, "only a parsed delivery is appended"  # noqa: S101
        if answer.duplicate and not answer.original:
            self._metrics.suppressed(self._source)
        else:
            seconds = perf_counter() - started
            context = delivery_context(delivery.event_id, delivery.trace)
            self._metrics.appended(seconds, context.trace_id)
            exporter = telemetry()
            if exporter is not None:
                exporter.emit_all(receipt_spans(delivery, self._clock(), seconds))
        return (ProbableCopy if answer.original else Accepted)(
            ok=True,
            duplicate=answer.duplicate,
            raw_event_id=answer.original or delivery.event_id,
            type=delivery.type,
            request_id=delivery.request_id,
        )

    async def _refuse(
        self, scope: Scope, send: Send, request_id: str, claimed: str, refusal: Refusal
    ) -> None:
        more = {"reason": refusal.reason, "claimed_request_id": claimed}
        status, body = document(
            code=refusal.code,
            detail=refusal.detail,
            instance=scope["path"],
            request_id=request_id,
            extensions={name: value for name, value in more.items() if value},
        )
        headers = retry_headers(status)
        if refusal.code == "method_not_allowed":
            headers["allow"] = _POST
        await _send(send, status, MEDIA_TYPE.encode(), body, request_id, headers)


async def _send(
    send: Send,
    status: int,
    media_type: bytes,
    body: bytes,
    request_id: str,
    more_headers: Mapping[str, str] | None = None,
) -> None:
    headers = [
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
    ]
    if more_headers:
        headers += [(name.encode(), value.encode()) for name, value in more_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
