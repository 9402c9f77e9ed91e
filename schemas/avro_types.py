"""How the types of Avro and of Python go together, as far as records of the house use them."""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, TypeGuard, Union, cast, get_args, get_origin

import msgspec

#: A type as an .avsc file has it: a name, the definition of one, or a list for a union.
Schema: TypeAlias = Any
#: A type as the annotation of a struct's field has it.
Annotation: TypeAlias = object

#: Python's type of each primitive of Avro.
PRIMITIVES: Final[dict[str, type]] = {
    "null": NoneType,
    "boolean": bool,
    "long": int,
    "double": float,
    "bytes": bytes,
    "string": str,
}


def name_of(schema: Schema) -> str:
    """The name of a type; empty for an array and a union, which have none."""
    if isinstance(schema, str):
        return schema
    return schema.get("name", "") if isinstance(schema, dict) else ""


def member_of(annotation: Annotation, schema: Schema) -> Annotation:
    """The member of a union that a branch of Avro's stands for; what is no union is itself.

    Errors: LookupError if there is none.
    """
    if not is_union(annotation):
        return annotation
    name = name_of(schema)
    for member in get_args(annotation):
        if get_origin(member) is not None:
            found = not name
        elif name in PRIMITIVES:
            found = member is PRIMITIVES[name] or (name == "string" and is_enum(member))
        else:
            found = getattr(member, "__name__", None) == name
        if found:
            return member
    raise LookupError(f"expected a member of {annotation} for {name or 'an array'}, found none")


def structs_of(*annotations: Annotation) -> dict[str, type[msgspec.Struct]]:
    """The structs within some annotations, to any depth, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    left = list(annotations)
    while left:
        annotation = left.pop()
        left += get_args(annotation)
        if is_struct(annotation) and annotation.__name__ not in found:
            found[annotation.__name__] = annotation
            left += [field.type for field in msgspec.structs.fields(annotation)]
    return found


def origin_of(annotation: Annotation) -> type:
    """The class of an annotation's values."""
    return cast("type", get_origin(annotation) or annotation)


def is_struct(annotation: Annotation) -> TypeGuard[type[msgspec.Struct]]:
    """Tells whether an annotation is a struct, which Avro has as a record."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def is_union(annotation: Annotation) -> bool:
    """Tells whether an annotation is a union."""
    return get_origin(annotation) in (Union, UnionType)


def is_enum(annotation: Annotation) -> TypeGuard[type[Enum]]:
    """Tells whether an annotation is an enumeration, which Avro has as text."""
    return isinstance(annotation, type) and issubclass(annotation, Enum)
