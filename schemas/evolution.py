"""Evolution of schemas: what a new version of a record may not do to what was written before.

Two policies. BACKWARD, for events: a reader of any version reads what every earlier version wrote,
for the log is replayed from its beginning. FULL, for table rows: also the other way round, for a
compacted topic is read by old and new workers at once while one replaces the other.

The rules of reading are those of Avro's schema resolution. One is ours: a row stores by position
which delivery set which column, so a table's columns may only be added behind the others.

Source: Apache Avro 1.11 specification, "Schema Resolution".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

#: A schema as JSON: the name of a type, a list (a union) or an object.
Schema: TypeAlias = Any

#: What a reader makes of a writer's primitive type, beside itself.
_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}

#: The two fields of every table row that are bookkeeping, not columns.
_BOOKKEEPING: Final = frozenset({"stamps", "stamp_of"})


class Policy(StrEnum):
    """How far versions must understand each other."""

    BACKWARD = "backward"
    FULL = "full"


class Version(NamedTuple):
    """A version of a schema: its file, for messages, and its parsed JSON."""

    file: str
    schema: Schema


class _Pair(NamedTuple):
    """A writer's schema beside a reader's, the named types of each, and the place in both."""

    writer: Schema
    reader: Schema
    written: Mapping[str, Schema]
    known: Mapping[str, Schema]
    path: str
    seen: frozenset[tuple[str, str]]

    def at(self, writer: Schema, reader: Schema, step: str) -> "_Pair":
        return self._replace(writer=writer, reader=reader, path=self.path + step)


def unreadable(writer: Schema, reader: Schema) -> tuple[str, ...]:
    """Says why data of one schema cannot be read with another; empty if it can.

    Shape:  parsed schemas, each complete in itself -> one message per fault, with the field's path.
    """
    pair = _Pair(writer, reader, _named(writer), _named(reader), "", frozenset())
    return tuple(_faults(pair))


def breaks(versions: Sequence[Version], policy: Policy) -> tuple[str, ...]:
    """Lists what the versions of one name break, every pair of them, oldest first.

    Shape:  one message per fault, which names the file to change, the field and what is expected.
    """
    found = []
    for old, new in combinations(versions, 2):
        found += [
            f"{new.file}: cannot read {old.file}: {why}"
            for why in unreadable(old.schema, new.schema)
        ]
        if policy is Policy.FULL:
            found += [
                f"{new.file}: cannot be read with {old.file}: {why}"
                for why in unreadable(new.schema, old.schema)
            ]
            found += _moved_columns(old, new)
    return tuple(found)


def check(catalogue: Mapping[str, Schema]) -> tuple[str, ...]:
    """Lists what the versions of a catalogue break.

    Shape:  schemas by name and version, such as `daily_summary.1`. A record with the field
            `stamp_of` is a table row and held to FULL, any other to BACKWARD.
    """
    versions: dict[str, list[tuple[int, Version]]] = {}
    for stem, schema in catalogue.items():
        name, _, number = stem.rpartition(".")
        versions.setdefault(name, []).append((int(number), Version(f"{stem}.avsc", schema)))
    found: list[str] = []
    for numbered in versions.values():
        ordered = [version for _, version in sorted(numbered, key=lambda pair: pair[0])]
        row = any(
            field["name"] == "stamp_of" for version in ordered for field in version.schema["fields"]
        )
        found += breaks(ordered, Policy.FULL if row else Policy.BACKWARD)
    return tuple(found)


def read_catalogue() -> dict[str, Schema]:
    """The schemas that are checked in, by name and version."""
    folder = files("headwater.schemas").joinpath("avro")
    return {
        file.name.removesuffix(".avsc"): json.loads(file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".avsc")
    }


def _named(schema: Schema, space: str = "") -> dict[str, Schema]:
    """The records, enums and fixed types that a schema defines, by full name."""
    if isinstance(schema, list):
        return {name: kind for branch in schema for name, kind in _named(branch, space).items()}
    if not isinstance(schema, dict):
        return {}
    space = schema.get("namespace", space)
    found: dict[str, Schema] = {}
    if schema["type"] in ("record", "enum", "fixed"):
        found[schema["name"]] = schema
        found[f"{space}.{schema['name']}"] = schema
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[part] for part in ("items", "values") if part in schema]
    for part in inner:
        found |= _named(part, space)
    return found


def _resolved(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """A schema with a name replaced by its definition, and `{"type": "int"}` by `int`."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _resolved(schema["type"], named)
    if isinstance(schema, dict) and not {"name", "items", "values"} & schema.keys():
        return _resolved(schema["type"], named)
    return schema


