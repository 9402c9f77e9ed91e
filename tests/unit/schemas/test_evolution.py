"""What a new version of a schema may not do."""

import json
from typing import Any

import pytest

from tests.evolution import breaks, catalogue


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(name: str, kind: object, **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def event(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def log(*events: dict[str, Any]) -> str:
    return record(field("events", {"type": "array", "items": list(events)}))


def row(*names: str, kind: str = "int") -> str:
    columns = [field(name, ["null", kind], default=None) for name in names]
    stamps = field("stamps", {"type": "array", "items": "int"})
    return record(*columns, stamps, field("stamp_of", "bytes"))


NEW = field("y", ["null", "int"], default=None)
READABLE = {
    "a field with a default": (record(), record(NEW)),
    "a field that is gone": (record(field("x", "int")), record()),
    "a field that may be null": (record(field("x", "int")), record(field("x", ["null", "int"]))),
    "another event": (log(event("I")), log(event("K"), event("I"))),
    "an event with another field": (log(event("I")), log(event("I", NEW))),
    "another column": (row("a"), row("a", "b")),
}
UNREADABLE = {
    "a field without a default": (
        record(),
        record(field("x", "int")),
        ["r: version 2 cannot read version 1: x (at /fields/0)"],
    ),
    "another type": (
        record(field("x", "long")),
        record(field("x", "string")),
        ["r: version 2 cannot read version 1: reader type: string not compatible with writer type: "
         "long (at /fields/0/type)"],
    ),
    "an event that is gone": (
        log(event("I"), event("J")),
        log(event("I")),
        ["r: version 2 cannot read version 1: reader union lacking writer type: RECORD "
         "(at /fields/0/type/items/1)"],
    ),
    "an event with a field without a default": (
        log(event("I"), event("J")),
        log(event("I"), event("J", field("y", "int"))),
        ["r: version 2 cannot read version 1: reader union lacking writer type: RECORD "
         "(at /fields/0/type/items/1)"],
    ),
    "a column between the others": (
        row("a", "b"),
        row("a", "c", "b"),
        ["r: version 2 moves columns of version 1: add them behind"],
    ),
    "a column that is gone": (
        row("a", "b"),
        row("a"),
        ["r: version 2 moves columns of version 1: add them behind"],
    ),
    "a column that old workers cannot read": (
        row("a"),
        row("a", kind="long"),
        ["r: version 1 cannot read version 2: reader union lacking writer type: LONG "
         "(at /fields/0/type/1)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), READABLE.values(), ids=READABLE)
def test_a_new_version_may_have(old: str, new: str):
    assert breaks({"r.1": old, "r.2": new}) == []


@pytest.mark.parametrize(("old", "new", "faults"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_new_version_may_not_have(old: str, new: str, faults: list[str]):
    assert breaks({"r.1": old, "r.2": new}) == faults


def test_every_earlier_version_counts_not_only_the_last():
    later = record(field("x", "int", default=0))
    texts = {"r.1": record(), "r.10": record(field("x", "int")), "r.2": later}
    assert breaks(texts) == ["r: version 10 cannot read version 1: x (at /fields/0)"]


def test_the_versions_that_are_checked_in_break_nothing():
    assert breaks(catalogue()) == []
