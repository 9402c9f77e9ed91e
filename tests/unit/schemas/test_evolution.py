"""What a new version of a schema may not do."""

from typing import Any

import pytest

from headwater.schemas.evolution import Policy, Version, breaks, check, read_catalogue, unreadable


def record(*fields: dict[str, Any], name: str = "R", **more: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(kind: object, name: str = "a", **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def named(name: str, *symbols: str, **more: object) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


ARRAY = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": "int"}
FIXED = {"type": "fixed", "name": "F", "size": 4}
INNER = record(field("int", "x"), name="I")
TREE = record(field(["null", "R"], "left"), field("int", "x"))


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("int", "int"), ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"),
        ("long", "double"), ("float", "double"), ("string", "bytes"), ("bytes", "string"),
        ("int", {"type": "long", "logicalType": "timestamp-millis"}),
        ({"type": {"type": "int"}}, "int"),
        ("int", ["null", "long"]), (["int", "long"], "double"), (["null", "int"], ["long", "null"]),
        (ARRAY, ARRAY | {"items": "long"}), (MAP, MAP | {"values": "double"}), (FIXED, FIXED),
        (named("E", "A"), named("E", "B", "A")),
        (named("E", "A", "B"), named("E", "A", default="A")),
        (INNER, INNER | {"name": "space.I"}), (INNER, ["null", INNER]),
        (INNER, record(field("long", "x"), name="J", aliases=["space.I"])), (TREE, TREE),
    ],
)  # fmt: skip
def test_avro_reads_these(writer: object, reader: object):
    assert unreadable(record(field(writer)), record(field(reader))) == ()


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("long", "int", "field a: expected a type that reads long, found int"),
        ("double", "float", "field a: expected a type that reads double, found float"),
        ("string", "int", "field a: expected a type that reads string, found int"),
        ("int", "boolean", "field a: expected a type that reads int, found boolean"),
        (ARRAY, "int", "field a: expected a type that reads array, found int"),
        (ARRAY, MAP, "field a: expected a type that reads array, found map"),
        (["null", "int"], "int", "field a: expected a type that reads null, found int"),
        ("string", ["null", "int"],
         "field a: expected a branch that reads string, found [null, int]"),
        (["null", "string"], ["null", "int"],
         "field a: expected a branch that reads string, found [null, int]"),
        (INNER, ["null", "int"],
         "field a: expected a branch that reads record I, found [null, int]"),
        (ARRAY, ARRAY | {"items": "string"},
         "field a[]: expected a type that reads int, found string"),
        (MAP, MAP | {"values": "string"},
         "field a{}: expected a type that reads int, found string"),
        (FIXED, FIXED | {"size": 8}, "field a: expected 4 bytes, found 8"),
        (FIXED, FIXED | {"name": "G"}, "field a: expected fixed F, found fixed G"),
        (INNER, INNER | {"name": "J"}, "field a: expected record I, found record J"),
        (named("E", "A", "B", "C"), named("E", "A"),
         "field a: expected the symbols B, C or a default, found neither"),
        (INNER, record(field("int", "x"), field("int", "y"), name="I"),
         "field a.y: expected a default, for what was written without it"),
        (INNER, ["null", record(field("string", "x"), name="I")],
         "field a.x: expected a type that reads int, found string"),
        ({"type": "array", "items": INNER}, {"type": "array", "items": record(name="J")},
         "field a[]: expected record I, found record J"),
    ],
)  # fmt: skip
def test_avro_does_not_read_these_and_the_message_says_where(
    writer: object, reader: object, message: str
):
    assert unreadable(record(field(writer)), record(field(reader))) == (message,)


def test_a_field_may_come_with_a_default_or_an_old_name_and_may_go():
    old = record(field("int"), field("int", "gone"))
    new = record(field("int", "b", aliases=["a"]), field("int", "c", default=0))
    assert unreadable(old, new) == ()
    assert unreadable(new, old) == (
        "field a: expected a default, for what was written without it",
        "field gone: expected a default, for what was written without it",
    )


