"""`headwater sync`: a local SQLite copy of the tables, kept up to date by cursor."""

import json
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from headwater.gateway.cli.api import Api, explained, readable_errors
from headwater.gateway.cli.options import examples, settings_from, url_option
from headwater.gateway.cli.output import say
from headwater.gateway.cli.results import Columns, Result, prints
from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import HttpAnswer
from headwater.gateway.client.transport import retry_after
from headwater.gateway.settings.addresses import url_of
from headwater.processors.wipes import digest
from headwater.projections.postgres import wide_view
from headwater.schemas.failures import ClientError
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.tables import BIOMARKERS, DAILY_SUMMARY, Table

if TYPE_CHECKING:
    from headwater.gateway.client.answers import StreamItem

#: Rows of a page: some hundred kilobytes of JSON, a fraction of a second on either side.
PAGE_ROWS: Final = 1000

#: Attempts in all. With waits of 0.5, 1, 2, 4 and 8 s they outlast a restart of any process.
ATTEMPTS_MAX: Final = 6
_FIRST_WAIT_S: Final = 0.5
#: Wait before a stream is opened again.
_REOPEN_S: Final = 1.0
#: A server may name a longer wait than a person at a terminal wants.
_LONGEST_WAIT_S: Final = 30.0

_TRANSIENT: Final = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)

_SQLITE_TYPES: Final[Mapping[type, str]] = {
    str: "TEXT",
    int: "INTEGER",
    float: "REAL",
    bool: "INTEGER",
}
#: Column of a row that represents all rows of a wiped user: the digest of the user id.
_WIPED: Final = "user_sha256"
#: Sends a GET request to a path, with query parameters; raises ClickException without an answer.
Fetch: TypeAlias = Callable[..., HttpAnswer]
_CURSOR_TABLE: Final = "headwater_cursor"


class SyncFailed(click.ClickException):
    """The copy could not be brought up to date; the message is one line."""


class SyncUnavailable(SyncFailed):
    """The server did not answer, or could not, in all attempts."""


class CursorExpired(Exception):
    """The server no longer knows what changed since the cursor; the copy has to start over."""


