"""Where in its run an event of a graph belongs, in terms of the graph's definition."""

from collections.abc import Sequence

from headwater.processors.graph.state import GraphRun
from headwater.schemas.history import (
    BranchChanged,
    ContextChanged,
    FanInActivated,
    RunEvent,
    TasksDispatched,
    TokensCreated,
)


def location_of(run: GraphRun, decision_events: Sequence[RunEvent], event: RunEvent) -> str:
    """Return the node and token of an event, or the path of a value; empty for the whole run.

    Args:
        run: The run, before or after the event.
        decision_events: Events of the same decision, which may have created the token.
        event: The event to locate.
    """
    match event:
        case ContextChanged(changes=changes):
            return max(changes, key=lambda change: len(change.value)).path
        case TokensCreated(node=node, count=count):
            return f"node {node}, {count} tokens"
        case FanInActivated(node=node, tokens=tokens):
            return f"node {node}, where {len(tokens)} tokens join"
        case TasksDispatched(tasks=tasks):
            return _token_location(
                run, decision_events, max(tasks, key=lambda task: len(task.input or "")).token
            )
        case BranchChanged(fork=fork, branch=branch):
            return f"branch {branch} of fork {fork}"
        case _:
            token = getattr(event, "token", None)
            return "" if token is None else _token_location(run, decision_events, token)


def _token_location(run: GraphRun, decision_events: Sequence[RunEvent], number: int) -> str:
    known = run.tokens.get(number)
    creating_nodes = [
        event.node
        for event in decision_events
        if isinstance(event, TokensCreated) and event.first <= number < event.first + event.count
    ]
    node = known.node if known else creating_nodes[0] if creating_nodes else "unknown"
    return f"node {node}, token {number}"
