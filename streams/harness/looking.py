"""Questions about instances under test, answered from the log as a server would."""

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


def answered(past: Past, records: Iterable[HistoryAppended], query: InspectionQuery[Any]) -> Any:  # noqa: ANN401, the query says
    """Answers a query about a run, of its instance's records.

    Errors: as `InspectableInstance` says.
    """
    past.until = query.numbers.get("to" if query.path == "trace" else "at")
    first = query.numbers.get("from") or 0
    folded = Tracing(past, first, TRACED_MAX) if query.path == "trace" else past
    for record in records:
        if folded.is_done():
            break
        folded.apply(record)
    found = past.refused() or _answer(past, folded, query)
    if isinstance(found, Rejection):
        raise refused(found.code, found.message)
    return found


def _answer(past: Past, folded: Past | Tracing, query: InspectionQuery[Any]) -> Any:  # noqa: ANN401, the query says
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
            assert isinstance(folded, Tracing)  # noqa: S101, this is the last of the questions
            return folded.page()
