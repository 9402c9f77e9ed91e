"""What a new version of a schema may not do to what was written before.

Events are held to BACKWARD_TRANSITIVE, in the words of the Schema Registry: every version reads
what every earlier one wrote, for the log is replayed from its beginning. Rows are held to
FULL_TRANSITIVE, also the other way round: a compacted topic is read by old and new workers at once
while one replaces the other. Apache Avro's own library says what reads what. One rule is ours: a
row names the stamps of its columns by their place, so columns are only added behind the others.
"""

import json
from collections.abc import Mapping
from itertools import combinations

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import Schema, parse

from headwater.schemas.avro_schemas import IDS, schema_text


def catalogue() -> dict[str, str]:
    """The text of every version that is checked in."""
    return {version: schema_text(version) for version in IDS}


def breaks(texts: Mapping[str, str]) -> list[str]:
    """Lists what the versions of a catalogue break; a record with the field `stamp_of` is a row."""
    versions: dict[str, list[tuple[int, Schema]]] = {}
    for version, text in texts.items():
        name, _, number = version.rpartition(".")
        versions.setdefault(name, []).append((int(number), parse(text)))
    return [
        f"{name}: {fault}"
        for name, numbered in versions.items()
        for old, new in combinations(sorted(numbered, key=lambda pair: pair[0]), 2)
        for fault in _faults(old, new)
    ]


def _faults(old: tuple[int, Schema], new: tuple[int, Schema]) -> list[str]:
    faults = _unreadable(writer=old, reader=new)
    columns, now = _columns(old[1]), _columns(new[1])
    if columns:
        faults += _unreadable(writer=new, reader=old)
        if now[: len(columns)] != columns:
            faults.append(f"version {new[0]} moves columns of version {old[0]}: add them behind")
    return faults


def _unreadable(writer: tuple[int, Schema], reader: tuple[int, Schema]) -> list[str]:
    result = ReaderWriterCompatibilityChecker().get_compatibility(reader[1], writer[1])
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    why = "; ".join(sorted(result.messages))
    where = ", ".join(sorted(result.locations - {"/"}))
    return [f"version {reader[0]} cannot read version {writer[0]}: {why} (at {where})"]


def _columns(schema: Schema) -> list[str]:
    """The columns of a row, in order; none for any other record."""
    names = [field["name"] for field in json.loads(str(schema))["fields"]]
    return names[: names.index("stamps")] if "stamp_of" in names else []
