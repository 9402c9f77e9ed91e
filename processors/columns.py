"""Rows as sets of last-writer-wins columns.

Every column keeps the stamp of the delivery that set it, and of two values the one with the
greater stamp stays. A null never sets a column, so an older delivery still fills what newer ones
left empty. The maximum of a set does not depend on order or repetition: merging is commutative,
associative and idempotent, and any order of the same deliveries results in the same row.

The same holds for the minimum: where a table's column keeps its `first` value, the smaller stamp
stays. In an `hourly` column, the smaller stamp of the same hour stays, otherwise the greater one.
That is a total order, too; it makes a row that many deliveries update change once an hour.
Where a table's rows are `whole`, a row is one value, including its nulls.

A row may also have parts, from which some of its columns are computed, and a deletion, which
removes what is not later than it (`row_parts`). Those layers are maxima, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from headwater.processors.row_parts import join, split, with_parts
from headwater.schemas.records import Stamp
from headwater.schemas.tables import Part, Row, Table, Value


class RowUpdate(msgspec.Struct, frozen=True):
    """Column values that one delivery sets in one row.

    Attributes:
        values: Values by column name; None sets nothing. Columns with another rank than
            the rest of the delivery are in an update of their own.
        parts: Values by column name that parts of the row contribute, by the part's id.
    """

    table: Table
    key: tuple[str, ...]
    values: Mapping[str, Value]
    stamp: Stamp
    parts: Mapping[str, Mapping[str, Value]] = {}

    def assignments(self) -> Iterator[tuple[str, Value]]:
        """Return all columns with the values that they are to get."""
        return chain(self.values.items(), *(values.items() for values in self.parts.values()))


class RowDeleted(msgspec.Struct, frozen=True):
    """The deletion of a row by a delivery.

    What deliveries set that are not later is deleted, also if they arrive afterwards. A later one
    brings the row back.
    """

    table: Table
    key: tuple[str, ...]
    stamp: Stamp

    def assignments(self) -> Iterator[tuple[str, Value]]:
        """Return nothing: no column gets a value."""
        return iter(())


#: What a delivery does to a row.
Update: TypeAlias = RowUpdate | RowDeleted


#: Python types of values, by the type of the column.
_PYTHON_TYPES: Final[dict[type, set[type]]] = {
    str: {str},
    int: {int},
    float: {float, int},
    bool: {bool},
}
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 63) - 1
_EXCERPT_CHARS: Final = 40
#: Dates and timestamps begin with a date and contain no words, except T and Z.
_DATE: Final = re.compile(r"\d{4,}-\d\d-\d\d[0-9TtZz:.+ -]*", re.ASCII)
#: Days of many deliveries are the same.
_DATES_CACHED: Final = 4_096
HOUR_MS: Final = 60 * 60 * 1000


def update_problem(update: Update) -> str | None:
    """Return what a table cannot store of an update; None if it can store all of it."""
    table = update.table
    if len(update.key) != len(table.key) or not _are_texts(update.key):
        return f"expected texts for {', '.join(table.key_names)}, found {update.key!a}"
    if isinstance(update, RowDeleted):
        return None
    for name, value in update.assignments() if update.parts else update.values.items():
        kind = table.types.get(name)
        if kind is None:
            return f"expected columns of {table.name}, found one named {name}"
        # Most values are floats and always valid: a call for every one would dominate the cost.
        if value is None or type(value) is kind is float or _fits(value, kind):
            continue
        return (
            f"expected {table.name}.{name} to be {kind.__name__}, "
            f"found {ascii(value)[:_EXCERPT_CHARS]}"
        )
    return _date_problem(update)


def _date_problem(update: RowUpdate) -> str | None:
    """Return the problem of a value that is not a date in a column that requires one.

    Postgres would interpret `yesterday` or `now` by its clock, and differently whenever rows are
    rebuilt. Whether the day exists is checked by Postgres.
    """
    table = update.table
    if not table.dated:
        return None
    for name, text in zip(table.key_names, update.key, strict=True):
        if name in table.dated and not _is_date(text):
            return _undated(table, name, text)
    for values in (update.values, *update.parts.values()):
        for name in table.dated:
            value = values.get(name)
            if type(value) is str and not _is_date(value):
                return _undated(table, name, value)
    return None


@lru_cache(_DATES_CACHED)
def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None


def _undated(table: Table, name: str, text: str) -> str:
    return (
        f"expected {table.name}.{name} to be a date in figures, as in 2026-07-01 or "
        f"2026-07-01T10:00:00Z, found {ascii(text)[:_EXCERPT_CHARS]}"
    )


def _fits(value: Value, kind: type) -> bool:
    if type(value) not in _PYTHON_TYPES[kind]:
        return False
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    return type(value) is not str or _is_text(value)


def _are_texts(values: tuple[str, ...]) -> bool:
    # Most are ASCII, which is checked without a call for each.
    if set(map(type, values)) == {str} and all(map(str.isascii, values)):
        return True
    return all(map(_is_text, values))


def _is_text(value: object) -> bool:
    """Return whether it is text that UTF-8 can encode; JSON may contain lone surrogates."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def outranks(new: Stamp, old: Stamp) -> bool:
    """Return whether a value stamped `new` replaces one stamped `old`.

    Equal stamps belong to the same delivery; its value is stored already.
    """
    return (new.rank, new.sent_at_ms, new.updated_at_ms, new.event_id) > (
        old.rank,
        old.sent_at_ms,
        old.updated_at_ms,
        old.event_id,
    )


