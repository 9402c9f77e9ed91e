"""Export of histories: the records of a run as JSON lines, without sensitive values."""

from collections.abc import Callable, Sequence
from typing import Final

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.folding import RunFolds
from headwater.gateway.api.workflows.openapi import read_spec
from headwater.gateway.api.workflows.parameters import Position, RunReference
from headwater.gateway.api.workflows.positions import Positions
from headwater.gateway.api.workflows.query_service import QueryService, run_number_of
from headwater.processors.runs.history_files import HistoryFileInvalid, history_of, lines_of
from headwater.processors.runs.redaction import Redaction
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.failures import INSTANCE_NOT_FOUND
from headwater.schemas.history import HistoryAppended, instance_key

#: Media type of JSON lines.
JSON_LINES: Final = "application/x-ndjson"


class _Records:
    """Collects the records of a run, and of earlier runs that it continues."""

    def __init__(self, number: int) -> None:
        self.records: list[HistoryAppended] = []
        self._number = number
        self._over = False

    def apply(self, record: HistoryAppended) -> None:
        """Keep a record of the run."""
        self._over = record.run_number > self._number
        if not self._over:
            self.records.append(record)

    def is_done(self) -> bool:
        """Whether a later run has begun."""
        return self._over


class HistoryExports:
    """Exports histories of runs.

    Args:
        query_service: Finds instances.
        workflows: Rows of runs.
        folds: Reads the log.
        redacted: Patterns of the names of fields whose values are replaced.
        new_salt: Returns random text, for the pseudonyms of one export.
    """

    def __init__(
        self,
        query_service: QueryService,
        workflows: Workflows,
        folds: RunFolds,
        *,
        redacted: Sequence[str],
        new_salt: Callable[[], str],
    ) -> None:
        self._query_service = query_service
        self._workflows = workflows
        self._folds = folds
        self._redacted = redacted
        self._new_salt = new_salt

    async def export(self, run: RunReference, required: Positions) -> Response[bytes]:
        """Return the history of a run as JSON lines.

        Raises:
            Problem: The run does not exist.
            BrokerUnavailable: No broker answered in time.
        """
        applied = await self._query_service.wait_until_applied(required)
        row = await self._query_service.find_instance(run.workflow, run.instance_id, applied)
        number = run_number_of(row, run.run_number, applied)
        beginning = await self._workflows.beginning(run.workflow, run.instance_id, number)
        if beginning is None:
            raise _deleted(run)
        records, status = _Records(number), row.instance.details.status

        def render() -> bytes:
            history = history_of(records.records, number, status)
            redaction = Redaction(self._redacted, self._new_salt())
            return "".join(f"{line}\n" for line in lines_of(redaction.redact(history))).encode()

        key = instance_key(run.workflow, run.instance_id)
        try:
            body = await self._folds.fold(
                key, beginning.partition, beginning.offset, records, render
            )
        except HistoryFileInvalid as error:
            raise _deleted(run) from error
        return Response(body, media_type=JSON_LINES)


def _deleted(run: RunReference) -> Problem:
    return Problem(
        INSTANCE_NOT_FOUND, f"expected an instance {run.instance_id!r:.100}, found it deleted"
    )


def history_export_route(exports: HistoryExports) -> HTTPRouteHandler:
    """Return the route that exports the history of a run."""

    @get(
        "/history/export",
        operation_id="exportHistory",
        summary="Export the history of a run",
        description="JSON lines: a description of the run, then its records. Values of fields that "
        "HEADWATER_REDACTED_FIELDS names are replaced. `headwater check-replay` replays the file.",
        **read_spec(
            str,
            examples.EXPORTED,
            INSTANCE_NOT_FOUND,
            "RUN_NOT_FOUND",
            "broker_unavailable",
            "overloaded",
            media_type=JSON_LINES,
        ),
    )
    async def export_history(
        run: NamedDependency[RunReference], position: Position
    ) -> Response[bytes]:
        return await exports.export(run, position)

    return export_history
