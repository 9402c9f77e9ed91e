"""Journeys on a real Postgres: told from outcomes and duplicates, and found by their indexes."""

import asyncio
import re
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.queries import Hop, Reader, Trace, _traces_query
from headwater.projections.projector.store import Store
from tests.integration.written import (
    RECEIVED_AT_MS,
    Written,
    answer,
    apply,
    dead_letter,
    duplicate,
    outcome,
)

ROWS = 20_000


def written(dsn: str, records: Sequence[Written]) -> None:
    async def run() -> None:
        store = Store(dsn, projection=DELIVERIES, clock=lambda: RECEIVED_AT_MS)
        try:
            await apply(store, records)
        finally:
            await store.close()

    asyncio.run(run())


def asked(dsn: str, limit: int = 100, **named: str) -> list[Trace]:
    async def run() -> list[Trace]:
        async with Reader(dsn) as reader:
            return await reader.traces(limit=limit, **named)

    return asyncio.run(run())


def hop(stage: str, after_ms: int, position: str = "", detail: str = "") -> Hop:
    return Hop(stage, RECEIVED_AT_MS + after_ms, position, detail)


PARKED = {"parked_at_ms": RECEIVED_AT_MS + 5, "admitted_at_ms": RECEIVED_AT_MS + 1}
WAITED = {**PARKED, "waited_for": "no_connection"}
RELEASED = {**WAITED, "released_at_ms": RECEIVED_AT_MS + 100, "released_by": "webhooks/1@4"}
#: The hop of a wait that is over.
WAIT = ("parked", 5, "webhooks/3@17", "no_connection")


@pytest.mark.parametrize(
    ("values", "between", "last"),
    [
        ({"rows": 3}, [], ("normalized", "3 rows")),
        ({"status": "skipped", "reason": "why"}, [], ("normalized", "skipped:why")),
        ({"status": "parked", "reason": "why", **PARKED}, [], ("parked", "parked:why")),
        (RELEASED, [WAIT, ("released", 100, "webhooks/1@4")], ("normalized", "1 row")),
        ({"status": "dead", "reason": "why", **WAITED}, [WAIT], ("dead", "dead:why")),
    ],
)
def test_an_outcome_tells_the_journey(
    migrated: str,
    values: dict[str, str | int],
    between: list[tuple[Any, ...]],
    last: tuple[str, str],
):
    written(migrated, [outcome("e1", **values)])
    [result] = asked(migrated)
    stage, detail = last
    assert result.hops == (
        hop("received", 0),
        hop("admitted", 1, "webhooks/3@17"),
        *(hop(*one) for one in between),
        hop(stage, 250, "events/2@9", detail),
    )
    assert result.level == ("error" if stage == "dead" else "info")
    assert (result.request_id, result.event_id, result.user_id) == ("req-e1", "e1", "user_1")
    assert result.started_at.timestamp() * 1000 == RECEIVED_AT_MS
    assert result.ended_at.timestamp() * 1000 == RECEIVED_AT_MS + 250


AT_MS = RECEIVED_AT_MS + 250
DEAD = {"status": "dead", "reason": "why", "position": "webhooks/3@17", "at_ms": AT_MS}
AGAIN = {"position": "webhooks/3@99", "admitted_at_ms": AT_MS + 900, "at_ms": AT_MS + 950}


def test_a_journey_before_a_replay_is_told_too(migrated: str):
    written(migrated, [outcome("e1", **DEAD), outcome("e1", **AGAIN)])
    expected = (
        hop("received", 0),
        hop("admitted", 1, "webhooks/3@17"),
        hop("dead", 250, "webhooks/3@17", "dead:why"),
        hop("admitted", 1_150, "webhooks/3@17"),
        hop("normalized", 1_200, "webhooks/3@99", "1 row"),
    )
    [result] = asked(migrated)
    assert (result.hops, result.level) == (expected, "info")


