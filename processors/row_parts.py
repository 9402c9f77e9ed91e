"""Rows that are computed from parts: nights of several sleeps, means of several samples.

A row has three layers. Its plain columns are set by deliveries directly, and the last writer wins.
Its parts are a map of which each entry has a last writer; one of them, or all together, set columns
that win over plain ones, which are kept aside (`shadowed`). A deletion removes what is not later.
Each layer is merged on its own, and columns are computed from the layers, so the row does not
depend on the order of its deliveries (ADR 0071).
"""

from collections.abc import Callable, Mapping
from math import fsum
from typing import Final, TypeAlias

import msgspec

from headwater.processors.sleeps import main_of
from headwater.schemas.records import Stamp
from headwater.schemas.row_states import Part, RowState
from headwater.schemas.tables import (
    BIOMARKERS,
    DAILY_SUMMARY,
    LAB_UPLOADS,
    USERS,
    Row,
    Table,
    Value,
)

#: Columns with their stamps; None empties a column.
Composed: TypeAlias = dict[str, tuple[Value, Stamp]]

#: Parts of a row that are kept: those that nothing has replaced, of the latest deliveries. A day
#: has a few sleeps, each in a few versions, and a sample every second, if it lasts 25 hours.
PARTS_MAX: Final = {DAILY_SUMMARY: 32, BIOMARKERS: 25 * 3_600, USERS: 256, LAB_UPLOADS: 1}
#: Tables whose earliest parts are kept: of failed reports, later ones depend on earlier ones. The
#: uploads of those that are dropped become failed:no_report a day later. 256 take 40 kB.
_KEEP_EARLIEST: Final = frozenset({USERS})
#: Deliveries that set parts of a row. Each takes some 190 bytes of its record and each sample 50,
#: so a row has 5 MB at most, less than half of a record. A device that sends a sample every minute
#: has 1,500 in 25 hours.
_DELIVERIES_MAX: Final = 3_000
#: Id of the part with a sender's own mean of the day, which counts where there are no samples.
SENT_MEAN: Final = "mean"
#: The only column of the night that a delivery about the whole day sets, too.
_SLEEP_SCORE: Final = "sleep_score"
_NO_STATE: Final = RowState()


# -- layers


def split(table: Table, row: Row) -> tuple[Row, RowState]:
    """Return the plain columns of a row, and its other layers."""
    state = row.state
    if state is None:
        return row, _NO_STATE
    values, stamps = list(row.values), list(row.stamps)
    for name in compose(table, state.parts):
        position = table.index[name]
        values[position], stamps[position] = state.shadowed.get(name, (None, None))
    return Row(row.key, tuple(values), tuple(stamps)), state


def join(table: Table, plain: Row, parts: Mapping[str, Part], deleted: Stamp | None = None) -> Row:
    """Return the row of some layers."""
    if not parts and deleted is None:
        return plain
    values, stamps = list(plain.values), list(plain.stamps)
    shadowed: dict[str, tuple[Value, Stamp]] = {}
    for name, (value, stamp) in compose(table, parts).items():
        position = table.index[name]
        below = stamps[position]
        if below is not None:
            shadowed[name] = (values[position], below)
        values[position], stamps[position] = value, None if value is None else stamp
    return Row(plain.key, tuple(values), tuple(stamps), RowState(deleted, parts, shadowed))


def rejoin(table: Table, row: Row, parts: Mapping[str, Part]) -> Row:
    """Return a row with other parts."""
    plain, state = split(table, row)
    return join(table, plain, parts, state.deleted)


def with_parts(
    table: Table, parts: Mapping[str, Part], more: Mapping[str, Part]
) -> Mapping[str, Part]:
    """Return the union of parts; the same object if nothing changed."""
    merged = dict(parts)
    for name, part in more.items():
        current = merged.get(name)
        merged[name] = part if current is None else _later(current, part)
    most = PARTS_MAX.get(table, 0)
    if len(merged) > most:
        # Replaced ones go first: they set nothing.
        kept = sorted(
            merged,
            key=lambda name: (merged[name].replaced is None, merged[name].stamp.order, name),
        )
        kept = kept[:most] if table in _KEEP_EARLIEST else kept[-most:]
        merged = {name: merged[name] for name in kept}
    return parts if merged == parts else merged


def room_problem(parts: Mapping[str, Part], stamp: Stamp) -> str | None:
    """Return why the record of a row has no room for the parts of one more delivery, or None."""
    if len(parts) < _DELIVERIES_MAX:
        return None
    events = {part.stamp.event_id for part in parts.values()} | {stamp.event_id}
    if len(events) <= _DELIVERIES_MAX:
        return None
    return f"expected samples of at most {_DELIVERIES_MAX:,} deliveries in a row, found one more"


def _later(one: Part, other: Part) -> Part:
    """Return the later version of a part, and the later of what replaced it."""
    part = other if other.stamp.order > one.stamp.order else one
    stamps = [stamp for stamp in (one.replaced, other.replaced) if stamp is not None]
    replaced = max(stamps, key=lambda stamp: stamp.order, default=None)
    return part if part.replaced == replaced else msgspec.structs.replace(part, replaced=replaced)


# -- columns of parts


def compose(table: Table, parts: Mapping[str, Part]) -> Composed:
    """Return the columns that parts set."""
    return _COMPOSERS[table](parts) if parts else {}


def _night(parts: Mapping[str, Part]) -> Composed:
    """Return the columns of the main sleep of a day; columns of the night are one unit."""
    main = main_of(parts)
    if main is None:
        return {}
    stamp = parts[main].stamp
    columns: Composed = {name: (value, stamp) for name, value in parts[main].values.items()}
    columns.setdefault(_SLEEP_SCORE, (None, stamp))
    return columns


def _mean(parts: Mapping[str, Part]) -> Composed:
    """Return the mean of samples, or without any the sender's own."""
    samples = [part for name, part in parts.items() if name != SENT_MEAN]
    last = max(samples or parts.values(), key=lambda part: part.stamp.order)
    columns = {name: (value, last.stamp) for name, value in last.values.items()}
    if samples:
        numbers = [part.values["value"] for part in samples]
        mean = fsum(number for number in numbers if isinstance(number, float | int)) / len(samples)
        columns |= {"value": (mean, last.stamp), "samples": (len(samples), last.stamp)}
    return columns


def _failure(parts: Mapping[str, Part]) -> Composed:
    """Return the status of an upload whose report failed."""
    (part,) = parts.values()
    return {name: (value, part.stamp) for name, value in part.values.items()}


def _nothing(parts: Mapping[str, Part]) -> Composed:
    """Return no columns: rows of other tables follow from the parts."""
    del parts
    return {}


_COMPOSERS: Final[dict[Table, Callable[[Mapping[str, Part]], Composed]]] = {
    DAILY_SUMMARY: _night,
    BIOMARKERS: _mean,
    LAB_UPLOADS: _failure,
    USERS: _nothing,
}
