"""Changes many instances, page by page, so that a caller can follow the progress.

No state is kept between pages: every page has the cursor of the next. A page may be requested
again, because every action can be repeated: it is refused or has no effect the second time.
"""

from litestar import Response

from headwater.gateway.api.workflows.bodies import BulkChange
from headwater.gateway.api.workflows.command_service import CommandService, command_response
from headwater.gateway.api.workflows.pending_commands import accept_without_worker
from headwater.gateway.api.workflows.query_service import QueryService, response_of
from headwater.projections.workflows.queries import Page
from headwater.schemas.answers import BulkChanged, BulkPage, InstanceFound
from headwater.schemas.failures import is_refused
from headwater.schemas.history import ReplySent
from headwater.schemas.statuses import RunStatus, keep_unknown_values
from headwater.streams.workflows.client import Addressed


class BulkService:
    """Applies an action to all instances that match a filter."""

    def __init__(self, query_service: QueryService, command_service: CommandService) -> None:
        self._query_service = query_service
        self._command_service = command_service

    async def page(self, workflow: str, change: BulkChange) -> Page[InstanceFound]:
        """Return the page of instances that a change applies to.

        Raises:
            Problem: The cursor or the labels cannot be used, or Postgres cannot be read.
        """
        return await self._query_service.instance_page(
            workflow,
            self._query_service.applied(),
            status=change.status,
            labels=change.labels,
            page_size=change.page_size,
            cursor=change.cursor,
        )

    @accept_without_worker
    async def change(
        self, workflow: str, change: BulkChange, page: Page[InstanceFound], prefer: str
    ) -> Response[bytes]:
        """Change a page of instances; refusals are listed in the response.

        Raises:
            Problem: The commands could not be sent.
        """
        if change.dry_run or not page.rows:
            rows = [BulkChanged(id=row.id, status=row.details.status) for row in page.rows]
            return response_of(_bulk_page(page, rows), {})
        command = change.command()
        result = await self._command_service.send_commands(
            [Addressed(workflow, row.id, command) for row in page.rows], prefer
        )
        pairs = zip(page.rows, result.replies, strict=True)
        return command_response(
            _bulk_page(page, [_changed(row, reply) for row, reply in pairs]), result, prefer
        )


def _bulk_page(page: Page[InstanceFound], rows: list[BulkChanged]) -> BulkPage:
    more = page.cursor is not None
    return BulkPage(instances=rows, has_next_page=more, cursor=page.cursor)


def _changed(row: InstanceFound, reply: ReplySent) -> BulkChanged:
    with keep_unknown_values():
        status = RunStatus(reply.status) if reply.status else row.details.status
    if not is_refused(reply.code):
        return BulkChanged(id=row.id, status=status)
    return BulkChanged(id=row.id, status=status, code=reply.code, detail=reply.message)
