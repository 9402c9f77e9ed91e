"""Deliveries whose bodies are here, verified, read and put on their way into the log together.

In between everything else that a request needs, these steps take half as long again as one after
the other for many deliveries: code and data are in the processor's caches by then. So what arrives
while the log appends what came before it is handled together when it has.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.gateway.http.budget import Refusal
from headwater.gateway.http.ports import DeliveryLog
from headwater.processors.providers.envelope import (
    UNREADABLE,
    Malformed,
    Routing,
    event_id,
    sent_at_ms,
)
from headwater.processors.signatures import Claim, Refused, Verified, prove
from headwater.processors.sources import Source
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import WebhookReceived
from headwater.streams.pipeline.webhook_log import Appended

_LOG: Final = logging.getLogger("headwater.gateway")

#: Route of a delivery that cannot be read; the pipeline makes a dead letter of it.
_UNREADABLE: Final = Routing(UNREADABLE, "")


class Shaken(NamedTuple):
    """The answer to a handshake, as text."""

    text: str
    outcome: str = "handshake"


@dataclass(slots=True, eq=False)
class Arrival:
    """A delivery whose body is here: its headers were well formed, and nothing is believed yet."""

    body: bytes
    claim: Claim
    headers: Mapping[str, str]
    request_id: str
    at_ms: int
    #: Once its signature is proved.
    verified: Verified | None = None
    #: Once its envelope is read, too.
    delivery: WebhookReceived | None = None
    #: Gets an `Answer`.
    answer: "asyncio.Future[Any]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


#: Refused: nobody signed it.
Answer: TypeAlias = Appended | Shaken | Refused | Refusal


class Arrivals:
    """The deliveries of one source that arrive at about the same time."""

    def __init__(self, source: Source, log: DeliveryLog) -> None:
        self._source = source
        self._log = log
        self._waiting: list[Arrival] = []

    async def handled(self, arrival: Arrival) -> Answer:
        """Handles a delivery with those that arrive meanwhile; returns when it is durable.

        Errors: as of `DeliveryLog.append`.
        """
        if not self._waiting:
            self._log.at_next_append(self._handle_all)
        self._waiting.append(arrival)
        try:
            answer: Answer = await arrival.answer
        except HeadwaterError:
            self._leave(arrival)
            raise
        except Exception:
            self._leave(arrival)
            if arrival.verified is None or not arrival.body:
                raise
            # A signed delivery is kept, even if its provider or its encoding has a bug.
            _LOG.exception("request %s: the delivery is kept as unreadable", arrival.request_id)
            delivery = self._delivery(arrival, arrival.verified, _UNREADABLE)
            if delivery == arrival.delivery:
                raise
            arrival.delivery = delivery
            return await self._log.append(delivery)
        except BaseException:
            self._leave(arrival)
            raise
        return answer

    def _leave(self, arrival: Arrival) -> None:
        if arrival.delivery is not None:
            self._log.leave(arrival.delivery, arrival.answer)

    def _handle_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._handle([arrival for arrival in waiting if not arrival.answer.done()])

    def _handle(self, arrivals: Sequence[Arrival]) -> None:
        """Handles deliveries; a fault that one of them meets is its own."""
        try:
            found = list(self._read(arrivals))
        except Exception as error:  # noqa: BLE001 (it reaches the outermost loop of its route)
            if len(arrivals) == 1:
                arrivals[0].answer.set_exception(error)
            else:
                for arrival in arrivals:
                    self._handle([arrival])
            return
        good = []
        for arrival, read in zip(arrivals, found, strict=True):
            if isinstance(read, WebhookReceived):
                arrival.delivery = read
                good.append(arrival)
            else:
                arrival.answer.set_result(read)
        self._log.begin(
            [arrival.delivery for arrival in good if arrival.delivery is not None],
            [arrival.answer for arrival in good],
        )

    def _read(
        self, arrivals: Sequence[Arrival]
    ) -> Iterator[WebhookReceived | Shaken | Refused | Refusal]:
        scheme, secrets = self._source.scheme, self._source.secrets
        proved = [prove(scheme, arrival.claim, arrival.body, secrets) for arrival in arrivals]
        for arrival, verified in zip(arrivals, proved, strict=True):
            yield verified if isinstance(verified, Refused) else self._routed(arrival, verified)

    def _routed(self, arrival: Arrival, verified: Verified) -> WebhookReceived | Shaken | Refusal:
        """Reads as much of a body as its way through the pipeline needs."""
        source, body = self._source, arrival.body
        arrival.verified = verified
        if source.handshake is not None:
            text = source.handshake(body, arrival.headers)
            if text is not None:
                return Shaken(text)
        if not body:
            return Refusal("empty_body", "expected a delivery as JSON, found an empty body")
        routing = source.provider.route(body, arrival.headers)
        if isinstance(routing, Malformed):
            routing = _UNREADABLE  # The pipeline's dead letter says why.
        return self._delivery(arrival, verified, routing)

    def _delivery(self, arrival: Arrival, verified: Verified, routing: Routing) -> WebhookReceived:
        """The delivery as it is appended."""
        source, body = self._source, arrival.body
        return WebhookReceived(
            # What the producer has signed as the id of a delivery says better than its bytes which
            # two are the same.
            event_id=event_id(
                source.name,
                routing.type,
                routing.subject,
                body if verified.delivery_id is None else verified.delivery_id.encode(),
            ),
            request_id=arrival.request_id,
            source=source.name,
            type=routing.type,
            subject=routing.subject,
            reference=routing.reference,
            sent_at_ms=sent_at_ms(verified.sent_at_ms or arrival.at_ms, routing.ordered_ms),
            updated_at_ms=routing.updated_at_ms,
            received_at_ms=arrival.at_ms,
            body=body,
        )
