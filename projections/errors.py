"""Errors of reading and writing projections, and the translation of psycopg's errors."""

import contextlib
from collections.abc import Iterator
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout, TooManyRequests

from headwater.schemas.errors import Disposition, HeadwaterError, StoreUnavailable

#: SQLSTATE classes for bad parameters: invalid data, a violated constraint, a value beyond the
#: server's limits. The same statement may succeed without that value.
_REFUSALS: Final = ("21", "22", "23", "54")
#: A missing table or column: the database is older than this release.
_NOT_MIGRATED: Final = ("3F000", "42P01", "42703", "42883")
#: Classes of temporary errors: lost connections, serialization failures and deadlocks, missing
#: resources, shutdowns, and 25, a server that became read-only or ended an idle transaction.
_OUTAGES: Final = ("08", "25", "40", "53", "55", "57", "58")


class InvalidCursor(HeadwaterError):
    """A cursor that was not issued by an earlier page."""

    disposition = Disposition.REJECT
    code = "invalid_cursor"


class CursorExpired(HeadwaterError):
    """A cursor of another database; start again without one."""

    disposition = Disposition.REJECT
    code = "cursor_expired"


class MigrationChanged(HeadwaterError):
    """An applied migration has a file that was changed since."""

    disposition = Disposition.HALT
    code = "migration_changed"


class TableUnfit(HeadwaterError):
    """A table has the name of a declared one but other columns."""

    disposition = Disposition.HALT
    code = "table_unfit"


class SchemaTaken(HeadwaterError):
    """A schema with tables of another program, or of another project."""

    disposition = Disposition.HALT
    code = "schema_taken"


class DatabaseTooNew(HeadwaterError):
    """A database that a newer release has migrated."""

    disposition = Disposition.HALT
    code = "database_too_new"


class ExportRefused(HeadwaterError):
    """A table or column that does not exist or may not be read."""

    disposition = Disposition.REJECT
    code = "export_refused"


class LogTruncated(HeadwaterError):
    """A topic that ends before the applied offset of a projection."""

    disposition = Disposition.HALT
    code = "log_truncated"


class BatchTooSlow(HeadwaterError):
    """A batch that Postgres did not apply in time; a smaller one may be."""

    disposition = StoreUnavailable.disposition
    code = "batch_too_slow"


class RecordRefused(HeadwaterError):
    """Postgres rejects a value of a batch."""

    disposition = Disposition.DEAD_LETTER
    code = "record_refused"


@contextlib.contextmanager
def store_edge(what: str) -> Iterator[None]:
    """Translate psycopg's errors to StoreUnavailable (temporary) or RecordRefused (bad values).

    Other errors of psycopg (a syntax error, a missing privilege) are bugs or problems of the
    installation and pass through.
    """
    try:
        yield
    except (PoolTimeout, TooManyRequests, TimeoutError, OSError) as error:
        raise StoreUnavailable(_message(what, error)) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        # psycopg itself rejects NUL in a text before sending it.
        if state.startswith(_REFUSALS) or isinstance(error, psycopg.DataError):
            raise RecordRefused(_message(what, error)) from error
        if state in _NOT_MIGRATED:
            missing = f"{_message(what, error)}; usual cause: a database before `headwater migrate`"
            raise StoreUnavailable(missing) from error
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if state.startswith(_OUTAGES) or (lost and not state):
            raise StoreUnavailable(_message(what, error)) from error
        raise


def _message(what: str, error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"expected Postgres to {what}, found: {text}"
