"""The route that providers post to: verify the raw bytes, append them, answer.

A plain ASGI function inside Litestar, not one of its request handlers: those cost about 48
microseconds a request more than this form does, which is as much as all the rest of the work.
Nothing in it touches Postgres, so deliveries are taken while the read side is down.

Order: announced size, form and time of the signature, size, signature, emptiness, shape, append,
answer. A body is not waited for if its headers rule it out, nothing is read into bytes that nobody
signed, and nothing is answered "ok" before Kafka has acknowledged.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPMethod
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from litestar.types import Receive, Scope, Send

from headwater.gateway.http.arrivals import Arrival, Arrivals, Shaken
from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.http.budget import Hold, Refusal
from headwater.gateway.http.metrics import Metrics
from headwater.gateway.http.ports import DeliveryLog
from headwater.gateway.http.problems import MEDIA_TYPE, document, retry_headers
from headwater.gateway.http.refusals import Refusals
from headwater.gateway.http.request_scope import keep_request_id
from headwater.gateway.request_ids import usable
from headwater.processors.handshakes import GITHUB_EVENT
from headwater.processors.signatures import Claim, Refused, read_claim
from headwater.processors.sources import Source
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.records import RequestAnswered
from headwater.streams.pipeline.webhook_log import Appended

_LOG: Final = logging.getLogger("headwater.gateway")

_ACCEPTED: Final = "accepted"
_POST: Final = HTTPMethod.POST.value
#: The largest size that is told: some senders announce more than any record could hold.
_SIZE_MAX: Final = 2**53


class Accepted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a delivery that is safe in Kafka; `duplicate` only when it is one."""

    ok: bool
    duplicate: bool = False
    raw_event_id: str
    type: str
    request_id: str

    @property
    def outcome(self) -> str:
        """What it is counted as."""
        return "duplicate" if self.duplicate else _ACCEPTED


class _Head(NamedTuple):
    """The few headers that matter here."""

    length: int | None
    request_id: str | None
    named: Mapping[str, str]


class Receiver:
    """Takes the deliveries of one source."""

    def __init__(  # noqa: PLR0913 (everything the route needs of the world)
        self,
        source: Source,
        *,
        log: DeliveryLog,
        bodies: BodyReader,
        peer_of: Callable[[Scope], str],
        refusals: Refusals,
        metrics: Metrics,
        clock: Callable[[], int],
        new_request_id: Callable[[], str],
    ) -> None:
        self._source = source.name
        self._scheme = source.scheme
        self._arrivals = Arrivals(source, log)
        self._bodies = bodies
        self._peer_of = peer_of
        self._refusals = refusals
        self._metrics = metrics
        self._clock = clock
        self._new_request_id = new_request_id
        self._encode = msgspec.json.Encoder().encode
        named = [*source.scheme.header_names, GITHUB_EVENT, *source.provider.headers]
        self._named_headers = {name.encode(): name for name in named}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        head = self._read_head(scope)
        request_id = head.request_id or self._new_request_id()
        keep_request_id(scope, request_id)
        peer = self._peer_of(scope)
        hold = self._bodies.hold(peer)
        answer: Accepted | Shaken | Refusal
        try:
            answer = await self._answer(scope, receive, head, request_id, hold)
        except Exception:  # noqa: BLE001 (the outermost loop of this route: a bug of ours is a 500, and logged)
            _LOG.exception("request %s failed", request_id)
            answer = Refusal("internal_error", "The failure is logged under this request's id.")
        finally:
            size = min(head.length or hold.size, _SIZE_MAX)
            hold.release()
        claimed = ""
        if isinstance(answer, Refusal) and head.request_id is not None:
            # Nobody has proved to be the sender whose request has that id.
            claimed, request_id = request_id, self._new_request_id()
            keep_request_id(scope, request_id)
        self._tell(answer, request_id, claimed, peer, size)
        if isinstance(answer, Accepted):
            await _send(send, 200, b"application/json", self._encode(answer), request_id)
        elif isinstance(answer, Shaken):
            await _send(send, 200, b"text/plain; charset=utf-8", answer.text.encode(), request_id)
        else:
            await self._refuse(scope, send, request_id, claimed, answer)

    def _tell(
        self,
        answer: Accepted | Shaken | Refusal,
        request_id: str,
        claimed: str,
        peer: str,
        size: int,
    ) -> None:
        """Counts an answer, and tells of one that brought nothing new."""
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
        named = {}
        for name, value in scope["headers"]:
            if name in self._named_headers:
                # Latin-1 reads any bytes; what is not ASCII is then refused as malformed.
                named[self._named_headers[name]] = value.decode("latin-1")
            elif name == b"content-length":
                length = int(value) if value.isdigit() else None
            elif name == b"x-request-id":
                request_id = usable(value)
        return _Head(length, request_id, named)

    async def _answer(
        self, scope: Scope, receive: Receive, head: _Head, request_id: str, hold: Hold
    ) -> Accepted | Shaken | Refusal:
        """Decides what to answer."""
        if scope.get("method") != _POST:
            return Refusal("method_not_allowed", "Deliveries are posted to this path.")
        now_ms = self._clock()
        pieces: list[bytes] = []
        found = self._claim(head, now_ms)
        if isinstance(found, Claim):
            found = await self._bodies.feed(receive, head.length, hold, pieces.append) or found
        if isinstance(found, Refusal):
            await self._bodies.drain(receive, hold)
            return found
        return await self._append(Arrival(b"".join(pieces), found, head.named, request_id, now_ms))

    def _claim(self, head: _Head, now_ms: int) -> Claim | Refusal:
        """What the headers claim; a refusal where they already rule the body out."""
        refusal = self._bodies.refusal_of(head.length)
        if refusal is not None:
            return refusal
        claim = read_claim(self._scheme, head.named, now_ms / 1000)
        return claim if isinstance(claim, Claim) else self._unsigned(claim)

    def _unsigned(self, refused: Refused) -> Refusal:
        self._metrics.refused(self._source, refused.reason)
        return Refusal("invalid_signature", refused.detail, refused.reason)

    async def _append(self, arrival: Arrival) -> Accepted | Shaken | Refusal:
        started = perf_counter()  # a duration for a metric, not a fact of the delivery
        try:
            answer = await self._arrivals.handled(arrival)
        except (BrokerUnavailable, Overloaded, NotYetReadable) as error:
            return Refusal(error.code, error.message)
        if isinstance(answer, Refused):
            return self._unsigned(answer)
        if not isinstance(answer, Appended):
            return answer
        delivery = arrival.delivery
        assert delivery is not None, "only what was read is appended"  # noqa: S101
        if answer.duplicate:
            self._metrics.suppressed(self._source)
        else:
            self._metrics.appended(perf_counter() - started)
        return Accepted(
            ok=True,
            duplicate=answer.duplicate,
            raw_event_id=delivery.event_id,
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
