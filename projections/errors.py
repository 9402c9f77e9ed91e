"""The errors of reading and keeping projections, and the edge at which psycopg's are translated."""

import contextlib
from collections.abc import Iterator
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout, TooManyRequests

from headwater.schemas.errors import Disposition, HeadwaterError, StoreUnavailable

#: SQLSTATE classes that blame what a statement was given: bad data, a violated constraint, a value
#: beyond the server's limits. The same statement without that value may well succeed.
_REFUSALS: Final = ("21", "22", "23", "54")
#: A table or column that is not there (yet): the database is older than this release.
_NOT_MIGRATED: Final = ("3F000", "42P01", "42703", "42883")
#: Classes that pass: lost connections, serialization and deadlocks, no resources, shutdowns,
#: and 25, a server that became read-only or gave up on an idle transaction of ours.
_OUTAGES: Final = ("08", "25", "40", "53", "55", "57", "58")


class InvalidCursor(HeadwaterError):
    """A cursor that no page of ours handed out."""

    disposition = Disposition.REJECT
    code = "invalid_cursor"


class CursorExpired(HeadwaterError):
    """A cursor of another database; start again without one."""

    disposition = Disposition.REJECT
    code = "cursor_expired"


class MigrationChanged(HeadwaterError):
    """An applied migration whose file is no longer what was applied."""

    disposition = Disposition.HALT
    code = "migration_changed"


class TableUnfit(HeadwaterError):
    """A table that an installed package declares is there and is another one."""

    disposition = Disposition.HALT
    code = "table_unfit"


class DatabaseTooNew(HeadwaterError):
    """A database that a newer release has migrated."""

    disposition = Disposition.HALT
    code = "database_too_new"


class ExportRefused(HeadwaterError):
    """A table that is not there, may not be read, or has no such column."""

    disposition = Disposition.REJECT
    code = "export_refused"


class LogTruncated(HeadwaterError):
    """A topic that ends before what the projection has already applied of it."""

    disposition = Disposition.HALT
    code = "log_truncated"


class BatchTooSlow(HeadwaterError):
    """A batch that Postgres did not apply in time; a smaller one may be in time."""

    disposition = StoreUnavailable.disposition
    code = "batch_too_slow"


class RecordRefused(HeadwaterError):
    """Postgres cannot take a value of a batch."""

    disposition = Disposition.DEAD_LETTER
    code = "record_refused"


@contextlib.contextmanager
def store_edge(what: str) -> Iterator[None]:
    """Translates psycopg's errors: StoreUnavailable for what passes, RecordRefused for bad values.

    Other errors of psycopg (a syntax error, a missing privilege) are faults of ours or of the
    installation and go through.
    """
    try:
        yield
    except (PoolTimeout, TooManyRequests, TimeoutError, OSError) as error:
        raise StoreUnavailable(_found(what, error)) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        # psycopg itself refuses NUL in a text, before the server could.
        if state.startswith(_REFUSALS) or isinstance(error, psycopg.DataError):
            raise RecordRefused(_found(what, error)) from error
        if state in _NOT_MIGRATED:
            missing = f"{_found(what, error)}; usual cause: a database before `headwater migrate`"
            raise StoreUnavailable(missing) from error
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if state.startswith(_OUTAGES) or (lost and not state):
            raise StoreUnavailable(_found(what, error)) from error
        raise


def _found(what: str, error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"expected Postgres to {what}, found: {text}"
