"""What authors may rely on for the SQL of their steps: the contract of every database of steps.

Whoever runs it gives the fixture `run`, which runs a scenario in a place with a table of its own.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import pytest

from headwater.processors.runs.decisions import Reached, RetryPolicy, StepReturned
from headwater.schemas.history import Failure
from headwater.streams.authoring.step_tx import sql_parameters

TABLE = "CREATE TABLE charges (id TEXT PRIMARY KEY, amount BIGINT, note TEXT, CHECK (amount < 900))"
INSERT = "INSERT INTO charges (id, amount) VALUES (%s, %s)"
POLICY = RetryPolicy(5, 1_000, "exponential")


def returned(
    *statements: Sequence[Any], step: str = "save", attempt: int = 1, result: str = '"saved"'
) -> StepReturned:
    """A step that has returned; statements are SQL and its parameters, as authors write them."""
    reached = Reached(step, step.rpartition("/")[2], 1, 1_783_000_000_000, 6, 60_000)
    texts = tuple((sql, sql_parameters(*params or [()])) for sql, *params in statements)
    return StepReturned(reached, attempt, POLICY, result, statements=texts)


class Place(Protocol):
    """A database with the table `charges`, which is empty."""

    async def run(self, *statements: Sequence[Any]) -> Failure | None:
        """Has a new step end with these statements."""

    async def rows(self, columns: str = "id, amount") -> list[tuple[Any, ...]]:
        """What the table holds, by id."""


Scenario: TypeAlias = Callable[[Place], Awaitable[None]]
Run: TypeAlias = Callable[[Scenario], None]

REFUSED = [
    "SET LOCAL ROLE postgres",
    "set /* who */ local session authorization default",
    "COMMIT",
    "commit and chain",
    "  ; Rollback",
    "-- a remark\n\tEND",
    "-- another\rABORT",
    "/* one /* within */ another */ BEGIN",
    "/**/START TRANSACTION",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "RELEASE a",
    "PREPARE TRANSACTION 'a'",
    "SET search_path = elsewhere",
    "set session authorization somebody",
    "RESET ALL",
    "DISCARD ALL",
    "LISTEN charges",
    "COPY charges FROM STDIN",
]


class StepSqlContract:
    def test_statements_take_effect_in_order(self, run: Run):
        async def scenario(place: Place) -> None:
            failure = await place.run(
                (INSERT, ("a", 1)),
                ("UPDATE charges SET amount = amount + %s WHERE id = %s", (41, "a")),
                (INSERT, ("b", 2)),
            )
            assert failure is None
            assert await place.rows() == [("a", 42), ("b", 2)]

        run(scenario)

    @pytest.mark.parametrize(
        "wrong",
        [
            ("INSERT INTO no_such_table VALUES (1)",),
            ("INSERT INTO charges (id, amount) VALUES ('c', 901)",),
            ("SELEKT 1",),
            (INSERT, ("c",)),
            (INSERT, ("c", 3, "one too many")),
            ("INSERT INTO charges (id, amount) VALUES ('c', 3); DELETE FROM charges",),
            (INSERT, ("a lone surrogate \ud800", 3)),
            ("INSERT INTO charges (id, amount) VALUES (?, ?)", ("c", 3)),
            ("INSERT INTO charges (id, amount) VALUES (%s, ?)", ("c", 3)),
            ("INSERT INTO charges (id, amount) VALUES (:a, :b)", {"a": "c", "b": 3}),
            ("INSERT INTO charges (id, amount) VALUES (%(a)s, %(b)s)", {"a": "c"}),
            ("INSERT INTO charges (id, amount) VALUES (%(a)s, %(b)s)", ("c", 3)),
            (INSERT, {"a": "c", "b": 3}),
            ("INSERT INTO charges (id, amount) VALUES (%(a)s, %s)", {"a": "c", "b": 3}),
            ("INSERT INTO charges (id) VALUES ('%s')", ("c",)),
            ("INSERT INTO charges (id, amount) VALUES ('100%', %s)", (3,)),
        ],
    )
    def test_nothing_of_a_step_takes_effect_whose_sql_fails(self, run: Run, wrong: Sequence[Any]):
        async def scenario(place: Place) -> None:
            failure = await place.run((INSERT, ("a", 1)), wrong, (INSERT, ("b", 2)))
            assert failure is not None
            assert failure.name not in ("", "UniqueConstraintError")
            assert failure.message
            assert await place.rows() == []
            assert await place.run((INSERT, ("a", 1))) is None
            assert await place.rows() == [("a", 1)]

        run(scenario)

    def test_a_unique_violation_has_a_name_of_its_own(self, run: Run):
        async def scenario(place: Place) -> None:
            assert await place.run((INSERT, ("a", 1))) is None
            failure = await place.run((INSERT, ("b", 2)), (INSERT, ("a", 3)))
            assert failure is not None
            assert failure.name == "UniqueConstraintError"
            assert "charges" in failure.message
            assert await place.rows() == [("a", 1)]

        run(scenario)

    @pytest.mark.parametrize("sql", REFUSED)
    def test_sql_that_would_outlive_or_end_the_transaction_is_refused(self, run: Run, sql: str):
        async def scenario(place: Place) -> None:
            failure = await place.run((INSERT, ("a", 1)), (sql,), (INSERT, ("b", 2)))
            assert failure is not None
            assert failure.name == "StatementRefusedError"
            assert "statement 2" in failure.message
            assert await place.rows() == []

        run(scenario)

    def test_names_and_remarks_may_say_what_statements_may_not(self, run: Run):
        async def scenario(place: Place) -> None:
            failure = await place.run(
                ("-- COMMIT\nINSERT INTO charges (id) VALUES ('COMMIT')",),
                ("/* ROLLBACK */ UPDATE charges SET note = 'a; ROLLBACK; b'",),
            )
            assert failure is None
            assert await place.rows("id, note") == [("COMMIT", "a; ROLLBACK; b")]

        run(scenario)

    def test_parameters_arrive_as_they_were(self, run: Run):
        async def scenario(place: Place) -> None:
            texts = {
                "a": 'it\'s 100% "quoted" \\ and %s',
                "b": None,
                "c": "2026-01-01T00:00:00+00:00",
                "d": "Grüße, 世界 🎉",
                "e": "",
            }
            insert = "INSERT INTO charges (id, note) VALUES (%s, %s)"
            assert await place.run(*((insert, (key, text)) for key, text in texts.items())) is None
            assert dict(await place.rows("id, note")) == texts
            assert await place.run((INSERT, ("f", -(2**40)))) is None
            assert (await place.rows())[-1] == ("f", -(2**40))

        run(scenario)

    def test_parameters_may_have_names(self, run: Run):
        async def scenario(place: Place) -> None:
            sql = "INSERT INTO charges (id, amount, note) VALUES (%(id)s, %(n)s, %(id)s || '100%%')"
            assert await place.run((sql, {"n": 1, "id": "a", "more": [1]})) is None
            assert await place.rows("id, amount, note") == [("a", 1, "a100%")]

        run(scenario)

    def test_an_object_is_its_json_text(self, run: Run):
        async def scenario(place: Place) -> None:
            value = {"size": [1, 2.5, None], "name": "Ä"}
            sql = "INSERT INTO charges (id, note) VALUES (%s, %s)"
            assert await place.run((sql, ("a", value))) is None
            ((note,),) = await place.rows("note")
            assert json.loads(note) == value

        run(scenario)

    def test_with_parameters_a_percent_sign_is_doubled_and_without_it_is_not(self, run: Run):
        async def scenario(place: Place) -> None:
            sql = "INSERT INTO charges (id, note) VALUES (%s, '100%%')"
            assert await place.run((sql, ("a",))) is None
            plain = "INSERT INTO charges (id, note) VALUES ('b', '100% %s')"
            assert await place.run((plain,)) is None
            assert await place.rows("id, note") == [("a", "100%"), ("b", "100% %s")]

        run(scenario)

    def test_a_step_may_read_or_say_nothing(self, run: Run):
        async def scenario(place: Place) -> None:
            assert await place.run(("SELECT * FROM charges WHERE id = %s", ("a",)), ("",)) is None
            assert await place.rows() == []

        run(scenario)
