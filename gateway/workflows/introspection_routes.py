"""The routes by which instances of graphs are looked into. None of them changes anything."""

from functools import partial
from typing import Annotated, Final, TypeAlias

from headwater.streams.authoring.inspection import TOKENS_MAX
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter

from headwater.gateway.http.limited_bodies import BodySize
from headwater.gateway.workflows import examples
from headwater.gateway.workflows.bodies import RoutingSimulation, SynchronizationSimulation, text
from headwater.gateway.workflows.graph_inspection import MERMAID, SVG, GraphInspection
from headwater.gateway.workflows.openapi import BODY_PROBLEMS, read_spec
from headwater.gateway.workflows.parameters import Position, RunReference
from headwater.processors.graph.drawing import draw
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.introspection import (
    introspect_tokens,
    simulate_routing,
    simulate_synchronization,
)
from headwater.schemas import introspection
from headwater.schemas.failures import (
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    NODE_NOT_FOUND,
    NOT_A_GRAPH,
    SEQUENCE_NOT_FOUND,
    TOKEN_NOT_FOUND,
    TRANSITION_NOT_FOUND,
)

#: The largest number that an event can have.
_NUMBER_MAX: Final = 2**63 - 1
_PROBLEMS: Final = (
    INSTANCE_NOT_FOUND,
    NOT_A_GRAPH,
    "RUN_NOT_FOUND",
    SEQUENCE_NOT_FOUND,
    "broker_unavailable",
    "overloaded",
)
_AS_OF: Final = (
    "Of a run, the current one by default, as it was after its event `at`; without it, as it is "
    "now. Read from the history in Kafka, so it is no older than what was answered before. Nothing "
    "is changed."
)


def _number(name: str, description: str) -> QueryParameter:
    return QueryParameter(name=name, ge=0, le=_NUMBER_MAX, description=description)


#: The run, as `parameters.run_reference` provides it.
Asked: TypeAlias = NamedDependency[RunReference]
At: TypeAlias = Annotated[
    int | None, _number("at", "Number of an event of the run; the first is 0.")
]
After: TypeAlias = Annotated[
    int | None, _number("after", "Only tokens with greater numbers: the cursor of a page.")
]
Tokens: TypeAlias = Annotated[
    int, QueryParameter(name="pageSize", ge=1, le=TOKENS_MAX, description="How many, at most.")
]
First: TypeAlias = Annotated[
    int, _number("from", "Decisions that begin with this event, or later.")
]
Last: TypeAlias = Annotated[int | None, _number("to", "The last event that is looked at.")]


def graph_inspection_routes(inspection: GraphInspection) -> list[HTTPRouteHandler]:
    """Looking into an instance as it is, or was."""

    @get(
        "/graph/tokens",
        operation_id="introspectTokens",
        summary="The tokens of a graph that live",
        description=f"Where each is, and what it waits for. {_AS_OF}",
        **read_spec(introspection.TokensPage, examples.TOKENS, *_PROBLEMS),
    )
    async def get_tokens(
        run: Asked,
        position: Position,
        at: At = None,
        after: After = None,
        page_size: Tokens = TOKENS_MAX,
    ) -> Response[bytes]:
        behind = -1 if after is None else after
        say = partial(introspect_tokens, after=behind, limit=page_size)
        return await inspection.inspect(run, position, at, say)

    @get(
        "/graph/explain",
        operation_id="explainInstance",
        summary="Why a graph stands where it stands",
        description="Of each join that waits: who has arrived, who has not and why not, when its "
        f"time is over and what happens then; as data and in sentences. {_AS_OF}",
        **read_spec(introspection.Explanation, examples.EXPLAINED, *_PROBLEMS),
    )
    async def get_explanation(
        run: Asked,
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        return await inspection.inspect(run, position, at, explain)

    @get(
        "/graph/trace",
        operation_id="traceInstance",
        summary="How the decisions of a graph came about",
        description="Each is made again from the state before it: what the planners decided and "
        "what they looked at. Where `same` is false another release has decided otherwise.",
        **read_spec(introspection.TracePage, examples.TRACED, *_PROBLEMS),
    )
    async def get_trace(
        run: Asked,
        position: Position,
        first: First = 0,
        last: Last = None,
    ) -> Response[bytes]:
        return await inspection.trace(run, position, first, last)

    return [
        get_tokens,
        get_explanation,
        get_trace,
        *_pictures(inspection),
        *_simulations(inspection),
    ]


def _pictures(inspection: GraphInspection) -> list[HTTPRouteHandler]:
    """A run, drawn."""

    @get(
        "/graph/svg",
        operation_id="drawInstance",
        summary="A run of a graph as a picture",
        description=f"Its definition, with its tokens on it. {_AS_OF}",
        **read_spec(str, examples.SVG, *_PROBLEMS, media_type=SVG),
    )
    async def get_svg(
        run: Asked,
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        say = partial(draw, written="svg")
        return await inspection.inspect(run, position, at, say, SVG)

    @get(
        "/graph/mermaid",
        operation_id="drawInstanceInMermaid",
        summary="A run of a graph as a Mermaid flowchart",
        description=f"Its definition, with its tokens on it. {_AS_OF}",
        **read_spec(str, examples.MERMAID, *_PROBLEMS, media_type=MERMAID),
    )
    async def get_mermaid(
        run: Asked,
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        say = partial(draw, written="mermaid")
        return await inspection.inspect(run, position, at, say, MERMAID)

    return [get_svg, get_mermaid]


def _simulations(inspection: GraphInspection) -> list[HTTPRouteHandler]:
    """What would follow."""

    @post(
        "/graph/simulate-routing",
        operation_id="simulateRouting",
        body=BodySize.VALUE,
        summary="What would follow if a token completed",
        description="Which transitions would fire, all that would be decided, and how the run "
        f"would stand. {_AS_OF}",
        **read_spec(
            introspection.SimulatedRouting,
            examples.ROUTED,
            *_PROBLEMS,
            *BODY_PROBLEMS,
            TOKEN_NOT_FOUND,
            NODE_NOT_FOUND,
            INSTANCE_TERMINAL,
        ),
    )
    async def post_routing(
        run: Asked,
        data: JSONBody[RoutingSimulation],
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        output = text(data.output) or None
        say = partial(simulate_routing, token=data.token, node=data.node, output=output)
        return await inspection.inspect(run, position, at, say)

    @post(
        "/graph/simulate-synchronization",
        operation_id="simulateSynchronization",
        summary="What a join would decide if a token came",
        description=f"Its counts, and what would follow. {_AS_OF}",
        **read_spec(
            introspection.SimulatedSynchronization,
            examples.JOINED,
            *_PROBLEMS,
            *BODY_PROBLEMS,
            TOKEN_NOT_FOUND,
            TRANSITION_NOT_FOUND,
            INSTANCE_TERMINAL,
        ),
    )
    async def post_synchronization(
        run: Asked,
        data: JSONBody[SynchronizationSimulation],
        position: Position,
        at: At = None,
    ) -> Response[bytes]:
        say = partial(simulate_synchronization, token=data.token, transition=data.transition)
        return await inspection.inspect(run, position, at, say)

    return [post_routing, post_synchronization]