def _kind(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _faults(pair: _Pair) -> Iterator[str]:
    """The faults of two types, wherever they are."""
    writer, reader = _resolved(pair.writer, pair.written), _resolved(pair.reader, pair.known)
    pair = pair._replace(writer=writer, reader=reader)
    written, read = _kind(writer), _kind(reader)
    if written == "union":
        for branch in writer:
            yield from _faults(pair._replace(writer=branch))
    elif read == "union":
        yield from _union_faults(pair)
    elif written != read:
        if read not in _PROMOTIONS.get(written, ()):
            expected = f"expected a type that reads {_show(writer)}"
            yield f"{_place(pair)}: {expected}, found {_show(reader)}"
    elif written == "array":
        yield from _faults(pair.at(writer["items"], reader["items"], "[]"))
    elif written == "map":
        yield from _faults(pair.at(writer["values"], reader["values"], "{}"))
    elif isinstance(writer, dict):
        yield from _named_faults(pair)


def _union_faults(pair: _Pair) -> Iterator[str]:
    """A union reads what any of its branches reads."""
    if all(any(_faults(pair._replace(reader=branch))) for branch in pair.reader):
        # Of a record, say what is wrong with it rather than that something is.
        same = [
            branch
            for branch in (_resolved(part, pair.known) for part in pair.reader)
            if isinstance(branch, dict) and _kind(branch) == _kind(pair.writer)
        ]
        if len(same) > 1:
            same = [branch for branch in same if branch.get("name") == pair.writer.get("name")]
        if len(same) == 1:
            yield from _faults(pair._replace(reader=same[0]))
        else:
            yield (
                f"{_place(pair)}: expected a branch that reads {_show(pair.writer)}, "
                f"found {_show(pair.reader)}"
            )


def _named_faults(pair: _Pair) -> Iterator[str]:
    """The faults of two records, enums or fixed types."""
    writer, reader = pair.writer, pair.reader
    names = writer["name"].rpartition(".")[2], reader["name"].rpartition(".")[2]
    aliases = {alias.rpartition(".")[2] for alias in reader.get("aliases", ())}
    if names[0] != names[1] and names[0] not in aliases:
        yield f"{_place(pair)}: expected {_show(writer)}, found {_show(reader)}"
    elif names in pair.seen:
        return  # a type within itself, which is being compared already
    elif writer["type"] == "record":
        yield from _record_faults(pair._replace(seen=pair.seen | {names}))
    elif writer["type"] == "enum":
        lost = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if lost and "default" not in reader:
            expected = f"expected the symbols {', '.join(lost)} or a default"
            yield f"{_place(pair)}: {expected}, found neither"
    elif writer["size"] != reader["size"]:
        yield f"{_place(pair)}: expected {writer['size']} bytes, found {reader['size']}"


def _record_faults(pair: _Pair) -> Iterator[str]:
    written = {field["name"]: field for field in pair.writer["fields"]}
    for field in pair.reader["fields"]:
        names = (field["name"], *field.get("aliases", ()))
        match = next((written[name] for name in names if name in written), None)
        step = f".{field['name']}" if pair.path else field["name"]
        if match is not None:
            yield from _faults(pair.at(match["type"], field["type"], step))
        elif "default" not in field:
            yield f"field {pair.path}{step}: expected a default, for what was written without it"


def _moved_columns(old: Version, new: Version) -> Iterator[str]:
    before, after = _columns(old.schema), _columns(new.schema)
    for at, name in enumerate(before):
        found = after[at] if at < len(after) else "none"
        if found != name:
            yield (
                f"{new.file}: field {name}: expected as column {at + 1}, where {old.file} has it, "
                f"found {found} there; add columns behind the others"
            )
            return  # every column behind it has moved too


def _columns(schema: Schema) -> list[str]:
    return [field["name"] for field in schema["fields"] if field["name"] not in _BOOKKEEPING]


def _place(pair: _Pair) -> str:
    return f"field {pair.path}" if pair.path else "the schema itself"


def _show(schema: Schema) -> str:
    """A type in a message: short, and with its name if it has one."""
    if isinstance(schema, list):
        return f"[{', '.join(_show(branch) for branch in schema)}]"
    if not isinstance(schema, dict):
        return str(schema)
    return " ".join(str(schema[part]) for part in ("type", "name") if part in schema)
