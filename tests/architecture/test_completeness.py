"""Nothing is half there: every record has a topic, and every topic of ours a record."""

import re

import msgspec
import pytest

from headwater.schemas import topics
from headwater.schemas.avro_schemas import NEWEST
from headwater.schemas.installed_tables import ALL_TABLES as TABLES
from headwater.schemas.installed_tables import INSTALLED
from headwater.schemas.records import RECORD_TYPES, Record
from headwater.schemas.row_states import UNSET
from headwater.schemas.tables import Table
from headwater.schemas.topics import TOPICS


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_has_a_key_of_text_and_columns_that_may_be_null(table: Table):
    assert all(column.type is str for column in table.key)
    for field in msgspec.structs.fields(table.kind)[len(table.key) :]:
        assert field.default is None
    assert {column.type for column in table.columns} <= {str, int, float, bool}
    # One byte a column names its stamp, and one value of it says that there is none.
    assert len(table.columns) < UNSET


def test_every_record_type_is_in_the_table_of_types():
    assert set(Record.__args__) == set(RECORD_TYPES.values())


def test_every_topic_is_named_once():
    names = [topic.name for topic in TOPICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)
    constants = {
        value for name, value in vars(topics).items() if name.isupper() and isinstance(value, str)
    } - {topics.COMPRESSION}
    assert constants <= set(names)
    assert {table.topic for table in TABLES} == set(names) - constants
    assert all(topic.purpose and topic.key for topic in TOPICS)


def test_every_schema_travels_in_a_topic_and_every_topic_of_ours_has_one():
    travel = {name for topic in TOPICS for name in (topic.value, *topic.others)}
    assert travel - {None} == set(NEWEST) | {table.schema for table in INSTALLED}


def test_every_table_is_named_once():
    for part in ("name", "schema", "topic"):
        assert len({getattr(table, part) for table in TABLES}) == len(TABLES)
