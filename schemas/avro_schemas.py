"""Avro schemas: the checked-in catalog of versions and ids, and generation from structs.

`make schemas` generates the files from the structs (`write`). Once released, an id never changes:
records name the id that they were written with.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from headwater.schemas.avro_types import PRIMITIVES, is_enum
from headwater.schemas.row_states import Stamps

#: Namespace of Headwater's Avro files.
NAMESPACE: Final = "headwater"

_AVRO: Final = files("headwater.schemas").joinpath("avro")

#: Schema id by version, for example `daily_summary.1`.
IDS: Final[dict[str, int]] = json.loads(_AVRO.joinpath("ids.json").read_text(encoding="utf-8"))

#: The newest versions of the schemas: those with the highest ids.
NEWEST: Final[dict[str, str]] = {
    version.rsplit(".", 1)[0]: version for version in sorted(IDS, key=IDS.__getitem__)
}


def schema_text(version: str) -> str:
    """Return the text of a schema version, for example `schema_text("daily_summary.1")`."""
    return _AVRO.joinpath(f"{version}.avsc").read_text(encoding="utf-8")


# -- generation

_NAMES: Final[dict[object, str]] = {kind: name for name, kind in PRIMITIVES.items()}


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the Avro schema of a record.

    A record's doc is the first paragraph of the struct's docstring, a field's doc the `#:` comment
    above it.

    Raises:
        TypeError: A field has no doc, or a type that Avro does not have.
    """
    schema = _record(kind, set())
    name, fields = schema.pop("name"), schema.pop("fields")
    return {"type": "record", "name": name, "namespace": NAMESPACE} | schema | {"fields": fields}


def row_schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the Avro schema of a row: the key, the columns, and the deliveries that set them."""
    schema = schema_of(kind)
    for field in schema["fields"]:
        if "default" not in field:
            field["key"] = True
    schema["fields"] += schema_of(Stamps)["fields"]
    return schema


def _record(kind: type[msgspec.Struct], defined: set[type]) -> dict[str, Any]:
    """Return a record's definition; a definition that occurred before is referenced by name."""
    defined.add(kind)
    return {
        "type": "record",
        "name": kind.__name__,
        "doc": _paragraph(inspect.getdoc(kind) or ""),
        "fields": [_field(kind, field, defined) for field in msgspec.structs.fields(kind)],
    }


def _field(
    kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo, defined: set[type]
) -> dict[str, Any]:
    schema = {
        "name": field.name,
        "type": _type(field.type, defined),
        "doc": doc_of(kind, field.name),
    }
    # Text, not Avro's enum, because its older readers do not report the unknown member. A new
    # member is still a new version, which is not written before all members read it.
    enums = [type_ for type_ in (field.type, *get_args(field.type)) if is_enum(type_)]
    if enums:
        schema["members"] = [member.value for enum in enums for member in enum]
    if not field.required:
        schema["default"] = field.default
    return schema


def _type(annotation: Any, defined: set[type]) -> Any:  # noqa: ANN401, any annotation, any JSON
    if get_origin(annotation) is Annotated:  # the annotation is for Postgres
        annotation = get_args(annotation)[0]
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    if origin in (Union, UnionType):
        # A default has the first type of a union, and the defaults are null.
        null_first = sorted(members, key=lambda member: member is not NoneType)
        return [_type(member, defined) for member in null_first]
    if origin in (tuple, list):
        return {"type": "array", "items": _type(members[0], defined)}
    if annotation in defined:
        return annotation.__name__
    if is_enum(annotation):
        return "string"
    if issubclass(annotation, msgspec.Struct):
        return _record(annotation, defined)
    raise TypeError(f"expected a type that Avro has, found {annotation}")


def _paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n", 1)[0].split()).replace("`", "")


def doc_of(kind: type[msgspec.Struct], name: str) -> str:
    """Return the doc of a field.

    Raises:
        TypeError: It has none.
    """
    doc = next((doc for doc in _docs(kind, name) if doc), None)
    if doc is None:
        raise TypeError(f"{kind.__name__}.{name}: expected a #: comment above it, found none")
    return doc


def _docs(kind: type, name: str) -> Iterator[str | None]:
    """Yield the docs of a field in a struct and in its base classes."""
    for owner in kind.__mro__:
        module = inspect.getmodule(owner)
        if module is not None and issubclass(owner, msgspec.Struct) and owner is not msgspec.Struct:
            yield _comments(module).get((owner.__name__, name))


@cache
def _comments(module: ModuleType) -> dict[tuple[str, str], str]:
    """Return the `#:` comments above the fields of a module's structs, by struct and field."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    comments = {}
    for owner in [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]:
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                first = line = node.lineno - 1
                while lines[first - 1].lstrip().startswith("#:"):
                    first -= 1
                words = [re.sub(r"^\s*#:\s*", "", text) for text in lines[first:line]]
                comments[owner.name, node.target.id] = " ".join(words)
    return comments
