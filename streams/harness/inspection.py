"""Answers to inspection queries in tests, computed from the log as on the server."""

import json
from collections.abc import Iterable
from typing import Any

from headwater.processors.graph.drawing import draw
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.introspection import (
    introspect_tokens,
    simulate_routing,
    simulate_synchronization,
)
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.schemas.failures import refused
from headwater.schemas.history import HistoryAppended
from headwater.streams.authoring.inspection import TRACED_MAX, InspectionQuery


def answer_query(
    past: Past, records: Iterable[HistoryAppended], query: InspectionQuery[Any]
) -> Any:  # noqa: ANN401, depends on the query
    """Answer a query about a run from its instance's records.

    Raises:
        CommandRefusedError: As for `InspectableInstance`.
    """
    past.until = query.numbers.get("to" if query.path == "trace" else "at")
    first = query.numbers.get("from") or 0
    folded = Tracing(past, first, TRACED_MAX) if query.path == "trace" else past
    for record in records:
        if folded.is_done():
            break
        folded.apply(record)
    answer = past.refused() or _answer(past, folded, query)
    if isinstance(answer, Rejection):
        raise refused(answer.code, answer.message)
    return answer


def _answer(past: Past, folded: Past | Tracing, query: InspectionQuery[Any]) -> Any:  # noqa: ANN401, depends on the query
    numbers, texts = query.numbers, query.texts or {}
    names = {name: json.loads(text) for name, text in texts.items() if text and name != "output"}
    match query.path:
        case "tokens":
            after = numbers.get("after")
            limit = numbers.get("pageSize")
            return introspect_tokens(past, after=-1 if after is None else after, limit=limit)
        case "simulate-routing":
            return simulate_routing(past, **names, output=texts.get("output"))
        case "simulate-synchronization":
            return simulate_synchronization(past, **names)
        case "svg" | "mermaid" as written:
            return draw(past, written)
        case "explain":
            return explain(past)
        case _:
            assert isinstance(folded, Tracing)  # noqa: S101, the only remaining path
            return folded.page()