class Mirror:
    """A SQLite file that follows `/v1/sync`.

    Rows and their cursor are written in one transaction, so an interrupted copy resumes, and a
    repeated one changes nothing. Rows are written and deleted by primary key.
    """

    def __init__(
        self,
        database: Path,
        fetch: Fetch,
        *,
        report: Callable[[str], None],
        sleep: Callable[[float], None],
        table: str | None = None,
    ) -> None:
        self._path = database
        self._fetch = fetch
        self._report = report
        self._sleep = sleep
        #: The only table that is copied; None for all.
        self._table = table

    def sync(self, since: str | None = None) -> dict[str, int]:
        """Copy what changed; return the number of rows written and deleted, by table.

        Args:
            since: RFC 3339; limits a first copy. A file that has a cursor continues from it.

        Raises:
            SyncFailed: The copy could not be brought up to date.
        """
        try:
            with closing(sqlite3.connect(self._path)) as database:
                return self._sync(database, since)
        except sqlite3.Error as error:
            raise SyncFailed(f"expected a SQLite file at {self._path}, found: {error}") from error

    def _sync(self, database: sqlite3.Connection, since: str | None) -> dict[str, int]:
        names = [self._table] if self._table else list(TABLE_BY_NAME)
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {_CURSOR_TABLE}"
            " (of TEXT PRIMARY KEY, cursor TEXT NOT NULL)"
        )
        for table in filter(None, map(TABLE_BY_NAME.get, names)):
            database.execute(sqlite_table(table))  # Empty tables too, so that queries work.
        if BIOMARKERS.name in names:
            database.execute(f"DROP VIEW IF EXISTS {wide_view.NAME}")
            database.execute(wide_view.definition())
        cursor = self._cursor(database)
        written = dict.fromkeys(names, 0)
        from_scratch = False
        more = True
        while more:
            try:
                page = self._page(cursor, since)
            except CursorExpired:
                if cursor is None:
                    raise SyncFailed("the server refused to begin: cursor_expired") from None
                self._report("The cursor has expired on the server: starting over from scratch.")
                cursor, from_scratch = None, True
                continue
            cursor = page["cursor"]
            with database:
                if from_scratch:
                    _empty(database, names)
                    from_scratch = False
                for name, count in self._apply(database, page["tables"], cursor).items():
                    written[name] = written.get(name, 0) + count
            more = page["has_more"]
        return written

    def follow(self, stream: Callable[[str], Iterable["StreamItem[Any]"]]) -> None:
        """Copy what changes, from the cursor of the file on, until the stream ends.

        Args:
            stream: Opens the stream of `/v1/sync` after a cursor.

        Raises:
            SyncFailed: The file cannot be written.
            ClientError: The stream cannot be opened, or has ended.
        """
        try:
            with closing(sqlite3.connect(self._path)) as database:
                cursor = self._cursor(database) or ""
                tables: dict[str, list[dict[str, Any]]] = {}
                for item in stream(cursor):
                    change = item.data
                    row = change.get("row") or {"deleted": True, **change["key"]}
                    tables.setdefault(change["table"], []).append(row)
                    # Only the last change of a page has an id.
                    if item.id != cursor:
                        cursor = item.id
                        with database:
                            written = self._apply(database, tables, cursor)
                        self._report(", ".join(f"{name} {n}" for name, n in written.items()))
                        tables = {}
        except sqlite3.Error as error:
            raise SyncFailed(f"expected a SQLite file at {self._path}, found: {error}") from error

    @property
    def _scope(self) -> str:
        """All tables together have one cursor; a table that is copied alone has its own."""
        return self._table or ""

    def _cursor(self, database: sqlite3.Connection) -> str | None:
        row = database.execute(
            f"SELECT cursor FROM {_CURSOR_TABLE} WHERE of = ?",  # noqa: S608 (a constant)
            (self._scope,),
        ).fetchone()
        return row[0] if row else None

    def _apply(
        self, database: sqlite3.Connection, tables: Mapping[str, Any], cursor: str
    ) -> dict[str, int]:
        """Write a page and its cursor; return the number of rows by table."""
        written = {name: self._write(database, name, rows) for name, rows in tables.items()}
        database.execute(
            f"INSERT INTO {_CURSOR_TABLE} VALUES (?, ?)"  # noqa: S608 (a constant)
            " ON CONFLICT (of) DO UPDATE SET cursor = excluded.cursor",
            (self._scope, cursor),
        )
        return written

    def _page(self, cursor: str | None, since: str | None) -> dict[str, Any]:
        parameters: dict[str, str | int] = {"limit": PAGE_ROWS}
        if self._table is not None:
            parameters["table"] = self._table
        if cursor is not None:
            parameters["cursor"] = cursor
        elif since is not None:
            parameters["since"] = since
        answer = self._get(parameters)
        if answer.ok:
            page: dict[str, Any] = value_of(answer, dict)
            return page
        problem = answer.problem
        if problem.get("code") == "cursor_expired":
            raise CursorExpired
        failure = SyncUnavailable if answer.status in _TRANSIENT else SyncFailed
        raise failure(
            f"{answer.url} answered {answer.status} {problem.get('code', '')}: "
            f"{problem.get('detail') or answer.body[:200].decode(errors='replace')}"
        )

    def _get(self, parameters: Mapping[str, str | int]) -> HttpAnswer:
        """Request until the answer is no temporary failure, or all attempts are used up."""
        wait_s, problem = _FIRST_WAIT_S, "nothing"
        for attempt in range(1, ATTEMPTS_MAX + 1):
            retry_after_s = 0.0
            try:
                answer = self._fetch("/v1/sync", **parameters)
            except click.ClickException as error:
                problem = error.message
            else:
                if answer.status not in _TRANSIENT or attempt == ATTEMPTS_MAX:
                    return answer
                problem = f"{answer.url} answered {answer.status} {answer.problem.get('code', '')}"
                retry_after_s = retry_after(answer) or 0.0
            if attempt < ATTEMPTS_MAX:
                pause_s = min(max(wait_s, retry_after_s), _LONGEST_WAIT_S)
                self._report(f"{problem}; trying again in {pause_s:g} s")
                self._sleep(pause_s)
                wait_s *= 2
        raise SyncUnavailable(problem)

    def _write(
        self, database: sqlite3.Connection, name: str, rows: Sequence[Mapping[str, Any]]
    ) -> int:
        table = TABLE_BY_NAME.get(name)
        if table is None:
            self._report(f"{name}: not copied, this version of Headwater does not know the table")
            return 0
        if not rows:
            return 0
        deleted = [row for row in rows if row.get("deleted") is True]
        upserted = [row for row in rows if row.get("deleted") is not True]
        columns = list(dict.fromkeys(column for row in upserted for column in row))
        _prepare(database, table, columns)
        keys = [column.name for column in table.key]
        # Deletions first: a row that was deleted and written again is among the upserts.
        database.executemany(
            f"DELETE FROM {_quoted(name)} WHERE "  # noqa: S608 (quoted)
            + " AND ".join(f"{_quoted(key)} = ?" for key in keys),
            [tuple(_stored(row[key]) for key in keys) for row in deleted if _WIPED not in row],
        )
        self._wipe(database, table, {row[_WIPED] for row in deleted if _WIPED in row})
        if not upserted:
            return len(rows)
        changed = ", ".join(
            f"{_quoted(column)} = excluded.{_quoted(column)}"
            for column in columns
            if column not in keys
        )
        database.executemany(
            f"INSERT INTO {_quoted(name)} ({', '.join(map(_quoted, columns))})"  # noqa: S608 (quoted)
            f" VALUES ({', '.join('?' * len(columns))})"
            f" ON CONFLICT ({', '.join(map(_quoted, keys))})"
            f" DO {'UPDATE SET ' + changed if changed else 'NOTHING'}",
            [tuple(_stored(row.get(column)) for column in columns) for row in upserted],
        )
        return len(rows)

    def _wipe(self, database: sqlite3.Connection, table: Table, digests: AbstractSet[str]) -> None:
        """Delete all rows of wiped users, overwriting their bytes in the file."""
        if not digests:
            return
        database.execute("PRAGMA secure_delete = ON")
        users = database.execute(f"SELECT DISTINCT user_id FROM {_quoted(table.name)}").fetchall()  # noqa: S608 (quoted)
        database.executemany(
            f"DELETE FROM {_quoted(table.name)} WHERE user_id = ?",  # noqa: S608 (quoted)
            [user for user in users if user[0] is not None and digest(user[0]) in digests],
        )