def test_a_union_of_records_may_grow_and_may_not_lose_one():
    def event(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
        return record(field("int", "x"), *fields, name=name)

    def union(*events: dict[str, Any]) -> dict[str, Any]:
        return record(field({"type": "array", "items": list(events)}))

    old = union(event("I"), event("J"))
    later = event("J", field(["null", "int"], "y", default=None))
    assert unreadable(old, union(event("K"), later, event("I"))) == ()
    assert unreadable(old, union(event("K"), event("I"))) == (
        "field a[]: expected a branch that reads record J, found [record K, record I]",
    )
    assert unreadable(old, union(event("I"), event("J", field("int", "y")))) == (
        "field a[].y: expected a default, for what was written without it",
    )


def test_a_type_is_looked_up_by_its_name_wherever_it_is_defined():
    def schema(kind: str) -> dict[str, Any]:
        inner = record(field(kind, "x"), name="I")
        return record(field(["null", inner]), field("space.I", "b"), namespace="space")

    assert unreadable(schema("int"), schema("long")) == ()
    assert unreadable(schema("long"), schema("int")) == (
        "field a.x: expected a type that reads long, found int",
        "field b.x: expected a type that reads long, found int",
    )


def test_a_type_within_itself_is_compared_once():
    worse = record(field(["null", "R"], "left"), field("string", "x"))
    assert unreadable(TREE, worse) == ("field x: expected a type that reads int, found string",)


def test_a_schema_that_is_no_record_is_named_as_itself():
    assert unreadable("string", "int") == (
        "the schema itself: expected a type that reads string, found int",
    )


def test_an_event_must_read_every_earlier_version_not_only_the_last():
    versions = [
        Version("r.1.avsc", record(field("int"))),
        Version("r.2.avsc", record(field("int"), field("int", "b", default=0))),
        Version("r.3.avsc", record(field("int"), field("int", "b"))),
    ]
    assert breaks(versions, Policy.BACKWARD) == (
        "r.3.avsc: cannot read r.1.avsc: "
        "field b: expected a default, for what was written without it",
    )


def test_an_event_may_lose_a_field_and_a_row_may_not():
    versions = [
        Version("r.1.avsc", record(field("int"), field("int", "b"))),
        Version("r.2.avsc", record(field("int"))),
    ]
    assert breaks(versions, Policy.BACKWARD) == ()
    assert breaks(versions, Policy.FULL) == (
        "r.2.avsc: cannot be read with r.1.avsc: "
        "field b: expected a default, for what was written without it",
        "r.2.avsc: field b: expected as column 2, where r.1.avsc has it, found none there; "
        "add columns behind the others",
    )


def row(*names: str) -> dict[str, Any]:
    columns = [field(["null", "int"], name, default=None) for name in names]
    return record(*columns, field(ARRAY, "stamps"), field("bytes", "stamp_of"))


def test_a_rows_columns_are_added_behind_the_others():
    assert check({"r.1": row("a", "b"), "r.2": row("a", "b", "c")}) == ()
    assert check({"r.1": row("a", "b"), "r.2": row("a", "c", "b")}) == (
        "r.2.avsc: field b: expected as column 2, where r.1.avsc has it, found c there; "
        "add columns behind the others",
    )


def test_a_row_is_read_by_old_and_new_workers_at_once():
    wider = row("a")
    wider["fields"][0]["type"] = ["null", "long"]
    assert check({"r.1": row("a"), "r.2": wider}) == (
        "r.2.avsc: cannot be read with r.1.avsc: "
        "field a: expected a branch that reads long, found [null, int]",
    )


def test_versions_are_ordered_by_number_and_names_are_kept_apart():
    catalogue = {
        "r.10": record(field("double")),
        "r.9": record(field("long")),
        "r.2": record(field("int")),
        "s.1": record(field("string")),
    }
    assert check(catalogue) == ()


def test_the_catalogue_breaks_nothing():
    catalogue = read_catalogue()
    assert "daily_summary.1" in catalogue
    assert check(catalogue) == ()
