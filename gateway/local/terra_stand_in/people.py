"""Configuration of a stand-in, and its state in SQLite: connections, sessions, deliveries."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

_TABLES: Final = """
create table if not exists people (
    user_id text primary key, provider text not null, reference_id text, scopes text not null,
    created_at text not null
);
create table if not exists sessions (id text primary key, wanted text not null);
create table if not exists posts (
    id integer primary key, due_ms integer not null, attempts integer not null default 0,
    what text not null
);
create index if not exists posts_due on posts (due_ms);
create table if not exists counts (name text primary key, number integer not null);
"""


class Person(msgspec.Struct, frozen=True):
    """A connection; `as_user` returns Terra's representation."""

    user_id: str
    provider: str
    reference_id: str | None
    scopes: str
    created_at: str

    def as_user(self, *, active: bool = True) -> dict[str, Any]:
        """Return the `user` of responses and deliveries."""
        return {
            "user_id": self.user_id,
            "provider": self.provider,
            "last_webhook_update": None,
            "created_at": self.created_at,
            "scopes": self.scopes,
            "reference_id": self.reference_id,
            "active": active,
        }


class Post(msgspec.Struct, frozen=True):
    """A pending delivery: a body, or a chunk of data that is generated when it is sent.

    Attributes:
        reference: Reference of the request.
        body: The body.
        chunk: Type, user id, first day and last day.
    """

    reference: str
    body: dict[str, Any] | None = None
    chunk: tuple[str, str, str, str] | None = None


class Due(msgspec.Struct, frozen=True):
    """A delivery that is due, and its number of attempts."""

    id: int
    attempts: int
    post: Post


class People:
    """The state of the stand-in.

    Terra does not lose accepted requests. With a file, neither does the stand-in, even if it
    crashes.
    """

    def __init__(self, file: Path | None) -> None:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(file or ":memory:", isolation_level=None)
        try:
            self._db.executescript(_TABLES)
            if file is not None:
                self._db.execute("pragma journal_mode = wal")
        except sqlite3.Error:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # -- connections

    def connect(self, people: Iterable[Person]) -> None:
        """Add or replace connections."""
        rows = [msgspec.structs.astuple(person) for person in people]
        with self._transaction():
            self._db.executemany("insert or replace into people values (?, ?, ?, ?, ?)", rows)

    def remove(self, user_id: str) -> None:
        """Remove a connection."""
        self._db.execute("delete from people where user_id = ?", (user_id,))

    def person(self, user_id: str) -> Person | None:
        """Return a connection by its id."""
        row = self._db.execute("select * from people where user_id = ?", (user_id,)).fetchone()
        return None if row is None else Person(*row)

    def page(self, limit: int, offset: int) -> list[Person]:
        """Return a page of connections, in the order of their ids."""
        query = "select * from people order by user_id limit ? offset ?"
        return [Person(*row) for row in self._db.execute(query, (limit, offset))]

    def of_reference(self, reference_id: str) -> list[Person]:
        """Return the connections with a reference id."""
        query = "select * from people where reference_id = ? order by user_id"
        return [Person(*row) for row in self._db.execute(query, (reference_id,))]

    def number(self) -> int:
        """Return the number of connections."""
        (number,) = self._db.execute("select count(*) from people").fetchone()
        return int(number)

    # -- widget sessions

    def begin_session(self, session_id: str, options: dict[str, Any]) -> None:
        """Store the options of a session."""
        self._db.execute(
            "insert or replace into sessions values (?, ?)",
            (session_id, msgspec.json.encode(options).decode()),
        )

    def session(self, session_id: str) -> dict[str, Any] | None:
        """Return the options of a session."""
        query = "select wanted from sessions where id = ?"
        row = self._db.execute(query, (session_id,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    # -- posts

    def post(self, posts: Iterable[Post], due_ms: int) -> None:
        """Add deliveries that are due at a time, in Unix milliseconds."""
        rows = [(due_ms, msgspec.json.encode(post).decode()) for post in posts]
        with self._transaction():
            self._db.executemany("insert into posts (due_ms, what) values (?, ?)", rows)

    def due(self, now_ms: int, limit: int) -> list[Due]:
        """Return deliveries that are due, oldest first."""
        query = "select id, attempts, what from posts where due_ms <= ? order by due_ms, id limit ?"
        return [
            Due(id_, attempts, msgspec.json.decode(what, type=Post))
            for id_, attempts, what in self._db.execute(query, (now_ms, limit))
        ]

    def posted(self, id_: int) -> None:
        """Remove a delivery that was accepted."""
        self._db.execute("delete from posts where id = ?", (id_,))

    def put_off(self, id_: int, due_ms: int) -> None:
        """Postpone a delivery after a failed attempt."""
        update = "update posts set attempts = attempts + 1, due_ms = ? where id = ?"
        self._db.execute(update, (due_ms, id_))

    def waiting(self) -> int:
        """Return the number of pending deliveries."""
        (number,) = self._db.execute("select count(*) from posts").fetchone()
        return int(number)

    # -- counts

    def count(self, name: str) -> int:
        """Increment a counter; return its new value."""
        upsert = (
            "insert into counts values (?, 1) on conflict (name) do update set number = number + 1 "
            "returning number"
        )
        (number,) = self._db.execute(upsert, (name,)).fetchone()
        return int(number)

    def counts(self) -> dict[str, int]:
        """Return all counters."""
        return dict(self._db.execute("select name, number from counts order by name"))

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("begin")
        return self._db


# -- configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Configuration of a stand-in.

    Attributes:
        target: URL to post deliveries to.
        secret: Secret that signs deliveries.
        url: Own base URL.
        file: SQLite file for the state; None keeps it in memory.
        seed: Determines all generated data.
        data: Whether requested data is posted; if false, requests are only answered.
        widget_path: Path that starts a widget session.
        lab_field: Form field of an uploaded lab report.
        lab_shape: Format of lab reports: `typed`, or the older `untyped`.
        lab_delay_s: Seconds until the results of a lab report are posted.
        people: Connections that exist from the start.
    """

    target: str
    secret: str
    url: str
    file: Path | None = None
    seed: int = 1
    data: bool = True
    widget_path: str = "/auth/generateWidgetSession"
    lab_field: str = "files"
    lab_shape: str = "typed"
    lab_delay_s: float = 1.0
    people: tuple[Person, ...] = ()
