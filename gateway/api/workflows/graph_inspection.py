"""Inspection of graph runs, folded from their history on request, with its read-only routes."""

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter

from headwater.gateway.api.json_bodies import BodySize
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.bodies import (
    RoutingSimulation,
    SynchronizationSimulation,
    text,
)
from headwater.gateway.api.workflows.folding import RunFolds
from headwater.gateway.api.workflows.openapi import BODY_PROBLEMS, read_spec
from headwater.gateway.api.workflows.parameters import Position, RunReference
from headwater.gateway.api.workflows.positions import HEADER, Positions, format_positions
from headwater.gateway.api.workflows.query_service import (
    JSON,
    QueryService,
    partition_position,
    run_number_of,
)
from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.introspection import (
    introspect_tokens,
    simulate_routing,
    simulate_synchronization,
)
from headwater.processors.graph.past import Past, draw
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.inspection import (
    EXPLAIN,
    MERMAID,
    SIMULATE_ROUTING,
    SIMULATE_SYNCHRONIZATION,
    SVG,
    TOKENS,
    TOKENS_MAX,
    TRACE,
    Question,
)
from headwater.projections.workflows.queries import Beginning, LocatedInstance, Workflows
from headwater.schemas.failures import (
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    NODE_NOT_FOUND,
    NOT_A_GRAPH,
    REFUSALS,
    SEQUENCE_NOT_FOUND,
    TOKEN_NOT_FOUND,
    TRANSITION_NOT_FOUND,
)
from headwater.schemas.graph_answers import AsOf
from headwater.schemas.history import instance_key

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


# -- routes

#: Largest sequence number of an event.
_NUMBER_MAX: Final = 2**63 - 1
_PROBLEMS: Final = (
    INSTANCE_NOT_FOUND,
    NOT_A_GRAPH,
    "RUN_NOT_FOUND",
    SEQUENCE_NOT_FOUND,
    "broker_unavailable",
    "overloaded",
)


def _number(name: str, description: str) -> QueryParameter:
    return QueryParameter(name=name, ge=0, le=_NUMBER_MAX, description=description)


#: The run, as `parameters.run_reference` provides it.
Run: TypeAlias = NamedDependency[RunReference]
At: TypeAlias = Annotated[
    int | None, _number("at", "Sequence number of an event of the run; the first is 0.")
]
After: TypeAlias = Annotated[
    int | None, _number("after", "Cursor of a page: only tokens with greater ids.")
]
Tokens: TypeAlias = Annotated[
    int,
    QueryParameter(name="pageSize", ge=1, le=TOKENS_MAX, description="Maximum number of tokens."),
]
First: TypeAlias = Annotated[
    int, _number("from", "First event: only decisions that begin with it or later.")
]
Last: TypeAlias = Annotated[int | None, _number("to", "Last event to read.")]


def graph_inspection_routes(inspection: GraphInspection) -> list[HTTPRouteHandler]:
    """Return the routes that inspect an instance in its current or an earlier state."""

    @get(**spec_of(TOKENS, examples.TOKENS))
    async def get_tokens(
        run: Run,
        position: Position,
        at: At = None,
        after: After = None,
        page_size: Tokens = TOKENS_MAX,
    ) -> Response[bytes]:
        last = -1 if after is None else after
        inspect = partial(introspect_tokens, after=last, limit=page_size)
        return await inspection.inspect(run, position, at, inspect)

    @get(**spec_of(TRACE, examples.TRACED))
    async def get_trace(
        run: Run,
        position: Position,
        first: First = 0,
        last: Last = None,
    ) -> Response[bytes]:
        return await inspection.trace(run, position, first, last)

    def of_state(
        question: Question[Any],
        example: object,
        inspect: Callable[[Past], Inspected],
        media_type: str = JSON,
    ) -> HTTPRouteHandler:
        @get(**spec_of(question, example, media_type=media_type))
        async def get_answer(run: Run, position: Position, at: At = None) -> Response[bytes]:
            return await inspection.inspect(run, position, at, inspect, media_type)

        return get_answer

    mermaid = partial(draw, drawing_format="mermaid")
    return [
        get_tokens,
        of_state(EXPLAIN, examples.EXPLAINED, explain),
        get_trace,
        of_state(SVG, examples.SVG, partial(draw, drawing_format="svg"), "image/svg+xml"),
        of_state(MERMAID, examples.MERMAID, mermaid, "text/vnd.mermaid"),
        *_simulation_routes(inspection),
    ]


def spec_of(
    question: Question[Any], example: object, *problems: str, media_type: str = JSON
) -> dict[str, Any]:
    """Describe the route of a question, with the problems that only it has."""
    return {
        "path": question.path,
        "operation_id": question.operation,
        "summary": question.summary,
        "description": question.effect,
        **read_spec(question.answer, example, *_PROBLEMS, *problems, media_type=media_type),
    }


#: Problems of simulations.
SIMULATION_PROBLEMS: Final = (*BODY_PROBLEMS, TOKEN_NOT_FOUND, INSTANCE_TERMINAL)


def _simulation_routes(inspection: GraphInspection) -> list[HTTPRouteHandler]:
    """Return the routes that simulate decisions."""

    @post(
        body=BodySize.VALUE,
        **spec_of(SIMULATE_ROUTING, examples.ROUTED, *SIMULATION_PROBLEMS, NODE_NOT_FOUND),
    )
    async def post_routing(
        run: Run,
        data: JSONBody[RoutingSimulation],
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        output = text(data.output) or None
        inspect = partial(simulate_routing, token=data.token, node=data.node, output=output)
        return await inspection.inspect(run, position, at, inspect)

    @post(
        **spec_of(
            SIMULATE_SYNCHRONIZATION,
            examples.JOINED,
            *SIMULATION_PROBLEMS,
            TRANSITION_NOT_FOUND,
        )
    )
    async def post_synchronization(
        run: Run,
        data: JSONBody[SynchronizationSimulation],
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        inspect = partial(simulate_synchronization, token=data.token, transition=data.transition)
        return await inspection.inspect(run, position, at, inspect)

    return [post_routing, post_synchronization]
