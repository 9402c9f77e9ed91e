"""Who is connected, and what is still to be posted: what the stand-in knows, in SQLite.

Terra forgets nothing that it has taken, so neither does its stand-in, whenever it dies: given a
file, it goes on from there.
"""

import sqlite3
from collections.abc import Iterable
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
    """A connection; `as_user` is how Terra shows it."""

    user_id: str
    provider: str
    reference_id: str | None
    scopes: str
    created_at: str

    def as_user(self, *, active: bool = True) -> dict[str, Any]:
        """The `user` of answers and deliveries."""
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
    """Something to be posted: a body as it is, or a chunk of made data, which is made then.

    Shape:  reference is that of the request; chunk is (type, user id, first day, last day).
    """

    reference: str
    body: dict[str, Any] | None = None
    chunk: tuple[str, str, str, str] | None = None


class Due(msgspec.Struct, frozen=True):
    """A post whose time has come, and how often it was tried."""

    id: int
    attempts: int
    post: Post


class People:
    """What the stand-in knows."""

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
        """Closes the file."""
        self._db.close()

    # -- connections

    def connect(self, people: Iterable[Person]) -> None:
        """Adds connections, or has them again."""
        rows = [msgspec.structs.astuple(each) for each in people]
        with self._transaction():
            self._db.executemany("insert or replace into people values (?, ?, ?, ?, ?)", rows)

    def remove(self, user_id: str) -> None:
        """Forgets a connection."""
        self._db.execute("delete from people where user_id = ?", (user_id,))

    def person(self, user_id: str) -> Person | None:
        """A connection."""
        row = self._db.execute("select * from people where user_id = ?", (user_id,)).fetchone()
        return None if row is None else Person(*row)

    def page(self, limit: int, offset: int) -> list[Person]:
        """Connections, in the order of their ids."""
        query = "select * from people order by user_id limit ? offset ?"
        return [Person(*row) for row in self._db.execute(query, (limit, offset))]

    def of_reference(self, reference_id: str) -> list[Person]:
        """The connections of one of somebody's users."""
        query = "select * from people where reference_id = ? order by user_id"
        return [Person(*row) for row in self._db.execute(query, (reference_id,))]

    def number(self) -> int:
        """How many connections there are."""
        (found,) = self._db.execute("select count(*) from people").fetchone()
        return int(found)

    # -- widget sessions

    def begin_session(self, session_id: str, wanted: dict[str, Any]) -> None:
        """Keeps what a session was asked for."""
        self._db.execute(
            "insert or replace into sessions values (?, ?)",
            (session_id, msgspec.json.encode(wanted).decode()),
        )

    def session(self, session_id: str) -> dict[str, Any] | None:
        """What a session was asked for."""
        query = "select wanted from sessions where id = ?"
        row = self._db.execute(query, (session_id,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    # -- posts

    def post(self, posts: Iterable[Post], due_ms: int) -> None:
        """Adds posts that are due at a time."""
        rows = [(due_ms, msgspec.json.encode(each).decode()) for each in posts]
        with self._transaction():
            self._db.executemany("insert into posts (due_ms, what) values (?, ?)", rows)

    def due(self, now_ms: int, limit: int) -> list[Due]:
        """Posts whose time has come, the oldest first."""
        query = "select id, attempts, what from posts where due_ms <= ? order by due_ms, id limit ?"
        return [
            Due(id_, attempts, msgspec.json.decode(what, type=Post))
            for id_, attempts, what in self._db.execute(query, (now_ms, limit))
        ]

    def posted(self, id_: int) -> None:
        """Forgets a post that was taken."""
        self._db.execute("delete from posts where id = ?", (id_,))

    def put_off(self, id_: int, due_ms: int) -> None:
        """Tries a post again later."""
        update = "update posts set attempts = attempts + 1, due_ms = ? where id = ?"
        self._db.execute(update, (due_ms, id_))

    def waiting(self) -> int:
        """How many posts are to be made."""
        (found,) = self._db.execute("select count(*) from posts").fetchone()
        return int(found)

    # -- counts

    def count(self, name: str) -> int:
        """Counts something once more; gives its number."""
        upsert = (
            "insert into counts values (?, 1) on conflict (name) do update set number = number + 1 "
            "returning number"
        )
        (found,) = self._db.execute(upsert, (name,)).fetchone()
        return int(found)

    def counts(self) -> dict[str, int]:
        """Everything that was counted."""
        return dict(self._db.execute("select name, number from counts order by name"))

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("begin")
        return self._db
