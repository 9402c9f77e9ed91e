"""Effects of steps in tests: SQL in an SQLite database in memory, and published records."""

import json
import re
import sqlite3
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from headwater.processors.code.host_messages import FromHost
from headwater.processors.runs.decisions import StepRaised, StepReturned
from headwater.processors.runs.host_messages import Requested
from headwater.processors.runs.step_commits import StepCommit, refusal, statement_name
from headwater.schemas.failures import UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure
from headwater.streams.authoring.step_tx import sql_parameters
from headwater.streams.engine.steps_with_sql import failed

#: Parameters of SQL, as an author passes them.
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

#: Matches a placeholder, with the name of its parameter, or another use of a percent sign.
_PERCENT: Final = re.compile(r"%(?:\(([^)]*)\))?(.?)", re.DOTALL)


class MemoryDatabase:
    """A real database for the duration of a test."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    def close(self) -> None:
        """Delete all data."""
        self._connection.close()

    def execute(self, sql: str, params: Parameters = ()) -> list[Any]:
        """Run a statement and return its rows.

        Raises:
            TypeError: A parameter has a type that a step may not use.
            ValueError: A parameter has a value that a step may not use.
            sqlite3.Error: The statement was refused.
        """
        return self._run(sql, json.loads(sql_parameters(params))).fetchall()

    def commit(self, returned: StepReturned) -> Failure | None:
        """Run the statements of a step in one transaction."""
        failure = refusal(returned)
        if failure is not None:
            return failure
        self._connection.execute("begin")
        what = "its transaction"
        try:
            for number, (sql, params) in enumerate(returned.statements, start=1):
                what = statement_name(returned, number)
                self._run(sql, json.loads(params))
            self._connection.execute("commit")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            return Failure(_name(error), f"expected {what} to take effect, found: {error}")
        return None

    def outcome(self, commit: StepCommit) -> StepReturned | StepRaised:
        """Run the statements of a step and return its outcome."""
        failure = self.commit(commit.returned)
        return commit.returned if failure is None else failed(commit, failure)

    def _run(self, sql: str, params: list[Any] | dict[str, Any]) -> sqlite3.Cursor:
        # Without parameters, a percent sign is not a placeholder, as in psycopg.
        if not params:
            return self._connection.execute(sql)
        statement, values = _for_sqlite(sql, params)
        return self._connection.execute(statement, [_parameter(value) for value in values])


def _for_sqlite(sql: str, params: list[Any] | dict[str, Any]) -> tuple[str, list[Any]]:
    """Return a statement with SQLite's placeholders, and its parameters in order.

    Raises:
        sqlite3.ProgrammingError: The placeholders do not match the parameters; psycopg refuses the
            same.
    """
    names: list[str | None] = []

    def placeholder(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if kind == "%" and name is None:
            return "%"
        if kind != "s" or (name is None) == isinstance(params, dict):
            expected = "%(name)s" if isinstance(params, dict) else "%s"
            raise sqlite3.ProgrammingError(
                f"expected {expected} or %% in SQL with such parameters, found {match[0]}"
            )
        names.append(name)
        return "?"

    statement = _PERCENT.sub(placeholder, sql)
    if isinstance(params, dict):
        missing = [name for name in names if name not in params]
        if missing:
            raise sqlite3.ProgrammingError(
                f"expected a parameter for each placeholder, found none named {missing[0]}"
            )
        return statement, [params[name or ""] for name in names]
    if len(names) != len(params):
        raise sqlite3.ProgrammingError(
            f"expected a placeholder %s for each parameter, found {len(names)} for {len(params)}"
        )
    return statement, params


def _parameter(value: object) -> object:
    if isinstance(value, list):
        raise sqlite3.ProgrammingError(
            "expected no list as a parameter in a test, because the database of tests has no "
            f"arrays, found {value!r:.80}"
        )
    return json.dumps(value) if isinstance(value, dict) else value


def _name(error: Exception) -> str:
    unique = isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in str(error)
    return UNIQUE_CONSTRAINT if unique else type(error).__name__


# -- published records

T = TypeVar("T")


class Published(NamedTuple):
    """A record that a step has published."""

    topic: str
    key: str | None
    value: Any


class Listed(list[T]):
    """A list that may also be awaited, like the corresponding results outside of tests."""

    def __await__(self) -> Generator[None, None, Self]:
        """Return the list."""
        yield from ()
        return self


# -- check of topics


def check_topics(message: FromHost, topics: Collection[str] | None) -> FromHost:
    """Return the message, or a failure of its step if it publishes to a topic not in `topics`.

    Outside of a test, the record would wait for its topic.
    """
    returned = message.request if isinstance(message, Requested) else None
    if topics is None or not isinstance(returned, StepReturned) or returned.rollback:
        return message
    unknown = [post.topic for post in returned.posts if post.topic and post.topic not in topics]
    if not unknown:
        return message
    failure = Failure(
        "TopicNotFound",
        f"expected one of the topics of this test, {', '.join(sorted(topics)) or 'none'}, found "
        f"{unknown[0]!r}; outside of tests the record would wait until there is such a topic",
    )
    raised = StepRaised(returned.step, returned.attempt, failure, returned.policy, retryable=False)
    return msgspec.structs.replace(message, request=raised)
