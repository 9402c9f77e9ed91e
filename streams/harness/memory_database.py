"""The database of the harness: SQLite in memory, spoken to as to Postgres."""

import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.processors.runs.step_commits import refusal
from headwater.schemas.failures import UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure
from headwater.streams.engine.step_database import failed

_PERCENT: Final = re.compile(r"%(.?)", re.DOTALL)
_MEANINGS: Final = {"s": "?", "%": "%"}


class MemoryDatabase:
    """A real database, for the length of a test."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    def close(self) -> None:
        """Forgets everything."""
        self._connection.close()

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        """Runs a statement and gives its rows; `%s` stands for a parameter."""
        return self._run(sql, params).fetchall()

    def commit(self, returned: StepReturned) -> Failure | None:
        """Runs the statements of a step in one transaction."""
        refused = refusal(returned)
        if refused is not None:
            return refused
        self._connection.execute("begin")
        try:
            for sql, params in returned.statements:
                self._run(sql, json.loads(params))
            self._connection.execute("commit")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            return Failure(_name(error), str(error))
        return None

    def outcome(self, returned: StepReturned) -> StepReturned | StepRaised:
        """What becomes of a step, with its statements."""
        failure = self.commit(returned)
        return returned if failure is None else failed(returned, failure)

    def _run(self, sql: str, params: Sequence[Any]) -> sqlite3.Cursor:
        # Without parameters a percent sign means itself, as psycopg has it.
        if not params:
            return self._connection.execute(sql)
        values = [json.dumps(each) if isinstance(each, dict) else each for each in params]
        return self._connection.execute(_PERCENT.sub(_meaning, sql), values)


def _meaning(found: re.Match[str]) -> str:
    meaning = _MEANINGS.get(found[1])
    if meaning is None:
        raise sqlite3.ProgrammingError(
            f"expected %s or %% in SQL with parameters, found {found[0]}"
        )
    return meaning


def _name(error: Exception) -> str:
    unique = isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in str(error)
    return UNIQUE_CONSTRAINT if unique else type(error).__name__
