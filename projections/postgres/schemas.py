"""The Postgres schemas of Headwater, and connections that search only its own.

Headwater's tables are in `headwater`, where only the migrating login can create objects. Authors'
tables are in `authors`, where the SQL of steps can create objects, too. A function there could
shadow one that Headwater calls without a schema, so no connection of Headwater has `authors` or
`public` in its search path.
"""

from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

__all__ = ["AUTHORS", "HEADWATER", "own_dsn", "with_search_path", "with_settings"]

HEADWATER: Final = "headwater"
AUTHORS: Final = "authors"


def own_dsn(dsn: str, *first: str) -> str:
    """Return a DSN whose sessions find only Headwater's objects.

    Postgres searches `pg_catalog` first implicitly; it must not be named, because if `headwater` is
    missing, a session would create objects there.

    Args:
        dsn: As operators write it; a search path in its options has no effect.
        first: Schemas of Headwater to search before `headwater`.
    """
    return with_search_path(dsn, *first, HEADWATER)


def with_search_path(dsn: str, *schemas: str) -> str:
    """Return a DSN whose sessions search these schemas."""
    return with_settings(dsn, search_path=",".join(schemas))


def with_settings(dsn: str, **settings: str) -> str:
    """Return a DSN whose sessions have these settings, also after `reset all`.

    Args:
        dsn: As operators write it. An invalid one comes back unchanged: connecting reports it.
        settings: Values without spaces. They win over those of the DSN, the role and the database.
    """
    try:
        options = conninfo_to_dict(dsn).get("options") or ""
    except psycopg.ProgrammingError:
        return dsn
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return make_conninfo(dsn, options=f"{options} {ours}".lstrip())