def replaces(table: Table, name: str, new: Stamp, old: Stamp) -> bool:
    """Return whether a column's value stamped `new` replaces the one stamped `old`."""
    least = name in table.first or (
        name in table.hourly
        and new.rank == old.rank
        and new.sent_at_ms // HOUR_MS == old.sent_at_ms // HOUR_MS
    )
    return outranks(old, new) if least else outranks(new, old)


def merge(row: Row | None, update: Update) -> Row:
    """Merge an update into a row, or into a new row if `row` is None.

    Returns:
        The row; the same object if nothing changed.
    """
    if isinstance(update, RowDeleted) or update.parts or (row is not None and row.state):
        return _merge_layers(row, update)
    return _merge_columns(row, update)


def _merge_layers(row: Row | None, update: Update) -> Row:
    """Merge an update into a row with a deletion or parts."""
    table, stamp = update.table, update.stamp
    row = row or _empty(table, update.key)
    plain, state = split(table, row)
    parts, deleted = state.parts, state.deleted
    if isinstance(update, RowDeleted):
        if deleted is not None and not outranks(stamp, deleted):
            return row
        remaining = {name: part for name, part in parts.items() if outranks(part.stamp, stamp)}
        return join(table, _columns_after(plain, stamp), remaining, stamp)
    if deleted is not None and not outranks(stamp, deleted):
        return row
    merged = _merge_columns(plain, update) if update.values else plain
    more = {
        name: Part({column: value for column, value in values.items() if value is not None}, stamp)
        for name, values in update.parts.items()
    }
    new_parts = with_parts(table, parts, more)
    if merged is plain and new_parts is parts:
        return row
    return join(table, merged, new_parts, deleted)


def _columns_after(row: Row, stamp: Stamp) -> Row:
    """Return a row with only those columns that later deliveries set."""
    stamps = tuple(
        None if current is None or not outranks(current, stamp) else current
        for current in row.stamps
    )
    values = (
        None if current is None else value
        for value, current in zip(row.values, stamps, strict=True)
    )
    return Row(row.key, tuple(values), stamps)


def _empty(table: Table, key: tuple[str, ...]) -> Row:
    nothing = (None,) * len(table.columns)
    return Row(key, nothing, nothing)