def test_what_workflows_refused_of_a_delivery_is_told_after_what_became_of_it(migrated: str):
    of_rule = {"event_id": "e1", "rule": "review"}
    refused = dead_letter("instance_terminal", RECEIVED_AT_MS + 300, **of_rule)
    again = dead_letter("instance_terminal", RECEIVED_AT_MS + 400, **of_rule)
    partial = dead_letter("partial", event_id="e1")
    written(migrated, [outcome("e1"), refused, again, partial])
    [result] = asked(migrated)
    assert [one.stage for one in result.hops] == [
        "received", "admitted", "normalized", "effect_failed",
    ]  # fmt: skip
    expected = hop("effect_failed", 300, "dead-letters/0@0", "instance_terminal: ")
    assert result.hops[-1] == expected
    assert result.level == "info"


#: What becomes of a delivery in turn; the clock of the worker that ends the wait is behind.
WAITS = outcome("e1", status="parked", reason="why", parked_at_ms=AT_MS, at_ms=AT_MS)
ENDS = outcome("e1", parked_at_ms=AT_MS, released_at_ms=AT_MS - 5, at_ms=AT_MS - 5)
LATER = {"parked_at_ms": AT_MS + 900, "at_ms": AT_MS + 900, "position": "webhooks/3@99"}
WAITS_AGAIN = outcome("e1", status="parked", reason="why", **LATER)


@pytest.mark.parametrize(
    ("in_turn", "status", "earlier"),
    [
        ([WAITS, ENDS], "processed", []),
        ([outcome("e1", **DEAD), outcome("e1", **AGAIN)], "processed", ["dead"]),
        ([outcome("e1", **DEAD), WAITS_AGAIN], "parked", ["dead"]),
        ([WAITS, ENDS, WAITS_AGAIN], "parked", ["processed"]),
        ([outcome("e1", **DEAD), outcome("e1", **DEAD)], "dead", []),
    ],
)
@pytest.mark.parametrize("batches", ["one", "each"])
def test_outcomes_are_ordered_by_the_journey_and_not_by_their_arrival(
    migrated: str, in_turn: list[Written], status: str, earlier: list[str], batches: str
):
    for order in permutations(range(len(in_turn))):
        with psycopg.connect(migrated, autocommit=True) as connection:
            connection.execute("truncate webhook_outcomes, projection_offsets")
        arriving = [in_turn[at] for at in order]
        for some in [arriving] if batches == "one" else [[item] for item in arriving]:
            written(migrated, some)
        with psycopg.connect(migrated) as connection:
            result = connection.execute("select status, earlier from webhook_outcomes").fetchall()
        [(now, before)] = result
        assert (now, [item["status"] for item in before or ()]) == (status, earlier), order


def test_a_copy_ends_as_a_duplicate(migrated: str):
    written(migrated, [duplicate("r1")])
    [result] = asked(migrated, request_id="r1")
    assert result.hops == (
        hop("received", 0),
        hop("duplicate", 5, "webhooks/3@18", "of webhooks/3@17"),
    )
    assert (result.level, result.user_id) == ("info", None)


@pytest.mark.parametrize(
    ("changes", "stage", "detail"),
    [
        ({"code": "duplicate", "reason": "", "event_id": "e1"}, "duplicate", "of e1"),
        ({"code": "handshake", "reason": "", "detail": ""}, "handshake", ""),
        ({}, "refused", "invalid_signature:stale: expected another time"),
        ({"code": "body_timeout", "reason": ""}, "refused", "body_timeout: expected another time"),
    ],
)
def test_a_request_that_brought_nothing_new_has_a_journey_too(
    migrated: str, changes: dict[str, str], stage: str, detail: str
):
    written(migrated, [answer("r1", **changes), duplicate("r2")])
    [result] = asked(migrated, request_id="r1")
    moment = round(result.started_at.timestamp() * 1000)
    assert result.hops == (Hop("received", moment, "", ""), Hop(stage, moment, "", detail))
    assert (result.event_id, result.level) == (changes.get("event_id", ""), "info")
    assert len(asked(migrated)) == 2


