"""Tables of installed packages: which are refused, and what their versions are called."""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from headwater.schemas import installed_tables
from headwater.schemas.installed_tables import (
    FINGERPRINTS,
    TableInvalid,
    table_problem,
    versions_of,
)
from headwater.schemas.tables import CONNECTIONS, TABLES, Column, Table
from tests.fakes.toy_table import TOY_BOXES


def test_a_table_as_they_come_with_headwater_has_no_fault():
    assert [table_problem(table) for table in (*TABLES, TOY_BOXES)] == [None] * (len(TABLES) + 1)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: replace(t, name="Toys;"),
         "expected a name such as github_pushes, found 'Toys;'"),
        (lambda t: replace(t, topic="toy_boxes"),
         "expected a topic such as github-pushes, found 'toy_boxes'"),
        (lambda t: replace(t, key_names=("box",)), "expected a column user_id, found none"),
        (lambda t: replace(t, key=()), "expected a key, found none"),
        (lambda t: replace(t, columns=()), "expected 1 to 254 columns, found 0"),
        (
            lambda t: replace(t, key=(Column(name="user_id", type=int, sql="bigint"),)),
            "expected a key of text, found other types",
        ),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused(change: Callable[[Table], Table], fault: str):
    assert table_problem(change(TOY_BOXES)) == fault


def test_a_version_is_the_key_and_the_first_columns():
    versions = list(versions_of(TOY_BOXES))
    assert [name for name, _, _ in versions] == ["toy_box.1", "toy_box.2", "toy_box.3"]
    fields = [[field["name"] for field in schema["fields"]] for _, _, schema in versions]
    assert fields[0] == ["user_id", "opened_at", "toys", "stamps", "stamp_of", "state"]
    assert fields[1] == ["user_id", "opened_at", "toys", "complete", "stamps", "stamp_of", "state"]
    ids = [number for _, number, _ in versions]
    assert len(set(ids)) == 3
    assert all(FINGERPRINTS <= number < 2 * FINGERPRINTS for number in ids)


def test_an_id_stays_when_columns_are_added_and_is_another_for_another_table():
    wider = list(versions_of(TOY_BOXES))
    renamed = list(versions_of(replace(TOY_BOXES, schema="another")))
    assert {number for _, number, _ in wider}.isdisjoint(number for _, number, _ in renamed)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("toys", "tests.fakes.no_such_module:TOYS", "expected a table, found ModuleNotFoundError"),
        ("toys", "tests.fakes.toy_table:ToyBox", "expected a table of that name, found"),
        ("toys", "tests.fakes.toy_table:TOY_BOXES", "expected a table of that name, found"),
    ],
)
def test_an_entry_point_that_is_no_table_is_named(name: str, value: str, fault: str):
    point = EntryPoint(name, value, installed_tables.GROUP)
    with pytest.raises(TableInvalid) as caught:
        installed_tables._load(point)
    assert caught.value.message.startswith(
        f"entry point {name} = {value} of headwater.tables: {fault}"
    )


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(
        TableInvalid, match=r"expected each name of a table once, found \['terra_conn"
    ):
        installed_tables._checked([*TABLES, replace(TOY_BOXES, name=CONNECTIONS.name)])
