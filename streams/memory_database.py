"""The database of the harness: SQLite in memory, spoken to as to Postgres."""

import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from processors.replay.commands import StepReturned
from schemas.history import Failure

_PARAMETER: Final = re.compile(r"%(s|%)")


class MemoryDatabase:
    """A real database, for the length of a test."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    def close(self) -> None:
        """Forgets everything."""
        self._connection.close()

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        """Runs a statement and gives its rows; `%s` stands for a parameter."""
        return self._connection.execute(_own(sql), tuple(params)).fetchall()

    def commit(self, returned: StepReturned) -> Failure | None:
        """Runs the statements of a step in one transaction."""
        self._connection.execute("begin")
        try:
            for sql, params in returned.statements:
                self._connection.execute(_own(sql), tuple(json.loads(params)))
        except sqlite3.Error as error:
            self._connection.execute("rollback")
            return Failure(_name(error), str(error))
        self._connection.execute("commit")
        return None


def _own(sql: str) -> str:
    return _PARAMETER.sub(lambda found: "?" if found[1] == "s" else "%", sql)


def _name(error: sqlite3.Error) -> str:
    unique = isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in str(error)
    return "UniqueConstraintError" if unique else type(error).__name__
