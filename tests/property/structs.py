"""Strategies for structs of any type, built from their annotations."""

from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from headwater.schemas.records import Stamp
from headwater.schemas.tables import Column, Row, Table

#: Text that UTF-8 can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONGS = st.integers(-(2**63), 2**63 - 1)

_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    str: TEXTS,
    bytes: st.binary(max_size=40),
    int: LONGS,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
}


@cache
def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Structs of a type, their fields filled with anything that Avro can hold."""
    fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def values(annotation: object) -> st.SearchStrategy[Any]:
    """Values of an annotation; structs, sequences and unions of them to any depth."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return st.one_of([values(member) for member in members])
    if origin in (tuple, list):
        return st.lists(values(members[0]), max_size=3).map(origin)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    assert isinstance(annotation, type), annotation
    return st.sampled_from(annotation) if issubclass(annotation, Enum) else structs(annotation)


@st.composite
def rows(draw: st.DrawFn, table: Table) -> Row:
    """Rows of a table, each column set by one of a few deliveries, or by none."""

    def cell(column: Column) -> tuple[Any, Stamp | None]:
        if draw(st.booleans()):
            return None, None
        return draw(_PLAIN[column.type]), draw(st.sampled_from(known))

    known = draw(st.lists(structs(Stamp), min_size=1, max_size=4))
    cells = [cell(column) for column in table.columns]
    return Row(
        tuple(draw(TEXTS) for _ in table.key),
        tuple(value for value, _ in cells),
        tuple(stamp for _, stamp in cells),
    )
