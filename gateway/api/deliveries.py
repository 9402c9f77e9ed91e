"""Operator routes for deliveries: a list with filters, and the details of one."""

import re
from base64 import b64encode
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from headwater.gateway.api.moments import moment_of
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.ports import DeliveryLog
from headwater.gateway.api.problems import Problem
from headwater.projections.deliveries.finding import (
    Deliveries,
    DeliveryFilter,
    DeliveryWhole,
    Refusal,
    deliveries,
    delivery,
    refusal,
)
from headwater.projections.postgres.reader import PAGE_MAX, PooledReader
from headwater.schemas.errors import UndecodableRecord, UnknownSchema

_PAGE_DEFAULT: Final = 50
#: Partition and offset in the topic webhooks.
_POSITION: Final = re.compile(r"([0-9]{1,9})@([0-9]{1,18})")

Limit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="Maximum number of results.")]
Moment = Annotated[str | None, QueryParameter(description="RFC 3339.")]


class DeliveryAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery, or a request that was refused.

    `body` is set on request: the signed bytes in base64. It is absent if the log no longer has
    them.
    """

    delivery: DeliveryWhole | None = None
    refusal: Refusal | None = None
    body: str | None = None


def delivery_routes(reader: PooledReader, log: DeliveryLog) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/deliveries."""

    @get(
        "/deliveries",
        summary="Deliveries with their outcomes, newest first",
        description="Includes requests that were refused, with the status `refused`.",
        responses=problem_responses("invalid_parameter", "invalid_cursor", "store_unavailable"),
    )
    async def listing(  # noqa: PLR0913, PLR0917 (one parameter a filter; Litestar names them)
        source: FromQuery[str | None] = None,
        type: FromQuery[str | None] = None,  # noqa: A002 (the parameter's name)
        user_id: FromQuery[str | None] = None,
        status: FromQuery[str | None] = None,
        reason: FromQuery[str | None] = None,
        since: Moment = None,
        until: Moment = None,
        limit: Limit = _PAGE_DEFAULT,
        after: Annotated[
            str | None, QueryParameter(description="Cursor of the previous page.")
        ] = None,
    ) -> Deliveries:
        filters = DeliveryFilter(
            source=source,
            type=type,
            user_id=user_id,
            status=status,
            reason=reason,
            since=moment_of("since", since),
            until=moment_of("until", until),
        )
        return await deliveries(reader, filters, limit=limit, after=after)

    @get(
        "/deliveries/{named:str}",
        summary="Get a delivery with its traces, rows and effects",
        description="Accepts an event id, the id of a request that delivered it, or a position in "
        "the topic webhooks such as `3@17`. Returns each trace with its stages, the rows that have "
        "values of the delivery, its effects on workflows, and its dead letters.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def one(
        named: FromPath[str],
        with_body: Annotated[
            bool, QueryParameter(name="body", description="Include the body.")
        ] = False,
    ) -> DeliveryAnswer:
        at = _POSITION.fullmatch(named)
        if at is not None:
            received = await log.read(int(at[1]), int(at[2]))
            named = named if received is None else received.delivery.event_id
        details = await delivery(reader, named)
        if details is None:
            refused = await refusal(reader, named)
            if refused is None:
                raise Problem("not_found", f"No delivery {named[:64]} is known (yet).")
            return DeliveryAnswer(refusal=refused)
        body = await _body(log, details) if with_body else None
        return DeliveryAnswer(delivery=details, body=body)

    return [listing, one]


async def _body(log: DeliveryLog, details: DeliveryWhole) -> str | None:
    try:
        received = await log.read(details.outcome.partition, details.outcome.offset)
    except (UndecodableRecord, UnknownSchema):
        return None
    return None if received is None else b64encode(received.delivery.body).decode()
