"""Where in its run an event of a graph belongs, in the words of the graph's author."""

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


def place_of(run: GraphRun, decided: Sequence[RunEvent], event: RunEvent) -> str:
    """The node and token of an event, or the path of a value; empty if it is of the whole run.

    Shape:  decided are the events of its decision, which may have created the token.
    """
    match event:
        case ContextChanged(changes=changes):
            return max(changes, key=lambda change: len(change.value)).path
        case TokensCreated(node=node, count=count):
            return f"node {node}, {count} tokens"
        case FanInActivated(node=node, tokens=tokens):
            return f"node {node}, where {len(tokens)} tokens meet"
        case TasksDispatched(tasks=tasks):
            return _of_token(run, decided, max(tasks, key=lambda task: len(task.input or "")).token)
        case BranchChanged(fork=fork, branch=branch):
            return f"branch {branch} of fork {fork}"
        case _:
            token = getattr(event, "token", None)
            return "" if token is None else _of_token(run, decided, token)


def _of_token(run: GraphRun, decided: Sequence[RunEvent], number: int) -> str:
    known = run.tokens.get(number)
    created = [
        each.node
        for each in decided
        if isinstance(each, TokensCreated) and each.first <= number < each.first + each.count
    ]
    node = known.node if known else created[0] if created else "unknown"
    return f"node {node}, token {number}"
