"""Nothing is half there: records have Avro twins, topics a line, schemas an id."""

import json
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from headwater.schemas import topics
from headwater.schemas.catalogue import IDS
from headwater.schemas.conversions import NAMESPACE
from headwater.schemas.evolution import check, read_catalogue
from headwater.schemas.history import EntryKind
from headwater.schemas.records import RECORD_TYPES, Record, Stamp
from headwater.schemas.tables import TABLES, UNSET, Table
from headwater.schemas.topics import TOPICS

AVRO = Path(__file__).resolve().parents[2] / "schemas" / "avro"

#: Ids that were given out: records in Kafka carry them, so a line may be added here, never changed.
GIVEN_OUT = {
    "webhook_received.1": 1,
    "webhook_admitted.1": 2,
    "webhooks_claimed.1": 3,
    "outcome_recorded.1": 4,
    "duplicate_dropped.1": 5,
    "terra_connection.1": 6,
    "daily_summary.1": 7,
    "sleep_session.1": 8,
    "history_appended.1": 9,
    "command_sent.1": 10,
    "reply_sent.1": 11,
    "snapshot_taken.1": 12,
    "history_appended.2": 13,
    "command_sent.2": 14,
}

_AVRO_OF: dict[object, tuple[str, ...]] = {
    NoneType: ("null",),
    str: ("string",),
    EntryKind: ("string",),
    bytes: ("bytes",),
    bool: ("boolean",),
    int: ("int", "long"),
}


def newest() -> dict[str, dict[str, Any]]:
    """The newest version of every schema, by name."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for stem, schema in read_catalogue().items():
        name, _, number = stem.rpartition(".")
        found[name] = max(found.get(name, (0, {})), (int(number), schema), key=lambda pair: pair[0])
    return {name: schema for name, (_, schema) in found.items()}


def agree(schema: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Asserts that an Avro record and a struct have the same fields in the same order."""
    agree_within(schema, kind, set())


def agree_within(
    schema: dict[str, Any], kind: type[msgspec.Struct], defined: set[type[msgspec.Struct]]
) -> None:
    """The same for a record within a schema that has defined some others before it."""
    defined.add(kind)
    fields = msgspec.structs.fields(kind)
    assert schema["type"] == "record"
    assert schema["name"] == kind.__name__
    assert schema["doc"], f"{kind.__name__}: expected a doc"
    assert [field["name"] for field in schema["fields"]] == [field.name for field in fields]
    for avro, field in zip(schema["fields"], fields, strict=True):
        where = f"{kind.__name__}.{field.name}"
        agree_on_type(avro["type"], field.type, where, defined)
        assert ("default" in avro) is (not field.required), f"{where}: a default here, none there"
        if not field.required:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert avro["default"] == default, f"{where}: expected the default {default}"
        assert avro["doc"], f"{where}: expected a doc"


def agree_on_type(
    avro: Any,  # noqa: ANN401, any JSON
    annotation: object,
    where: str,
    defined: set[type[msgspec.Struct]],
) -> None:
    """Asserts that a type of Avro's is that of an annotation; null is the first of a union."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        members = sorted(members, key=lambda member: member is not NoneType)
        assert isinstance(avro, list), f"{where}: expected a union, found {avro}"
        assert len(avro) == len(members), f"{where}: expected {members}, found {avro}"
        for branch, member in zip(avro, members, strict=True):
            agree_on_type(branch, member, where, defined)
    elif origin in (tuple, list):
        assert avro["type"] == "array", f"{where}: expected an array, found {avro}"
        agree_on_type(avro["items"], members[0], f"{where}[]", defined)
    elif annotation in _AVRO_OF:
        expected = _AVRO_OF[annotation]
        assert avro in expected, f"{where}: expected {expected}, found {avro}"
    elif annotation in defined:
        assert avro == annotation.__name__, f"{where}: expected {annotation}, found {avro}"
    else:
        assert isinstance(avro, dict), f"{where}: expected a record, found {avro}"
        agree_within(avro, annotation, defined)


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_every_record_has_an_avro_twin_of_the_same_fields(name: str):
    agree(newest()[name], RECORD_TYPES[name])


def test_every_schema_is_in_the_namespace_of_the_house():
    assert {schema["namespace"] for schema in read_catalogue().values()} == {NAMESPACE}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_has_an_avro_file_of_keys_columns_and_bookkeeping(table: Table):
    fields = newest()[table.schema]["fields"]
    names = [field["name"] for field in fields]
    assert names == [each.name for each in (*table.key, *table.columns)] + ["stamps", "stamp_of"]
    agree(fields[-2]["type"]["items"], Stamp)
    assert fields[-1]["type"] == "bytes"
    for field in fields[: len(table.key)]:
        assert field["type"] == "string"
        assert field["key"] is True
    for field in fields[len(table.key) : -2]:
        assert field["type"][0] == "null"
        assert field["default"] is None
        assert field["type"][1] in {"string", "long", "double", "boolean"}
        assert "key" not in field
    # One byte a column names its stamp, and one value of it says that there is none.
    assert len(table.columns) < UNSET


def test_every_avro_file_belongs_to_a_record_or_a_table_and_the_other_way_round():
    assert set(newest()) == set(RECORD_TYPES) | {table.schema for table in TABLES}


def test_every_record_type_is_in_the_table_of_types():
    assert set(Record.__args__) == set(RECORD_TYPES.values())


def test_every_schema_has_an_id_and_every_id_a_schema():
    assert set(IDS) == set(read_catalogue())
    assert len(set(IDS.values())) == len(IDS)
    assert all(0 < number < 2**31 for number in IDS.values())


def test_an_id_that_was_given_out_never_changes():
    assert {name: IDS.get(name) for name in GIVEN_OUT} == GIVEN_OUT
    later = {name: number for name, number in IDS.items() if name not in GIVEN_OUT}
    assert all(number > max(GIVEN_OUT.values()) for number in later.values())


def test_ids_are_in_the_order_of_versions():
    # The codec writes with the version that has the greatest id of its name.
    for stem, number in IDS.items():
        name, _, version = stem.rpartition(".")
        older = IDS.get(f"{name}.{int(version) - 1}")
        assert int(version) == 1 or (older is not None and older < number), stem


def test_the_files_are_written_as_json_formats_them():
    for path in sorted(AVRO.iterdir()):
        text = path.read_text(encoding="utf-8")
        written = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        assert text == written + "\n", f"{path.name}: expected json.dumps(indent=2)"


def test_no_version_breaks_another():
    assert check(read_catalogue()) == ()


def test_every_topic_is_named_once():
    names = [topic.name for topic in TOPICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)
    constants = {
        value for name, value in vars(topics).items() if name.isupper() and isinstance(value, str)
    }
    assert constants <= set(names)
    assert {table.topic for table in TABLES} == set(names) - constants
    assert all(topic.purpose and topic.key for topic in TOPICS)


def test_every_schema_travels_in_a_topic_and_every_topic_of_ours_has_one():
    assert {topic.value for topic in TOPICS if topic.value is not None} == set(newest())


def test_every_table_is_named_once():
    for part in ("name", "schema", "topic"):
        assert len({getattr(table, part) for table in TABLES}) == len(TABLES)
