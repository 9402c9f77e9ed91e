"""What a row has besides its columns: stamps, and the state that its owner keeps.

The state is a JSON text with sorted names, so that equal states have equal texts: a row does not
change when its deliveries come in another order.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, UndecodableRecord
from headwater.schemas.records import Stamp

_Value: TypeAlias = str | int | float | bool | None

#: Byte of `stamp_of` for an unset column. A row can therefore refer to at most 255 deliveries, more
#: than it has columns.
UNSET: Final = 255


class Stamps(msgspec.Struct):
    """Which deliveries set the columns of a row; part of every row."""

    #: The deliveries that set the columns.
    stamps: tuple[Stamp, ...]
    #: One byte per column, in order: the index into stamps; 255 if the column is unset.
    stamp_of: bytes
    #: What owners keep of the row besides its columns, as a JSON text; empty for most rows.
    state: str = ""


class Part(msgspec.Struct, frozen=True):
    """One of several things that a row is computed from, such as one of the sleeps of a day.

    Attributes:
        values: Column values that it contributes.
        stamp: The delivery that set it.
        replaced: The latest delivery that replaced it by another part, if any; a part counts again
            once a later delivery repeats it.
    """

    values: Mapping[str, _Value]
    stamp: Stamp
    replaced: Stamp | None = None

    @property
    def counts(self) -> bool:
        """Whether no delivery, as late as its own or later, replaced it by another part."""
        return self.replaced is None or self.replaced.order < self.stamp.order


class RowState(msgspec.Struct, frozen=True):
    """What owners keep of a row besides its columns; it is no column of Postgres.

    Attributes:
        deleted: Everything that deliveries up to this one set is deleted.
        parts: Parts of the row, by id.
        shadowed: Values of columns that a part sets instead, with their stamps.
    """

    deleted: Stamp | None = None
    parts: Mapping[str, Part] = {}
    shadowed: Mapping[str, tuple[_Value, Stamp]] = {}


_Stamp: TypeAlias = tuple[int, int, int, str, int, int, int]
#: Parts with the same stamps and names of columns: these, the ids, and the values by column. A
#: column whose values are all equal has one. So a day of 86,400 samples needs less than 2 MB.
_Group: TypeAlias = tuple[
    _Stamp, _Stamp | None, tuple[str, ...], list[str], list[list[_Value] | _Value]
]
_State: TypeAlias = tuple[_Stamp | None, list[_Group], dict[str, tuple[_Value, _Stamp]]]

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(_State).decode


def encode_state(state: RowState) -> str:
    """Return the text of a state."""
    alike: dict[tuple[Stamp, Stamp | None, tuple[str, ...]], list[str]] = {}
    for name in sorted(state.parts):
        part = state.parts[name]
        key = (part.stamp, part.replaced, tuple(sorted(part.values)))
        alike.setdefault(key, []).append(name)
    parts = [
        (
            _fields(stamp),
            replaced and _fields(replaced),
            columns,
            names,
            _by_column([state.parts[name].values for name in names], columns),
        )
        for (stamp, replaced, columns), names in alike.items()
    ]
    shadowed = {name: (value, _fields(stamp)) for name, (value, stamp) in state.shadowed.items()}
    return _encode((state.deleted and _fields(state.deleted), parts, shadowed)).decode()


def decode_state(text: str) -> RowState:
    """Return the state of a text.

    Raises:
        UndecodableRecord: It is no such text.
    """
    try:
        deleted, parts, shadowed = _decode(text)
    except PARSE_ERRORS as error:
        raise UndecodableRecord(f"expected the state of a row, found: {error}") from error
    return RowState(
        deleted and Stamp(*deleted),
        {name: part for group in parts for name, part in _parts_of(group)},
        {name: (value, Stamp(*stamp)) for name, (value, stamp) in shadowed.items()},
    )


def _by_column(
    values: list[Mapping[str, _Value]], columns: tuple[str, ...]
) -> list[list[_Value] | _Value]:
    """Return the values of parts by column."""
    if len(values) == 1:
        return [values[0][column] for column in columns]
    return [_column([of_part[column] for of_part in values]) for column in columns]


def _column(values: list[_Value]) -> list[_Value] | _Value:
    """Return values, or the only one of which all are copies."""
    first = values[0]
    if values.count(first) == len(values) == list(map(type, values)).count(type(first)):
        return first
    return values


def _parts_of(group: _Group) -> Iterator[tuple[str, Part]]:
    stamp, replaced, columns, names, values = group
    set_by, replaced_by = Stamp(*stamp), replaced and Stamp(*replaced)
    by_column = [one if isinstance(one, list) else [one] * len(names) for one in values]
    rows = zip(*by_column, strict=True) if columns else [()] * len(names)
    for name, row in zip(names, rows, strict=True):
        yield name, Part(dict(zip(columns, row, strict=True)), set_by, replaced_by)


def _fields(stamp: Stamp) -> _Stamp:
    return msgspec.structs.astuple(stamp)