def test_a_delivery_comes_before_a_copy_that_the_same_request_brought(migrated: str):
    written(migrated, [duplicate("req-e1"), outcome("e1")])
    stages = [one.hops[-1].stage for one in asked(migrated, request_id="req-e1")]
    assert stages == ["normalized", "duplicate"]


def test_the_newest_come_first_whatever_became_of_them(migrated: str):
    records = [
        outcome("e1", received_at_ms=RECEIVED_AT_MS + 1),
        duplicate("r2", received_at_ms=RECEIVED_AT_MS + 2),
        outcome("e3", received_at_ms=RECEIVED_AT_MS + 3, status="dead", reason="why"),
        outcome("e4", received_at_ms=RECEIVED_AT_MS + 4, user_id=None),
    ]
    written(migrated, records)
    for named, expected in (
        ({}, ["req-e4", "req-e3", "r2", "req-e1"]),
        ({"user_id": "user_1"}, ["req-e3", "req-e1"]),
        ({"level": "info"}, ["req-e4", "r2", "req-e1"]),
        ({"level": "error"}, ["req-e3"]),
        ({"level": "error", "user_id": "user_1"}, ["req-e3"]),
        ({"level": "unheard of"}, []),
    ):
        assert [one.request_id for one in asked(migrated, **named)] == expected, named
    assert len(asked(migrated, limit=2)) == 2


def test_journeys_are_found_by_index_among_many(migrated: str):
    with psycopg.connect(migrated, autocommit=True, row_factory=dict_row) as connection:
        _fill(connection)
        for named, indexes in (
            (
                {"request_id": "r5"},
                ["webhook_outcomes_request", "duplicates_pkey", "request_answers_pkey"],
            ),
            ({}, ["webhook_outcomes_received", "duplicates_received", "request_answers_at"]),
            ({"level": "info"}, ["webhook_outcomes_received", "duplicates_received"]),
            ({"level": "error"}, ["webhook_outcomes_dead"]),
            ({"user_id": "user_5"}, ["webhook_outcomes_user"]),
            ({"user_id": "user_5", "level": "info"}, ["webhook_outcomes_user"]),
        ):
            names = {"request_id": None, "user_id": None, "level": None, "event_ids": (), **named}
            query = _traces_query(**names)
            assert query is not None
            explained = connection.execute(
                b"explain (analyze, timing off) " + query,
                {**names, "event_ids": [], "limit": 20},
            )
            plan = "\n".join(row["QUERY PLAN"] for row in explained.fetchall())
            assert "Seq Scan" not in plan, plan
            for index in indexes:
                assert re.search(rf"using {index}\s|on {index}\s", plan), plan
            # The nodes that read also make the hops: of little more than what is returned.
            rows = [int(n) for n in re.findall(r"Scan.*actual rows=(\d+)", plan)]
            assert max(rows) <= 100, plan


def _fill(connection: "psycopg.Connection[dict[str, str]]") -> None:
    outcomes = """
        insert into webhook_outcomes
        select 'e' || n, 'r' || n, 'terra', 'daily', 's', 'user_' || n %% 100,
               case when n %% 50 = 0 then 'dead' else 'processed' end, '', 1, 0, null, 0,
               0, n, moment, moment, null, null, moment, 'normalize', ''
        from generate_series(1, %(rows)s) n, to_timestamp(1767225600 + n / 10) moment
    """
    duplicates = """
        insert into duplicates
        select 'd' || n, 'e' || n, 0, n, n - 1, moment, moment
        from generate_series(1, %(rows)s) n, to_timestamp(1767225600 + n / 10) moment
    """
    answers = """
        insert into request_answers
        select 'a' || n, 'terra', 'duplicate', '', '', 'e' || n, 0, '', 0, moment
        from generate_series(1, %(rows)s) n, to_timestamp(1767225600 + n / 10) moment
    """
    connection.execute(answers, {"rows": ROWS})
    connection.execute(outcomes, {"rows": ROWS})
    connection.execute(duplicates, {"rows": ROWS})
    connection.execute("analyze")
