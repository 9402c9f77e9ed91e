"""All projection tables: those of Headwater, and those of installed packages.

A package adds tables by entry points of the group `headwater.tables`, named like the table:

    [project.entry-points."headwater.tables"]
    pushes = "headwater_github.tables:PUSHES"

They are loaded when this module is imported, because topics, schemas, SQL and synced data depend on
them. docs/providers.md explains how a table is declared, and how it may change.

Versions. Columns are only ever appended, so version n of a table's schema consists of its key and
its first n columns, and needs no file. Its id is a fingerprint of names and types: no registry
assigns it, and a column with a changed type results in another id, which no release reads.
"""

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from headwater.schemas.avro_schemas import IDS, row_schema_of, schema_text
from headwater.schemas.avro_types import Schema
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.tables import TABLES as BUILT_IN
from headwater.schemas.tables import UNSET, Table

GROUP: Final = "headwater.tables"
#: Ids from here on are fingerprints; the catalog counts from 1.
FINGERPRINTS: Final = 1 << 30

_NAME: Final = re.compile("[a-z][a-z0-9_]{0,54}")
_TOPIC: Final = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_STAMPS: Final = 3


class TableInvalid(HeadwaterError):
    """An invalid installed table; the message names its entry point."""

    disposition = Disposition.HALT
    code = "table_invalid"


def table_problem(table: Table) -> str | None:
    """Return what is wrong with a table's declaration, or None."""
    generated = (column.name for column in table.generated)
    names = (*table.key_names, *table.column_names, *generated)
    for expected, valid in (
        (f"a name such as github_pushes, found {table.name!r}", _NAME.fullmatch(table.name)),
        (f"a topic such as github-pushes, found {table.topic!r}", _TOPIC.fullmatch(table.topic)),
        ("a column user_id, found none", "user_id" in names),
        ("a key of text, found other types", all(part.type is str for part in table.key)),
        ("a key, found none", table.key),
        (f"1 to {UNSET - 1} columns, found {len(table.columns)}", 0 < len(table.columns) < UNSET),
    ):
        if not valid:
            return f"expected {expected}"
    return None


def versions_of(table: Table) -> Iterator[tuple[str, int, Schema]]:
    """Yield every version of a table's schema: its name, its id, and the schema."""
    schema = row_schema_of(table.kind)
    fields = schema["fields"]
    keys = len(table.key)
    for width in range(1, len(table.columns) + 1):
        prefix = [*fields[: keys + width], *fields[-_STAMPS:]]
        yield (
            f"{table.schema}.{width}",
            _fingerprint(table.schema, prefix),
            {**schema, "fields": prefix},
        )


def _fingerprint(name: str, fields: Iterable[Any]) -> int:
    """Return an id of 31 bits for the names and types of a schema, without its docs."""
    plain = json.dumps([name, [[field["name"], _plain(field["type"])] for field in fields]])
    return FINGERPRINTS | int.from_bytes(sha256(plain.encode()).digest()[:4], "big") >> 2


def _plain(type_: Any) -> Any:  # noqa: ANN401, JSON
    if isinstance(type_, list):
        return [_plain(item) for item in type_]
    if isinstance(type_, dict):
        return {name: _plain(type_[name]) for name in sorted(type_) if name != "doc"}
    return type_


def _load(point: EntryPoint) -> Table:
    where = f"entry point {point.name} = {point.value} of {GROUP}"
    try:
        table = point.load()
    except Exception as error:
        raise TableInvalid(f"{where}: expected a table, found {error!r}") from error
    if not isinstance(table, Table) or table.name != point.name:
        raise TableInvalid(f"{where}: expected a table of that name, found {table!r:.100}")
    problem = table_problem(table)
    if problem is not None:
        raise TableInvalid(f"{where}: {problem}")
    return table


def _checked(tables: Iterable[Table]) -> tuple[Table, ...]:
    unique = tuple(tables)
    for what in ("name", "schema", "topic"):
        names = [getattr(table, what) for table in unique]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TableInvalid(f"expected each {what} of a table once, found {twice} twice")
    return unique


INSTALLED: Final = tuple(map(_load, sorted(entry_points(group=GROUP))))
ALL_TABLES: Final = _checked((*BUILT_IN, *INSTALLED))
TABLE_BY_TOPIC: Final = {table.topic: table for table in ALL_TABLES}
TABLE_BY_NAME: Final = {table.name: table for table in ALL_TABLES}

_SCHEMAS: Final = {
    version: (number, schema)
    for table in INSTALLED
    for version, number, schema in versions_of(table)
}
#: Schema id by version, of all records and all tables.
SCHEMA_IDS: Final[dict[str, int]] = IDS | {name: number for name, (number, _) in _SCHEMAS.items()}


def schema_of_version(version: str) -> Schema:
    """Return a version of a schema, for example `schema_of_version("daily_summary.1")`."""
    schema: Schema = (
        _SCHEMAS[version][1] if version in _SCHEMAS else json.loads(schema_text(version))
    )
    return schema
