"""Conversions between structs and the plain values of an Avro library, made once for each type.

Plain is a dict for a struct, a list for a tuple, and for a struct in a union the pair of its Avro
name and its dict: so fastavro is told, and tells, which branch of the union it is. What has to be
converted is found from the annotations when a conversion is made, for most structs have nothing
within them, and to look for it in each would cost more than all the rest.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec.structs import asdict

from headwater.schemas.catalogue import NAMESPACE

Kind: TypeAlias = type[msgspec.Struct]
Conversion: TypeAlias = Callable[[Any], Any]


@cache
def to_plain(kind: Kind) -> Conversion:
    """Makes the conversion from structs of a type to plain values.

    Errors: the conversion raises TypeError for a struct that is no branch of its union, and
            ValueError for a value that an enumeration does not have.
    """
    parts = _parts(kind, _WRITING)

    def convert(struct: msgspec.Struct) -> dict[str, Any]:
        fields = asdict(struct)
        for name, part in parts:
            fields[name] = part(fields[name])
        return fields

    return convert if parts else asdict


@cache
def from_plain(kind: Kind) -> Conversion:
    """Makes the conversion from plain values, which it uses up, to structs of a type.

    Errors: the conversion raises ValueError for a value that an enumeration does not have.
    """
    parts = _parts(kind, _READING)

    def convert(fields: dict[str, Any]) -> msgspec.Struct:
        for name, part in parts:
            fields[name] = part(fields[name])
        return kind(**fields)

    return convert if parts else lambda fields: kind(**fields)


def _branch_to_plain(kinds: list[Kind]) -> Conversion:
    branches = {kind: (f"{NAMESPACE}.{kind.__name__}", to_plain(kind)) for kind in kinds}

    def convert(struct: msgspec.Struct) -> tuple[str, dict[str, Any]]:
        branch = branches.get(type(struct))
        if branch is None:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"expected one of {names}, found {type(struct).__name__}")
        name, conversion = branch
        return name, conversion(struct)

    return convert


def _branch_from_plain(kinds: list[Kind]) -> Conversion:
    branches = {f"{NAMESPACE}.{kind.__name__}": from_plain(kind) for kind in kinds}
    if len(kinds) > 1:
        return lambda pair: branches[pair[0]](pair[1])
    conversion = from_plain(kinds[0])
    # What an older version wrote when the field could not be null yet comes without its name.
    return lambda found: conversion(found[1] if type(found) is tuple else found)


class _Way(NamedTuple):
    """One of the two ways: what it makes of a struct, of one of several structs, of a tuple."""

    struct: Callable[[Kind], Conversion]
    branch: Callable[[list[Kind]], Conversion]
    sequence: Callable[[Iterable[Any]], Any]


_WRITING: Final = _Way(to_plain, _branch_to_plain, list)
_READING: Final = _Way(from_plain, _branch_from_plain, tuple)


def _parts(kind: Kind, way: _Way) -> tuple[tuple[str, Conversion], ...]:
    """The fields of a struct that have to be converted, and how."""
    found = ((field.name, _value(field.type, way)) for field in msgspec.structs.fields(kind))
    return tuple((name, conversion) for name, conversion in found if conversion is not None)


def _value(annotation: object, way: _Way) -> Conversion | None:
    """How a value is converted; None if it is plain as it is."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _union(members, way)
    if origin is tuple:
        item = _value(members[0], way)
        return way.sequence if item is None else lambda items: way.sequence(map(item, items))
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, Enum):
        return annotation
    return way.struct(annotation) if issubclass(annotation, msgspec.Struct) else None


def _union(members: tuple[Any, ...], way: _Way) -> Conversion | None:
    """How a value of a union is converted: of structs, or of one other type and None."""
    kinds = [member for member in members if member is not NoneType]
    structs = all(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in kinds)
    conversion = way.branch(kinds) if structs else _value(kinds[0], way)
    if conversion is None or NoneType not in members:
        return conversion
    return lambda value: None if value is None else conversion(value)
