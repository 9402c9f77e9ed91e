"""The start of a run: its input and its first token."""

from typing import Any

from headwater.processors.graph.decisions import (
    CreateToken,
    InitializeWorkflow,
    Planned,
    TokenParams,
    Trace,
)
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.tokens import ROOT


def decide_start(graph: Graph, input: Any) -> Planned:  # noqa: A002, ANN401
    """Decide how a run begins."""
    first = graph.definition.initial_node_ref
    params = TokenParams(node_ref=first, parent_token_id=None, path_id=ROOT)
    return Planned(
        (InitializeWorkflow(input=input), CreateToken(params=params)),
        (Trace("decision.lifecycle.start", node_ref=first),),
    )