def sqlite_table(table: Table) -> str:
    """Return the CREATE TABLE IF NOT EXISTS statement of a projection table's copy."""
    types = {column.name: _SQLITE_TYPES[column.type] for column in (*table.key, *table.columns)}
    computed = [
        *(column.name for column in table.generated),
        *(column.name for column in table.times),
    ]
    types |= dict.fromkeys([*computed, "updated_at"], "TEXT")
    declared = ", ".join(f"{_quoted(name)} {type_}" for name, type_ in types.items())
    keys = ", ".join(_quoted(column.name) for column in table.key)
    return f"CREATE TABLE IF NOT EXISTS {_quoted(table.name)} ({declared}, PRIMARY KEY ({keys}))"


def _prepare(database: sqlite3.Connection, table: Table, columns: Sequence[str]) -> None:
    """Create the table, and add columns that a newer server has."""
    database.execute(sqlite_table(table))
    present = {row[1] for row in database.execute(f"PRAGMA table_info({_quoted(table.name)})")}
    for name in columns:
        if name not in present:
            database.execute(f"ALTER TABLE {_quoted(table.name)} ADD COLUMN {_quoted(name)}")


def _empty(database: sqlite3.Connection, names: Iterable[str]) -> None:
    present = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    for name in present & set(names):
        database.execute(f"DELETE FROM {_quoted(name)}")  # noqa: S608 (quoted)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _stored(value: object) -> object:
    """Return a value as SQLite can store it: nested values become JSON text."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


# -- the command


@click.command(
    epilog=examples(
        "headwater sync --db headwater.sqlite",
        "headwater sync --db headwater.sqlite --since 2026-07-01T00:00:00Z",
        "headwater sync --db sleep.sqlite --table sleep_sessions",
        'headwater sync --db mine.sqlite --token "$(headwater token user_amara)"',
        "headwater sync --db headwater.sqlite --follow",
    )
)
@click.option(
    "--db",
    "database",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file; created if it does not exist.",
)
@click.option(
    "--since",
    metavar="RFC3339",
    help="For the first copy: only rows written at or after this time. Later copies continue.",
)
@click.option("--table", help="Only the rows of this table. Default: all tables.")
@click.option(
    "--follow", is_flag=True, help="Continue: copy changes within a second, until interrupted."
)
@click.option("--key", help="The readers' key. Default: HEADWATER_READ_KEY.")
@click.option("--token", help="A user's token, instead of the key: only this user's rows.")
@url_option
@prints
def sync(  # noqa: PLR0913, PLR0917 (one argument for each option)
    database: Path,
    since: str | None,
    table: str | None,
    follow: bool,
    key: str | None,
    token: str | None,
    url: str | None,
) -> Result:
    """Copy the rows into a SQLite file: everything at first, then changes.

    With --follow it does not end. After a lost connection it continues where it was.
    """
    from headwater.gateway.settings.settings import revealed  # noqa: PLC0415 (loads slowly)

    if key and token:
        raise click.UsageError("expected --key or --token, found both")
    settings = settings_from(read_key=key)
    bearer = f"Bearer {token or revealed(settings.read_key)[0]}"
    api = Api(url or url_of(settings), {"authorization": bearer})
    mirror = Mirror(database, api.exchange, report=say, sleep=time.sleep, table=table)
    with readable_errors():
        written = mirror.sync(since)
    if follow:
        _follow(mirror, api, table)
    rows = [{"table": name, "rows": count} for name, count in written.items()]
    query = shlex.quote(f"select * from {table or DAILY_SUMMARY.name} limit 5")  # noqa: S608 (shown)
    hints = [
        f"Query the copy: sqlite3 {shlex.quote(str(database))} {query}",
        "Run the same command again to bring it up to date.",
    ]
    return Result(answer=rows, tables=[Columns(("table", "rows")).table(rows)], hints=hints)


def _follow(mirror: Mirror, api: Api, table: str | None) -> None:
    """Copy what changes, until interrupted."""
    say("Following; interrupt to stop.")
    while True:
        try:
            mirror.follow(lambda cursor: api.follow("/v1/sync", cursor, table=table))
        except ClientError as error:
            say(f"{explained(error.code, error.detail)}; continuing")
        time.sleep(_REOPEN_S)
        try:
            # It starts over if the cursor has expired.
            mirror.sync()
        except SyncUnavailable as error:
            say(f"{error.message}; continuing")
