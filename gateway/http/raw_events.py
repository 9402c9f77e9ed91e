"""What operators do with deliveries as they arrived: see one whole, and have some looked at again.

A delivery lies at the offset that its outcome names until one with the same id was appended behind
it, by a replay or by a gateway that did not know it; compaction then keeps the later one. So it is
looked for at all places that are known of it.
"""

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody

from headwater.gateway.http.json_bodies import check_texts
from headwater.gateway.http.openapi import OptionalBody, problem_responses
from headwater.gateway.http.ports import DeliveryLog, Replays
from headwater.gateway.http.problems import Problem
from headwater.projections.deliveries.finding import DeliveryWhole, Journey, delivery
from headwater.projections.deliveries.of_user import subjects_of
from headwater.projections.deliveries.queries import Outcome
from headwater.projections.deliveries.waiting import WaitingDelivery, oldest_waiting
from headwater.projections.postgres.reader import PooledReader
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.pipeline.webhook_log import Stored

#: Deliveries that one drain looks at: each is read and appended by itself, some milliseconds.
DRAIN_MAX: Final = 1_000
_DRAIN_DEFAULT: Final = 100
_USER_CHARS: Final = 512
#: A place in the topic webhooks.
_POSITION: Final = re.compile(rf"(?:{WEBHOOKS}/)?([0-9]{{1,9}})@([0-9]{{1,18}})")


class RawEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery whole.

    Shape:  position says where it lies now; body is there if the bytes are JSON. Without bytes
            `gone` says why the log does not have them any more.
    """

    raw_event_id: str
    source: str
    type: str
    subject: str
    user_id: str | None
    received_at: datetime
    position: str
    headers: tuple[tuple[str, str], ...]
    body_base64: str | None
    body: Any = msgspec.UNSET
    gone: str | None = None
    outcome: Outcome
    journeys: tuple[Journey, ...]


class RawEventReplayed(msgspec.Struct, frozen=True):
    """A delivery was appended once more, and is on its way; position is where."""

    ok: bool
    raw_event_id: str
    position: str


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries that wait: those of a user, or all; at most so many."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=DRAIN_MAX)] = _DRAIN_DEFAULT
    user_id: Annotated[str, msgspec.Meta(min_length=1, max_length=_USER_CHARS)] | None = None


#: What is asked for without a body.
_DRAIN: Final = DrainRequest()


class Drained(msgspec.Struct, frozen=True):
    """How many deliveries are looked at again."""

    ok: bool
    enqueued: int


def raw_event_routes(
    reader: PooledReader, log: DeliveryLog, replays: Replays
) -> list[HTTPRouteHandler]:
    """The routes under /admin/raw-events, and /admin/drain."""

    @get(
        "/raw-events/{named:str}",
        summary="A delivery whole: its bytes, headers, positions, outcome and journeys",
        description="By its event id (the `raw_event_id` of the gateway's answer), by the id of a "
        "request that brought it, or by its place in the topic webhooks, as `3@17`. Where the log "
        "does not have its bytes any more, `gone` says so.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def raw_event(named: FromPath[str]) -> RawEvent:
        found = await _find(reader, log, named)
        async for position, stored in _stored(log, found):
            return _whole(found, position, stored)
        return _whole(found, None, None)

    @post(
        "/raw-events/{named:str}/replay",
        audit="raw_events.replay",
        status_code=202,
        summary="Have a delivery processed once more",
        description="Its rows and its outcome converge; it is no copy, and brings nothing twice.",
        responses=problem_responses("not_found", "gone", "broker_unavailable", "store_unavailable"),
    )
    async def replay(named: FromPath[str]) -> RawEventReplayed:
        found = await _find(reader, log, named)
        event_id = found.outcome.event_id
        for partition, offset in _places(found):
            for again in await replays.reprocess([(partition, offset)]):
                if again.new_offset is not None:
                    position = f"{WEBHOOKS}/{partition}@{again.new_offset}"
                    return RawEventReplayed(ok=True, raw_event_id=event_id, position=position)
        raise Problem("gone", _GONE.format(found.outcome.partition, found.outcome.offset))

    @post(
        "/drain",
        audit="deliveries.drain",
        status_code=200,
        operation_class=OptionalBody,
        summary="Look again at deliveries that wait",
        description="Those that were looked at longest ago come first. Who still has nobody to "
        "belong to goes on waiting, from when its wait began.",
        responses=problem_responses("broker_unavailable", "store_unavailable"),
    )
    async def drain(data: JSONBody[DrainRequest] = _DRAIN) -> Drained:
        check_texts(_USER_CHARS, user_id=data.user_id)
        subjects = None if data.user_id is None else await subjects_of(reader, data.user_id)
        waiting = await oldest_waiting(reader, subjects=subjects, limit=data.limit)
        again = await replays.reprocess([_last_read(one) for one in waiting])
        return Drained(ok=True, enqueued=sum(one.new_offset is not None for one in again))

    return [raw_event, replay, drain]


_GONE: Final = (
    "expected the delivery at webhooks/{}@{} or where it was replayed to, found it at none: it was "
    "wiped, or the log was compacted behind another record of the same id"
)


async def _find(reader: PooledReader, log: DeliveryLog, named: str) -> DeliveryWhole:
    """What is known of a delivery."""
    event_id = named
    at = _POSITION.fullmatch(named)
    if at is not None:
        stored = await log.read(int(at[1]), int(at[2]))
        if stored is None:
            raise Problem(
                "not_found",
                f"There is no delivery at {WEBHOOKS}/{at[1]}@{at[2]}: nothing was appended there "
                "yet, or it was wiped or compacted.",
            )
        event_id = stored.delivery.event_id
    found = await delivery(reader, event_id)
    if found is None:
        raise Problem(
            "not_found",
            f"No delivery {named[:64]} is known: it was never taken, is not in Postgres yet, or "
            "was wiped.",
        )
    return found


def _places(found: DeliveryWhole) -> list[tuple[int, int]]:
    """Where a delivery may lie, the likeliest place first."""
    outcome = found.outcome
    positions = [outcome.position, *(journey.position for journey in reversed(found.journeys))]
    matches = [_POSITION.fullmatch(position) for position in positions]
    read = [(int(at[1]), int(at[2])) for at in matches if at is not None]
    return list(dict.fromkeys([(outcome.partition, outcome.offset), *read]))


def _last_read(waiting: WaitingDelivery) -> tuple[int, int]:
    """Where a delivery that waits was read last: compaction may have taken what lay before."""
    at = _POSITION.fullmatch(waiting.position)
    return (waiting.partition, waiting.offset) if at is None else (int(at[1]), int(at[2]))


async def _stored(log: DeliveryLog, found: DeliveryWhole) -> AsyncIterator[tuple[str, Stored]]:
    for partition, offset in _places(found):
        stored = await log.read(partition, offset)
        if stored is not None and stored.delivery.event_id == found.outcome.event_id:
            yield f"{WEBHOOKS}/{partition}@{offset}", stored


def _whole(found: DeliveryWhole, position: str | None, stored: Stored | None) -> RawEvent:
    outcome = found.outcome
    body = None if stored is None else stored.delivery.body
    place = (outcome.partition, outcome.offset)
    return RawEvent(
        raw_event_id=outcome.event_id,
        source=outcome.source,
        type=outcome.type,
        subject=outcome.subject,
        user_id=outcome.user_id,
        received_at=outcome.received_at,
        position=position or f"{WEBHOOKS}/{place[0]}@{place[1]}",
        headers=() if stored is None else stored.headers,
        body_base64=None if body is None else b64encode(body).decode(),
        body=_json(body),
        gone=_GONE.format(*place) if stored is None else None,
        outcome=outcome,
        journeys=found.journeys,
    )


def _json(body: bytes | None) -> Any:  # noqa: ANN401 (JSON)
    """A body as JSON, byte for byte; unset where it is none."""
    if body is None:
        return msgspec.UNSET
    try:
        body.decode()
        # Checks the syntax and builds nothing: linear in any body.
        msgspec.json.decode(body, type=msgspec.Raw)
    except PARSE_ERRORS:
        return msgspec.UNSET
    return msgspec.Raw(body)
