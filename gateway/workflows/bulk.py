"""What is done to many instances: page by page, so that whoever asks sees how far it is.

Nothing is kept between pages: each names the next, and a page that is asked for again does nothing
twice, because what is done so is refused or done already.
"""

from litestar import Response

from headwater.gateway.workflows.bodies import BulkChange
from headwater.gateway.workflows.command_service import CommandService, command_response
from headwater.gateway.workflows.pending_commands import accept_without_worker
from headwater.gateway.workflows.query_service import QueryService, response_of
from headwater.projections.workflows.queries import Page
from headwater.schemas.answers import BulkChanged, BulkPage, InstanceFound
from headwater.schemas.failures import is_refused
from headwater.schemas.history import ReplySent
from headwater.schemas.statuses import RunStatus, newer_kept
from headwater.streams.workflows.client import Addressed


class BulkService:
    """Does the same to all instances that are found."""

    def __init__(self, query_service: QueryService, command_service: CommandService) -> None:
        self._query_service = query_service
        self._command_service = command_service

    async def page(self, workflow: str, asked: BulkChange) -> Page[InstanceFound]:
        """Return the page of instances that a change is about.

        Raises:
            Problem: The cursor or the labels cannot be used, or Postgres cannot be read.
        """
        return await self._query_service.instance_page(
            workflow,
            self._query_service.applied(),
            status=asked.status,
            labels=asked.labels,
            page_size=asked.page_size,
            cursor=asked.cursor,
        )

    @accept_without_worker
    async def change(
        self, workflow: str, asked: BulkChange, page: Page[InstanceFound], prefer: str
    ) -> Response[bytes]:
        """Change a page of instances; what one is refused with stops no other.

        Raises:
            Problem: The command could not be sent.
        """
        if asked.dry_run or not page.rows:
            found = [BulkChanged(id=row.id, status=row.details.status) for row in page.rows]
            return response_of(_page(page, found), {})
        command = asked.command()
        result = await self._command_service.send_commands(
            [Addressed(workflow, row.id, command) for row in page.rows], prefer
        )
        pairs = zip(page.rows, result.replies, strict=True)
        return command_response(
            _page(page, [_changed(row, reply) for row, reply in pairs]), result, prefer
        )


def _page(page: Page[InstanceFound], found: list[BulkChanged]) -> BulkPage:
    more = page.cursor is not None
    return BulkPage(instances=found, has_next_page=more, cursor=page.cursor)


def _changed(row: InstanceFound, reply: ReplySent) -> BulkChanged:
    with newer_kept():
        status = RunStatus(reply.status) if reply.status else row.details.status
    if not is_refused(reply.code):
        return BulkChanged(id=row.id, status=status)
    return BulkChanged(id=row.id, status=status, code=reply.code, detail=reply.message)
