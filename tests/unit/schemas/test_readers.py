"""Readers of what was written by another version of a schema."""

import struct
from enum import StrEnum
from typing import Any

import msgspec
import pytest

from headwater.schemas.readers import Reader, fields_reader_of, number, reader_of


class Colour(StrEnum):
    RED = "red"


class Circle(msgspec.Struct, frozen=True):
    radius: int
    colour: Colour = Colour.RED


class Square(msgspec.Struct, frozen=True):
    side: int


class Drawing(msgspec.Struct, frozen=True):
    name: str
    shapes: tuple[Circle | Square, ...] = ()
    first: Circle | None = None
    tags: list[str] = []


def field(name: str, kind: object) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


CIRCLE = record("Circle", field("radius", "long"))
SQUARE = record("Square", field("side", "long"))


def drawing(*fields: dict[str, Any]) -> Reader:
    return reader_of(record("Drawing", field("name", "string"), *fields), Drawing)


def test_a_field_that_was_not_written_has_its_default():
    assert drawing()(b"\x02n", 0) == (Drawing("n"), 2)


def test_a_field_that_is_gone_is_passed_over_whatever_is_within_it():
    ghost = record("Ghost", field("inner", CIRCLE), field("boo", ["null", "string", "long"]))
    read = drawing(
        field("gone", {"type": "array", "items": ghost}),
        field("first", ["null", "Circle"]),
    )
    two_ghosts = b"\x04" + b"\x02\x00" + b"\x04\x02\x02!" + b"\x00"
    assert read(b"\x02n" + two_ghosts + b"\x02\x0e", 0)[0] == Drawing("n", first=Circle(7))


def test_a_union_may_have_had_fewer_branches_in_another_order():
    read = drawing(field("shapes", {"type": "array", "items": [SQUARE, CIRCLE]}))
    assert read(b"\x02n\x04\x00\x06\x02\x08\x00", 0)[0].shapes == (Square(3), Circle(4))
    alone = drawing(field("shapes", {"type": "array", "items": SQUARE}))
    assert alone(b"\x02n\x02\x06\x00", 0)[0].shapes == (Square(3),)


def test_what_may_be_null_now_may_not_have_been():
    assert drawing(field("first", CIRCLE))(b"\x02n\x06", 0)[0].first == Circle(3)


def test_a_list_stays_a_list_and_text_becomes_the_member_that_it_names():
    coloured = record("Circle", field("radius", "long"), field("colour", "string"))
    read = drawing(field("first", coloured), field("tags", {"type": "array", "items": "string"}))
    result, _ = read(b"\x02n\x02\x06red\x02\x02t\x00", 0)
    assert result == Drawing("n", first=Circle(1), tags=["t"])
    assert result.first.colour is Colour.RED
    with pytest.raises(LookupError, match="sad"):
        read(b"\x02n\x02\x06sad\x00", 0)


def test_a_branch_that_the_struct_does_not_have_is_refused_when_the_reader_is_made():
    with pytest.raises(LookupError, match="for Triangle, found none"):
        drawing(field("shapes", {"type": "array", "items": [record("Triangle")]}))


def test_fields_are_given_in_the_order_that_was_asked_for():
    schema = record("Row", field("a", "long"), field("gone", "boolean"), field("b", "double"))
    read = fields_reader_of(schema, {"a": int, "b": float}, ("b", "new", "a"))
    assert read(b"\x02\x01" + bytes(8), 0) == ((0.0, None, 1), 10)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("boolean", b"\x02"), ("bytes", b"\x01"), ("string", b"\x81\x01"), ("double", b"\x00"),
        (["null", "string"], b"\x04"), (["null", "string", "long"], b"\x06"),
        (["string", "long"], b"\x01"), ("string", b"\x02\xff"), ("long", b"\x80"),
        ("long", b"\xff" * 10 + b"\x01"), ("long", b"\xff" * 9 + b"\x7f"),
    ],
)  # fmt: skip
def test_bytes_that_mean_nothing_are_refused(kind: object, data: bytes):
    with pytest.raises((LookupError, ValueError, struct.error)):
        reader_of(kind, object)(data, 0)


def test_a_number_that_never_ends_is_refused_at_once():
    with pytest.raises(ValueError, match="expected a number of 64 bits, found 100001 bytes"):
        number(b"\xff" * 100_000 + b"\x00", 0)
