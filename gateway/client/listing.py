"""Listings of instances: of a workflow, or of all; page by page, or one after the other."""

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from headwater.schemas.answers import InstanceFound, InstancePage

if TYPE_CHECKING:
    from headwater.gateway.client.requests import Query
    from headwater.gateway.client.session import Session

#: Rows that a request asks for: enough that most answers are one request.
PAGE_SIZE: Final = 100
#: Of steps that are read from the log: each page costs a reading of the whole run.
TRIMMED_PAGE_SIZE: Final = 5_000


class Wanted(TypedDict, total=False):
    """Which instances are listed, beside their status, and how many at once.

    Shape:  all of these labels; times are datetimes with a zone, or RFC 3339: something happened to
            an instance since then, and nothing from then on.
    """

    labels: Mapping[str, str] | None
    updated_since: datetime | str | None
    updated_before: datetime | str | None
    page_size: int


class Listing:
    """The instances that are found at a path."""

    def __init__(self, session: "Session", path: str) -> None:
        self._session = session
        self._path = path

    async def page(
        self, status: str | None = None, *, cursor: str | None = None, **wanted: Unpack[Wanted]
    ) -> InstancePage:
        """A page of instances, the newest first; `.cursor` goes on behind it."""
        labels = wanted.get("labels") or {}
        query: Query = {
            "status": status,
            "label": [f"{name}={value}" for name, value in labels.items()],
            "updatedSince": _text(wanted.get("updated_since")),
            "updatedBefore": _text(wanted.get("updated_before")),
            "pageSize": wanted.get("page_size", PAGE_SIZE),
            "cursor": cursor,
        }
        return await self._session.read(self._path, InstancePage, query)

    async def instances(
        self, status: str | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncGenerator[InstanceFound]:
        """Every instance that has a status and what else is wanted, the newest first."""
        cursor = None
        while True:
            page = await self.page(status, cursor=cursor, **wanted)
            for found in page.instances:
                yield found
            if not page.has_next_page or page.cursor is None:
                return
            cursor = page.cursor


def _text(moment: datetime | str | None) -> str | None:
    """A time as queries have it."""
    return moment.isoformat() if isinstance(moment, datetime) else moment
