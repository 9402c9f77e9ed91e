"""Listings of instances, of one workflow or all: by page, or one after the other."""

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from headwater.schemas.answers import InstanceFound, InstancePage

if TYPE_CHECKING:
    from headwater.gateway.client.requests import Query
    from headwater.gateway.client.session import Session

#: Rows of a page: enough that most listings take one request.
PAGE_SIZE: Final = 100
#: For steps that are read from the log, where each page reads the whole run.
TRIMMED_PAGE_SIZE: Final = 5_000


class InstanceFilter(TypedDict, total=False):
    """Filters of a listing besides the status, and its page size.

    Attributes:
        labels: Labels that an instance must have, all of them.
        updated_since: Earliest update, inclusive: a datetime with a zone, or RFC 3339.
        updated_before: Latest update, exclusive, as `updated_since`.
        page_size: Rows of a page.
    """

    labels: Mapping[str, str] | None
    updated_since: datetime | str | None
    updated_before: datetime | str | None
    page_size: int


class Listing:
    """Listing of the instances at a path."""

    def __init__(self, session: "Session", path: str) -> None:
        self._session = session
        self._path = path

    async def page(
        self,
        status: str | None = None,
        *,
        cursor: str | None = None,
        **filters: Unpack[InstanceFilter],
    ) -> InstancePage:
        """Return a page of instances, newest first; `.cursor` is that of the next page."""
        labels = filters.get("labels") or {}
        query: Query = {
            "status": status,
            "label": [f"{name}={value}" for name, value in labels.items()],
            "updatedSince": _text(filters.get("updated_since")),
            "updatedBefore": _text(filters.get("updated_before")),
            "pageSize": filters.get("page_size", PAGE_SIZE),
            "cursor": cursor,
        }
        return await self._session.read(self._path, InstancePage, query)

    async def instances(
        self, status: str | None = None, **filters: Unpack[InstanceFilter]
    ) -> AsyncGenerator[InstanceFound]:
        """Yield every instance with this status and these filters, newest first."""
        cursor = None
        while True:
            page = await self.page(status, cursor=cursor, **filters)
            for instance in page.instances:
                yield instance
            if not page.has_next_page or page.cursor is None:
                return
            cursor = page.cursor


def _text(moment: datetime | str | None) -> str | None:
    """Return a time as queries have it."""
    return moment.isoformat() if isinstance(moment, datetime) else moment
