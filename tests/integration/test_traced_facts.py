"""Goal: all spans of a time come page by page, in an order, and are the same each time."""

from typing import Any

from headwater.processors.trace_context import TraceContext, run_context
from headwater.schemas.history import (
    Failure,
    RunErrored,
    RunStarted,
    StepCompleted,
    StepFailed,
    TokensCreated,
)
from tests.integration.test_gateway_reads import ADMIN, Client, Write, client, gateways, write
from tests.integration.test_workflow_projection import project
from tests.integration.written import RECEIVED_AT_MS, outcome
from tests.unit.projections.histories import Log

__all__ = ["client", "gateways", "write"]

SENDER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
EVENTS = [f"{number:x}" * 32 for number in range(1, 6)]


def spans(client: Client, limit: int = 2, **asked: object) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    after = None
    while True:
        given = {"since": "2026-01-01T00:00:00Z", "limit": limit, "after": after, **asked}
        parameters = {name: value for name, value in given.items() if value is not None}
        answer = client.get("/admin/traces/spans", params=parameters, headers=ADMIN)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        result += page["spans"]
        after = page["cursor"]
        if after is None:
            return result


def histories() -> Log:
    """A run that failed, its retry, another run, and one of a graph."""
    log = Log()
    log.claim()
    failure = Failure("ValueError", "no stock")
    policy = ("pay", "pay", 0, RECEIVED_AT_MS)
    log.write("o-1", RunStarted("null", "seed", kind="replay", trace=SENDER.text))
    log.write("o-1", StepFailed(*policy, 1, 0, 600_000, failure), RunErrored(failure))
    log.write("o-1", RunStarted("null", "seed", kind="replay", kept=(), trace=SENDER.text),
              run_number=1)  # fmt: skip
    log.write("o-1", StepCompleted(*policy, 2, 0, 600_000, "1"), run_number=1)
    log.write("o-2", RunStarted("null", "seed", kind="replay"))
    log.write("g-1", RunStarted("null", "other", kind="graph"), workflow="graph")
    log.write(
        "g-1", TokensCreated(0, 2, "first", None, None, "", None, None, 0, 1, ()), workflow="graph"
    )
    return log


def test_all_spans_of_a_time_are_paged_and_the_same_each_time(
    client: Client, write: Write, migrated: str
) -> None:
    at = RECEIVED_AT_MS
    write(
        [
            outcome(name, received_at_ms=at + number // 2, trace=SENDER.text if number else "")
            for number, name in enumerate(EVENTS)
        ]
    )
    write([outcome(EVENTS[0], received_at_ms=at, at_ms=at + 900, position="webhooks/3@99",
                   replay="again")])  # fmt: skip
    project(migrated, histories())

    result = spans(client)
    ids = [(span["trace_id"], span["span_id"]) for span in result]
    assert len(set(ids)) == len(ids)
    assert spans(client) == spans(client, limit=1) == spans(client, limit=100) == result

    names = [span["name"] for span in result]
    assert names.count("POST /webhooks/terra") == 5
    assert names.count("process events") == 5
    assert names.count("process webhooks") == 1
    assert [name for name in names if name.startswith("run")] == [
        *("run graph", "run order", "run order", "run order")
    ]
    assert names.count("step pay") == 2
    assert names.count("node first") == 2

    first, retried = (run_context("order", "o-1", n, "seed", SENDER.text) for n in (0, 1))
    runs = {span["span_id"]: span for span in result if span["name"] == "run order"}
    assert runs[first.span_id]["parent_id"] == SENDER.span_id
    assert runs[first.span_id]["error"] == "ValueError: no stock"
    assert runs[retried.span_id]["links"] == [
        {"trace_id": SENDER.trace_id, "span_id": first.span_id}
    ]
    assert {span["trace_id"] for span in result if span.get("parent_id") == retried.span_id} == {
        SENDER.trace_id
    }


def test_only_spans_of_a_time_are_listed(client: Client, write: Write) -> None:
    write([outcome(EVENTS[0], received_at_ms=RECEIVED_AT_MS)])
    assert spans(client, since="2026-01-01T00:00:00.001Z") == []
    assert spans(client, until="2026-01-01T00:00:00Z") == []
    assert len(spans(client, until="2026-01-01T00:00:00.001Z")) == 2


def test_a_mistake_is_refused(client: Client) -> None:
    for asked in ({"since": "yesterday"}, {"after": "x"}, {"from": "2026-01-01T00:00:00Z"}):
        answer = client.get("/admin/traces/spans", params=asked, headers=ADMIN)
        assert answer.status_code == 400, answer.text
