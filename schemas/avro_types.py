"""Correspondence of the Avro and Python types that Headwater's records use."""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, TypeGuard, Union, cast, get_args, get_origin

import msgspec

#: A type in an .avsc file: a name, a definition, or a list for a union.
Schema: TypeAlias = Any
#: A type as the annotation of a struct's field.
Annotation: TypeAlias = object

#: Python types of Avro's primitives.
PRIMITIVES: Final[dict[str, type]] = {
    "null": NoneType,
    "boolean": bool,
    "long": int,
    "double": float,
    "bytes": bytes,
    "string": str,
}


def name_of(schema: Schema) -> str:
    """Return the name of a type; empty for an array or a union, which have none."""
    if isinstance(schema, str):
        return schema
    return schema.get("name", "") if isinstance(schema, dict) else ""


def member_of(annotation: Annotation, schema: Schema) -> Annotation:
    """Return the member of a union type that matches a branch of Avro's union.

    A type that is not a union is returned unchanged.

    Raises:
        LookupError: There is no such member.
    """
    if not is_union(annotation):
        return annotation
    name = name_of(schema)
    for member in get_args(annotation):
        if get_origin(member) is not None:
            matches = not name
        elif name in PRIMITIVES:
            matches = member is PRIMITIVES[name] or (name == "string" and is_enum(member))
        else:
            matches = getattr(member, "__name__", None) == name
        if matches:
            return member
    raise LookupError(f"expected a member of {annotation} for {name or 'an array'}, found none")


def structs_of(*annotations: Annotation) -> dict[str, type[msgspec.Struct]]:
    """Return the structs in annotations, to any depth, by name."""
    structs: dict[str, type[msgspec.Struct]] = {}
    pending = list(annotations)
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if is_struct(annotation) and annotation.__name__ not in structs:
            structs[annotation.__name__] = annotation
            pending += [field.type for field in msgspec.structs.fields(annotation)]
    return structs


def origin_of(annotation: Annotation) -> type:
    """Return the class of an annotation's values."""
    return cast("type", get_origin(annotation) or annotation)


def is_struct(annotation: Annotation) -> TypeGuard[type[msgspec.Struct]]:
    """Return whether an annotation is a struct, an Avro record."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def is_union(annotation: Annotation) -> bool:
    """Return whether an annotation is a union."""
    return get_origin(annotation) in (Union, UnionType)


def is_enum(annotation: Annotation) -> TypeGuard[type[Enum]]:
    """Return whether an annotation is an enumeration, which Avro stores as text."""
    return isinstance(annotation, type) and issubclass(annotation, Enum)
