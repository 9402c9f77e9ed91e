"""Inspection of graph runs, folded from their history on request."""

import json
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from litestar import Response

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.folding import RunFolds
from headwater.gateway.api.workflows.parameters import RunReference
from headwater.gateway.api.workflows.positions import HEADER, Positions, format_positions
from headwater.gateway.api.workflows.query_service import (
    JSON,
    QueryService,
    partition_position,
    run_number_of,
)
from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.projections.workflows.queries import Beginning, LocatedInstance, Workflows
from headwater.schemas.failures import INSTANCE_NOT_FOUND, REFUSALS
from headwater.schemas.history import instance_key
from headwater.schemas.introspection import AsOf

SVG: Final = "image/svg+xml"
MERMAID: Final = "text/vnd.mermaid"

#: Result of an inspection: data, a picture, or a rejection.
Inspected: TypeAlias = AsOf | str | Rejection


class GraphInspection:
    """Folds and inspects runs of graphs."""

    def __init__(
        self,
        query_service: QueryService,
        workflows: Workflows,
        folds: RunFolds,
        evaluator: Evaluator,
    ) -> None:
        self._evaluator = evaluator
        self._query_service = query_service
        self._workflows = workflows
        self._folds = folds

    async def inspect(
        self,
        run: RunReference,
        required: Positions,
        at: int | None,
        inspection: Callable[[Past], Inspected],
        media_type: str = JSON,
    ) -> Response[bytes]:
        """Apply an inspection to the state of a run as of an event.

        Args:
            run: The run.
            required: Positions that have to be applied before.
            at: Number of the event; None for the current state.
            inspection: Computes the result from the state.
            media_type: Media type of the result.

        Raises:
            Problem: The run does not exist, or the inspection was rejected.
            BrokerUnavailable: No broker answered in time.
        """
        row, beginning = await self._find_run(run, required)
        past = Past(run.workflow, run.instance_id, beginning.run_number, at, self._evaluator)
        body, headers = await self._fold(past, row, beginning, past, lambda: inspection(past))
        return Response(body, media_type=media_type, headers=headers)

    async def trace(
        self, run: RunReference, required: Positions, first: int, last: int | None
    ) -> Response[bytes]:
        """Return the decisions of a run from one event to another, with their inputs.

        Raises:
            Problem: The run does not exist, or has no such events.
            BrokerUnavailable: No broker answered in time.
        """
        row, beginning = await self._find_run(run, required)
        past = Past(run.workflow, run.instance_id, beginning.run_number, last, self._evaluator)
        tracing = Tracing(past, first)
        body, headers = await self._fold(past, row, beginning, tracing, tracing.page)
        return Response(body, media_type=JSON, headers=headers)

    async def _find_run(
        self, run: RunReference, required: Positions
    ) -> tuple[LocatedInstance, Beginning]:
        applied = await self._query_service.wait_until_applied(required)
        row = await self._query_service.find_instance(run.workflow, run.instance_id, applied)
        number = run_number_of(row, run.run_number, applied)
        beginning = await self._workflows.beginning(run.workflow, run.instance_id, number)
        if beginning is None:
            message = f"expected an instance {run.instance_id!r:.100}, found it deleted"
            raise Problem(INSTANCE_NOT_FOUND, message)
        return row, beginning

    async def _fold(
        self,
        past: Past,
        row: LocatedInstance,
        beginning: Beginning,
        fold: Past | Tracing,
        inspection: Callable[[], Inspected],
    ) -> tuple[bytes, dict[str, str]]:
        key = instance_key(past.workflow, past.instance_id)
        body = await self._folds.fold(
            key, beginning.partition, beginning.offset, fold, lambda: _encode(past, inspection)
        )
        if isinstance(body, Rejection):
            raise problem_of(body)
        position = format_positions(partition_position(row, self._query_service.applied()))
        return body, {HEADER: position} if position else {}


def problem_of(rejection: Rejection) -> Problem:
    """Convert the rejection of an inspection to a problem."""
    field = REFUSALS[rejection.code].field
    if field is None:
        return Problem(rejection.code, rejection.message)
    return Problem(rejection.code, rejection.message, field=field)


def _encode(past: Past, inspection: Callable[[], Inspected]) -> bytes | Rejection:
    result = past.refused() or inspection()
    if isinstance(result, Rejection):
        return result
    if isinstance(result, str):
        return result.encode()
    # Values of workflow authors may have text that msgspec's JSON refuses, but json accepts.
    return json.dumps(msgspec.to_builtins(result), separators=(",", ":")).encode()