def _merge_columns(row: Row | None, update: RowUpdate) -> Row:
    table, stamp = update.table, update.stamp
    if table.whole:
        return _replaced(row, update)
    if row is None:
        row = _empty(table, update.key)
    values: list[Value] | None = None
    stamps: list[Stamp | None] = []
    # Most columns of a row share one stamp, which is compared once.
    compared: Stamp | None = None
    newer = True
    index, plain = table.index, not table.first and not table.hourly
    for name, value in update.values.items():
        if value is None:
            continue
        position = index[name]
        current = row.stamps[position]
        if current is not None:
            if current is not compared:
                compared, newer = current, outranks(stamp, current)
            if not (newer if plain else replaces(table, name, stamp, current)):
                continue
        if values is None:
            values, stamps = list(row.values), list(row.stamps)
        values[position] = value
        stamps[position] = stamp
    return row if values is None else Row(row.key, tuple(values), tuple(stamps))


def _replaced(row: Row | None, update: RowUpdate) -> Row:
    """Return the row of a table with whole rows: the update's, or the row that outranks it."""
    table, stamp = update.table, update.stamp
    current = None if row is None else next(filter(None, row.stamps), None)
    if row is not None and current is not None and not outranks(stamp, current):
        return row
    values = tuple(map(update.values.get, table.column_names))
    new_stamps = tuple(None if value is None else stamp for value in values)
    return Row(update.key, values, new_stamps)


def adopt(table: Table, held: Row | None, rebuilt: Row | None, ends: Sequence[int]) -> Row | None:
    """Return a rebuilt row that includes what later deliveries set in the current row.

    Args:
        table: The table.
        held: The current row.
        rebuilt: The row rebuilt from the deliveries before `ends`.
        ends: Offsets of `webhooks`, by partition.

    Returns:
        The row, or None if it has no columns left.
    """
    if held is None:
        return rebuilt

    def is_later(stamp: Stamp | None) -> bool:
        return stamp is not None and stamp.offset >= ends[stamp.partition]

    if held.state is None and (rebuilt is None or rebuilt.state is None):
        return _adopt_columns(table, held, rebuilt, is_later)
    plain_held, state = split(table, held)
    plain, new = split(table, rebuilt or _empty(table, held.key))
    plain = _adopt_columns(table, plain_held, plain, is_later) or plain
    later = {
        name: part if is_later(part.replaced) else replace(part, replaced=None)
        for name, part in state.parts.items()
        if is_later(part.stamp) or (name in new.parts and is_later(part.replaced))
    }
    deletions = [new.deleted, state.deleted if is_later(state.deleted) else None]
    deleted = max(filter(None, deletions), key=lambda stamp: stamp.order, default=None)
    row = join(table, plain, with_parts(table, new.parts, later), deleted)
    return row if any(row.stamps) or row.state is not None else None


def _adopt_columns(
    table: Table, held: Row, rebuilt: Row | None, is_later: Callable[[Stamp | None], bool]
) -> Row | None:
    row = rebuilt
    for stamp in dict.fromkeys(held.stamps):
        if stamp is not None and is_later(stamp):
            stamped = zip(table.column_names, held.values, held.stamps, strict=True)
            values = {name: value for name, value, stamped_by in stamped if stamped_by == stamp}
            row = _merge_columns(row, RowUpdate(table, held.key, values, stamp))
    return row


def without(table: Table, row: Row, is_removed: Callable[[Stamp], bool]) -> Row | None:
    """Return a row without what some deliveries set; None if nothing is left.

    Args:
        table: The table.
        row: The row.
        is_removed: Returns whether the delivery of a stamp is one of them.
    """
    plain, state = split(table, row)
    stamps = tuple(None if stamp is None or is_removed(stamp) else stamp for stamp in plain.stamps)
    values = tuple(
        None if stamp is None else value for value, stamp in zip(plain.values, stamps, strict=True)
    )
    parts = {
        name: part
        if part.replaced is None or not is_removed(part.replaced)
        else replace(part, replaced=None)
        for name, part in state.parts.items()
        if not is_removed(part.stamp)
    }
    deleted = None if state.deleted is None or is_removed(state.deleted) else state.deleted
    if not any(stamps) and not parts and deleted is None:
        return None
    return join(table, Row(row.key, values, stamps), parts, deleted)
