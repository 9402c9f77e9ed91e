"""The checked-in catalog of Avro schemas: every version of every schema, and its id.

`make schemas` generates the files from the structs (`write`). Once released, an id never changes:
records name the id that they were written with.
"""

import json
from importlib.resources import files
from typing import Final

#: Namespace of Headwater's Avro files.
NAMESPACE: Final = "headwater"

_AVRO: Final = files("headwater.schemas").joinpath("avro")

#: Schema id by version, for example `daily_summary.1`.
IDS: Final[dict[str, int]] = json.loads(_AVRO.joinpath("ids.json").read_text(encoding="utf-8"))

#: The newest version of each schema: the one with the highest id.
NEWEST: Final[dict[str, str]] = {
    version.rsplit(".", 1)[0]: version for version in sorted(IDS, key=IDS.__getitem__)
}


def schema_text(version: str) -> str:
    """Return the text of a schema version, for example `schema_text("daily_summary.1")`."""
    return _AVRO.joinpath(f"{version}.avsc").read_text(encoding="utf-8")
