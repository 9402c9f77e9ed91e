"""The Avro files are those that the structs give."""

import json
from enum import StrEnum

import msgspec
import pytest

from headwater.schemas.avro_schemas import IDS, row_schema_of, schema_of
from headwater.schemas.write import RELEASED_THROUGH, Versions, checked_in, generated, renewed


class Colour(StrEnum):
    RED = "red"


class Inner(msgspec.Struct):
    """What lies within.

    Nobody reads this.
    """

    #: A number.
    number: int


class Ancestor(msgspec.Struct):
    """An ancestor."""

    #: Inherited.
    inherited: bytes


class Everything(Ancestor):
    """All that a `record`
    may hold."""

    #: A text that goes on
    #: in another line.
    text: str
    #: A colour.
    colour: Colour
    #: The first.
    inner: Inner
    #: The others.
    others: tuple[Inner, ...] = ()
    #: One or none.
    union: Inner | None = None
    #: A switch.
    switch: bool = False


class Bare(msgspec.Struct):
    """A record that does not say what its field is."""

    bare: int


class Table(msgspec.Struct):
    """A table."""

    #: The key.
    user: str
    #: A column.
    steps: int | None = None


def record(**defaults: int) -> str:
    fields = [{"name": name, "type": "long", "default": defaults[name]} for name in defaults]
    return json.dumps({"type": "record", "name": "R", "doc": "", "fields": fields})


def test_what_is_checked_in_is_what_the_structs_say():
    assert renewed(checked_in(), generated(), RELEASED_THROUGH) == checked_in(), (
        "run `make schemas`"
    )


def test_every_id_is_a_number_of_its_own_that_four_bytes_hold():
    assert len(set(IDS.values())) == len(IDS)
    assert all(0 < number < 2**31 for number in IDS.values())


def test_a_record_has_the_fields_of_its_struct_and_the_docs_of_its_source():
    inner = {
        "type": "record",
        "name": "Inner",
        "doc": "What lies within.",
        "fields": [{"name": "number", "type": "long", "doc": "A number."}],
    }
    assert schema_of(Everything) == {
        "type": "record",
        "name": "Everything",
        "namespace": "headwater",
        "doc": "All that a record may hold.",
        "fields": [
            {"name": "inherited", "type": "bytes", "doc": "Inherited."},
            {"name": "text", "type": "string", "doc": "A text that goes on in another line."},
            {"name": "colour", "type": "string", "doc": "A colour.", "members": ["red"]},
            {"name": "inner", "type": inner, "doc": "The first."},
            {
                "name": "others",
                "type": {"type": "array", "items": "Inner"},
                "doc": "The others.",
                "default": (),
            },
            {"name": "union", "type": ["null", "Inner"], "doc": "One or none.", "default": None},
            {"name": "switch", "type": "boolean", "doc": "A switch.", "default": False},
        ],
    }


def test_a_row_names_its_key_and_ends_with_its_stamps():
    key, column, stamps, stamp_of, state = row_schema_of(Table)["fields"]
    assert key == {"name": "user", "type": "string", "doc": "The key.", "key": True}
    assert column["type"] == ["null", "long"]
    assert stamps["type"]["items"]["name"] == "Stamp"
    assert stamp_of["type"] == "bytes"
    assert (state["type"], state["default"]) == ("string", "")


def test_a_field_without_a_doc_is_refused():
    with pytest.raises(TypeError, match=r"Bare\.bare: expected a #: comment above it"):
        schema_of(Bare)


def test_what_was_not_released_is_made_anew():
    old = Versions({"r.1": record(), "gone.1": record()}, {"r.1": 1, "gone.1": 2})
    new = Versions({"r.1": record(x=1)}, {"r.1": 1})
    assert renewed(old, {"r": record(x=1)}, 0) == new


def test_what_was_released_stays_and_a_change_begins_the_next_version():
    old = Versions({"r.1": record(), "s.1": record()}, {"r.1": 1, "s.1": 2})
    new = Versions(old.texts | {"r.2": record(x=1)}, old.ids | {"r.2": 3})
    schemas = {"r": record(x=1), "s": record()}
    assert renewed(old, schemas, 2) == new
    assert renewed(new, schemas | {"r": record(x=2)}, 2).texts["r.2"] == record(x=2)
    assert renewed(new, schemas | {"r": record(x=2)}, 3).ids["r.3"] == 4


def test_another_doc_alone_is_no_reason_for_another_version():
    old = Versions({"r.1": record(x=1)}, {"r.1": 1})
    said = record(x=1).replace('"doc": ""', '"doc": "A record."')
    assert renewed(old, {"r": said}, 1) == old
