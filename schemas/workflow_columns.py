"""How the tables of workflows are declared: types of columns, and what follows from a struct."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec


@dataclass(frozen=True, slots=True)
class Stored:
    """How Postgres stores a column, if its Python type does not determine it."""

    type: str
    collation: str = ""
    default: str = ""


#: Text that compares as bytes, so that pages and trims do not depend on a locale.
Key: TypeAlias = Annotated[str, Stored("text", collation='"C"')]
#: A number that fits 32 bits.
Integer: TypeAlias = Annotated[int, Stored("integer")]
#: A time; in memory, Unix milliseconds.
Moment: TypeAlias = Annotated[int, Stored("timestamptz")]
#: The text of a JSON value, unchanged: jsonb would reorder keys, round numbers and reject \u0000.
JsonText: TypeAlias = Annotated[str, Stored("json")]
#: Texts by name.
Labels: TypeAlias = Annotated[dict[str, str], Stored("jsonb", default="'{}'")]
#: Marks a column that becomes null when a retry of the run starts the row again.
CLEARED: Final = "cleared"

_SQL_TYPES: Final = {str: "text", int: "bigint", bool: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowColumn:
    """A column.

    Attributes:
        type: Its type in Postgres.
        definition: What follows the name in its definition.
    """

    name: str
    type: str
    definition: str
    is_cleared: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkflowTable:
    """A table of workflows.

    Attributes:
        columns: All columns in order; those of the key are first.
        hints: Types of values that are not stored but that a statement needs, by name.
        bits: Bit of each column in the mask of a changed row; 0 for the key and for hints.
        cleared: Columns that a retry of the run clears in rows that it starts again.
        storage: Storage parameters.
    """

    name: str
    kind: type[msgspec.Struct]
    key: tuple[str, ...]
    columns: tuple[WorkflowColumn, ...]
    hints: Mapping[str, str]
    bits: Mapping[str, int]
    cleared: tuple[str, ...]
    storage: str


def table_of(
    kind: type[msgspec.Struct],
    *key: str,
    hints: Mapping[str, str] | None = None,
    storage: str = "",
) -> WorkflowTable:
    """Declare a table; its name follows from that of the struct."""
    types = get_type_hints(kind, include_extras=True)
    columns = tuple(_column(name, types[name], key) for name in kind.__struct_fields__)
    hints = hints or {}
    bits = {column.name: 1 << position for position, column in enumerate(columns)}
    return WorkflowTable(
        name=re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower(),
        kind=kind,
        key=key,
        columns=columns,
        hints=hints,
        bits=bits | dict.fromkeys((*key, *hints), 0),
        cleared=tuple(column.name for column in columns if column.is_cleared),
        storage=storage,
    )


def _column(name: str, annotation: Any, key: tuple[str, ...]) -> WorkflowColumn:  # noqa: ANN401, any annotation
    is_cleared = CLEARED in get_args(annotation)
    inner = get_args(annotation)[0] if is_cleared else annotation
    is_literal, members = get_origin(inner) is Literal, get_args(inner)
    is_nullable = NoneType in members
    plain = next(member for member in members if member is not NoneType) if is_nullable else inner
    stored = next((part for part in get_args(plain) if isinstance(part, Stored)), None)
    if stored is None:
        stored = Stored("text" if is_literal else _SQL_TYPES[plain])
    allowed = ", ".join(f"'{member}'" for member in members) if is_literal else ""
    definition = [
        stored.type,
        f"collate {stored.collation}" if stored.collation else "",
        "" if is_nullable or name in key else "not null",
        f"default {stored.default}" if stored.default else "",
        f"check ({name} in ({allowed}))" if allowed else "",
    ]
    return WorkflowColumn(
        name=name,
        type=stored.type,
        definition=" ".join(filter(None, definition)),
        is_cleared=is_cleared,
    )
