"""What is done to many instances: page by page, so that whoever asks sees how far it is.

Nothing is kept between pages: each names the next, and a page that is asked for again does nothing
twice, because what is done so is refused or done already.
"""

from litestar import Response

from headwater.gateway.workflows.accepting import accepting
from headwater.gateway.workflows.bodies import BulkChange
from headwater.gateway.workflows.reading import Reading, answer
from headwater.gateway.workflows.writing import Writing, answered
from headwater.projections.workflows.queries import Page
from headwater.schemas.answers import BulkChanged, BulkPage, InstanceFound
from headwater.schemas.failures import is_refused
from headwater.schemas.history import ReplySent
from headwater.schemas.statuses import RunStatus, keep_unknown_values
from headwater.streams.workflows.client import Addressed


class Bulk:
    """Does the same to all instances that are found."""

    def __init__(self, reading: Reading, writing: Writing) -> None:
        self._reading = reading
        self._writing = writing

    async def page(self, workflow: str, asked: BulkChange) -> Page[InstanceFound]:
        """Return the page of instances that a change is about.

        Raises:
            Problem: The cursor or the labels cannot be used, or Postgres cannot be read.
        """
        return await self._reading.page(
            workflow,
            self._reading.applied(),
            status=asked.status,
            labels=asked.labels,
            page_size=asked.page_size,
            cursor=asked.cursor,
        )

    @accepting
    async def change(
        self, workflow: str, asked: BulkChange, page: Page[InstanceFound], prefer: str
    ) -> Response[bytes]:
        """Change a page of instances; what one is refused with stops no other.

        Raises:
            Problem: The command could not be sent.
        """
        if asked.dry_run or not page.rows:
            found = [BulkChanged(id=row.id, status=row.details.status) for row in page.rows]
            return answer(_page(page, found), {})
        command = asked.command()
        told = await self._writing.send(
            [Addressed(workflow, row.id, command) for row in page.rows], prefer
        )
        pairs = zip(page.rows, told.replies, strict=True)
        return answered(_page(page, [_changed(row, reply) for row, reply in pairs]), told, prefer)


def _page(page: Page[InstanceFound], found: list[BulkChanged]) -> BulkPage:
    more = page.cursor is not None
    return BulkPage(instances=found, has_next_page=more, cursor=page.cursor)


def _changed(row: InstanceFound, reply: ReplySent) -> BulkChanged:
    with keep_unknown_values():
        status = RunStatus(reply.status) if reply.status else row.details.status
    if not is_refused(reply.code):
        return BulkChanged(id=row.id, status=status)
    return BulkChanged(id=row.id, status=status, code=reply.code, detail=reply.message)
