"""Rows as sets of last-writer-wins columns.

Rule: every column keeps the stamp of the delivery that set it, and of two values the one with the
greater stamp stays. A null never sets a column, so an older delivery still fills what newer ones
left open. The greatest of a set does not depend on order or repetition: merging is commutative,
associative and idempotent, and any order of the same deliveries ends in the same row.

The least of a set depends on them as little: where a table's column keeps its `first` value, the
smaller stamp stays. Where a column is `hourly`, the smaller one of the same hour does, and the
greater one else: that is an order, too, and a row of which much is said changes once an hour.
Where a table's rows are `whole`, a row is one value, with nulls of its own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.schemas.records import Stamp
from headwater.schemas.tables import Row, Table, Value


class RowUpdate(msgspec.Struct, frozen=True):
    """What one delivery says of one row.

    Shape:  values by column name; a None says nothing. A column whose rank differs from the rest
            of the delivery comes in an update of its own.
    """

    table: Table
    key: tuple[str, ...]
    values: Mapping[str, Value]
    stamp: Stamp


#: What a column of a type holds.
_HELD: Final[dict[type, set[type]]] = {str: {str}, int: {int}, float: {float, int}, bool: {bool}}
_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 63) - 1
_GLIMPSE_CHARS: Final = 40
#: Dates and moments begin so, and have nothing in them that is a word, but T and Z.
_DATE: Final = re.compile(r"\d{4,}-\d\d-\d\d[0-9TtZz:.+ -]*", re.ASCII)
HOUR_MS: Final = 60 * 60 * 1000


def update_problem(update: RowUpdate) -> str | None:
    """Says what of an update its table cannot hold; None if it can hold all of it."""
    table = update.table
    if len(update.key) != len(table.key) or not all(map(_is_text, update.key)):
        return f"expected texts for {', '.join(table.key_names)}, found {update.key!a}"
    for name, value in update.values.items():
        kind = table.types.get(name)
        if kind is None:
            return f"expected columns of {table.name}, found one named {name}"
        # Most values are floats, and always fit: a call for each would cost more than all else.
        if value is None or type(value) is kind is float or _fits(value, kind):
            continue
        return (
            f"expected {table.name}.{name} to be {kind.__name__}, "
            f"found {ascii(value)[:_GLIMPSE_CHARS]}"
        )
    return _undated(update)


def _undated(update: RowUpdate) -> str | None:
    """What is no date where there has to be one.

    Postgres would read `yesterday` or `now` by its clock, and otherwise each time that rows are
    made again. Whether there is such a day, it says itself.
    """
    table = update.table
    if not table.dated:
        return None
    given = [*zip(table.key_names, update.key, strict=True)]
    given += [(name, text) for name in table.dated if type(text := update.values.get(name)) is str]
    for name, text in given:
        if name in table.dated and not _DATE.fullmatch(text):
            return (
                f"expected {table.name}.{name} to be a date in figures, as in 2026-07-01 or "
                f"2026-07-01T10:00:00Z, found {ascii(text)[:_GLIMPSE_CHARS]}"
            )
    return None


def _fits(value: Value, kind: type) -> bool:
    if type(value) not in _HELD[kind]:
        return False
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    return type(value) is not str or _is_text(value)


def _is_text(value: object) -> bool:
    """Whether it is text that UTF-8 can hold; JSON may name halves of surrogate pairs, too."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def outranks(new: Stamp, old: Stamp) -> bool:
    """Tells whether a value stamped `new` replaces one stamped `old`.

    Equal stamps are the same delivery met again, whose value is already there.
    """
    return (new.rank, new.sent_at_ms, new.updated_at_ms, new.event_id) > (
        old.rank,
        old.sent_at_ms,
        old.updated_at_ms,
        old.event_id,
    )


def replaces(table: Table, name: str, new: Stamp, old: Stamp) -> bool:
    """Tells whether a column's value stamped `new` replaces the one stamped `old`."""
    least = name in table.first or (
        name in table.hourly
        and new.rank == old.rank
        and new.sent_at_ms // HOUR_MS == old.sent_at_ms // HOUR_MS
    )
    return outranks(old, new) if least else outranks(new, old)


def merge(row: Row | None, update: RowUpdate) -> Row:
    """Merges an update into a row.

    Shape:  (row or None, update) -> row; the very same object when nothing changed.
    """
    table, stamp = update.table, update.stamp
    if table.whole:
        return _replaced(row, update)
    if row is None:
        width = len(table.columns)
        row = Row(update.key, (None,) * width, (None,) * width)
    values: list[Value] | None = None
    stamps: list[Stamp | None] = []
    # Most columns of a row share one stamp, which is compared once.
    compared: Stamp | None = None
    newer = True
    index, plain = table.index, not table.first and not table.hourly
    for name, value in update.values.items():
        if value is None:
            continue
        at = index[name]
        held = row.stamps[at]
        if held is not None:
            if held is not compared:
                compared, newer = held, outranks(stamp, held)
            if not (newer if plain else replaces(table, name, stamp, held)):
                continue
        if values is None:
            values, stamps = list(row.values), list(row.stamps)
        values[at] = value
        stamps[at] = stamp
    return row if values is None else Row(row.key, tuple(values), tuple(stamps))


def _replaced(row: Row | None, update: RowUpdate) -> Row:
    """The row of a table whose rows are one value: the update's, or the row that outranks it."""
    table, stamp = update.table, update.stamp
    held = None if row is None else next(filter(None, row.stamps), None)
    if row is not None and held is not None and not outranks(stamp, held):
        return row
    values = tuple(map(update.values.get, table.column_names))
    return Row(update.key, values, tuple(None if each is None else stamp for each in values))


def adopt(table: Table, held: Row | None, rebuilt: Row | None, ends: Sequence[int]) -> Row | None:
    """The row that takes the place of another one, of which more may have been said meanwhile.

    Shape:  (row as it is, row as it was made again of the deliveries before `ends`, which are
            offsets of `webhooks` by partition) -> the second with what later deliveries said of the
            first; None where nothing is left.
    """
    row = rebuilt
    if held is not None:
        for stamp in dict.fromkeys(held.stamps):
            if stamp is not None and stamp.offset >= ends[stamp.partition]:
                stamped = zip(table.column_names, held.values, held.stamps, strict=True)
                values = {name: value for name, value, by in stamped if by == stamp}
                row = merge(row, RowUpdate(table, held.key, values, stamp))
    return row
