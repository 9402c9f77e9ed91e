"""Strategies for structs of any type, built from their annotations."""

from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

#: Text that UTF-8 can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONGS = st.integers(-(2**63), 2**63 - 1)

_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    str: TEXTS,
    bytes: st.binary(max_size=40),
    int: LONGS,
    bool: st.booleans(),
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
