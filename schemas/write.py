"""Generate the Avro files from the structs: `make schemas`.

A struct describes the newest version of its schema (`avro_schemas`). Released versions are never
rewritten: a struct that differs from its released version starts the next one.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headwater.schemas.avro_schemas import IDS, row_schema_of, schema_of, schema_text
from headwater.schemas.records import RECORD_TYPES
from headwater.schemas.tables import TABLES

#: Ids up to this one are in logs of released systems. A release sets it to the highest id.
RELEASED_THROUGH: Final = 0

_FOLDER: Final = Path(__file__).parent / "avro"


class Versions(NamedTuple):
    """Every version of every schema: the text of its file, and its id."""

    texts: dict[str, str]
    ids: dict[str, int]


def generated() -> dict[str, str]:
    """Return the text of the newest version of every schema, by name."""
    records = {name: schema_of(kind) for name, kind in RECORD_TYPES.items()}
    rows = {table.schema: row_schema_of(table.kind) for table in TABLES}
    return {
        name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in (records | rows).items()
    }


def checked_in() -> Versions:
    """Return the versions that are in the folder now."""
    return Versions({version: schema_text(version) for version in IDS}, dict(IDS))


def renewed(old: Versions, schemas: Mapping[str, str], released_through: int) -> Versions:
    """Return the versions that the folder should contain if these are the newest schemas.

    Released versions stay as they are; at most one other version per name is added. A changed doc
    alone does not start a new version.
    """
    ids = {version: number for version, number in old.ids.items() if number <= released_through}
    texts = {version: old.texts[version] for version in ids}
    number_of: dict[str, int] = {}
    for version in ids:
        name, _, number = version.rpartition(".")
        number_of[name] = max(number_of.get(name, 0), int(number))
    for name, text in schemas.items():
        newest = texts.get(f"{name}.{number_of.get(name, 0)}")
        if newest is None or _without_docs(newest) != _without_docs(text):
            version = f"{name}.{number_of.get(name, 0) + 1}"
            texts[version] = text
            ids[version] = max(ids.values(), default=0) + 1
    return Versions(texts, ids)


def _without_docs(text: str) -> object:
    return json.loads(text, object_hook=lambda node: {k: node[k] for k in node if k != "doc"})


def main() -> None:
    """Write the expected files, and delete all others."""
    versions = renewed(checked_in(), generated(), RELEASED_THROUGH)
    files = {f"{version}.avsc": text for version, text in versions.texts.items()}
    files["ids.json"] = json.dumps(versions.ids, indent=2) + "\n"
    for path in _FOLDER.iterdir():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (_FOLDER / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(versions.ids)} schemas in {_FOLDER}\n")


if __name__ == "__main__":
    main()
