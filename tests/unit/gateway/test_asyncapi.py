"""/asyncapi.json: what lies in Kafka, as it is declared; all of it, and nothing that is not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.schemas import epochs
from headwater.schemas.installed_tables import ALL_TABLES, SCHEMA_IDS, schema_of_version
from headwater.schemas.topics import DEAD_LETTERS, TOPICS, Cleanup
from headwater.streams.kafka.dead_letters import ProcessingFailure, dead_letter
from headwater.streams.kafka.records import Incoming


@pytest.fixture
def found(client: TestClient[Any]) -> dict[str, Any]:
    answer = client.get("/asyncapi.json")  # without a key, as /schema
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["version"] == client.get("/schema").json()["info"]["version"]
    return document


def nodes(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for value in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from nodes(value)


def test_every_topic_is_there_with_its_meaning_key_and_settings(found: dict[str, Any]):
    assert list(found["channels"]) == [topic.name for topic in TOPICS]
    for topic in TOPICS:
        channel = found["channels"][topic.name]
        assert (channel["address"], channel["description"]) == (topic.name, topic.purpose)
        settings = channel["bindings"]["kafka"]["topicConfiguration"]
        assert ",".join(settings["cleanup.policy"]) == topic.cleanup
        assert settings["retention.ms"] == (topic.retention_ms or -1)
        if topic.cleanup is not Cleanup.DELETE:
            assert settings["min.compaction.lag.ms"] == topic.compaction_lag_ms
        for message in channel["messages"].values():
            assert message["bindings"]["kafka"]["key"]["description"] == topic.key
        names = [name for name in (topic.value, *topic.others) if name is not None]
        assert list(channel["messages"]) == (names or ["bytes"])


def test_every_schema_of_the_catalogue_is_there_in_its_newest_version(found: dict[str, Any]):
    schemas = found["components"]["schemas"]
    stems = {version.rsplit(".", 1)[0] for version in SCHEMA_IDS}
    assert {name for name in schemas if not name.endswith("headers")} == stems
    assert {table.schema for table in ALL_TABLES} <= stems
    for stem in stems:
        numbers = [int(v.rsplit(".", 1)[1]) for v in SCHEMA_IDS if v.rsplit(".", 1)[0] == stem]
        newest = f"{stem}.{max(numbers)}"
        assert schemas[stem]["schema"] == json.loads(json.dumps(schema_of_version(newest)))
        assert schemas[stem]["x-registry-id"] == SCHEMA_IDS[newest]


def test_each_reference_leads_to_a_component(found: dict[str, Any]):
    references = [node["$ref"] for node in nodes(found) if "$ref" in node]
    assert len(references) > len(TOPICS)
    for reference in references:
        start, *path = reference.split("/")
        assert start == "#"
        at: Any = found
        for part in path:
            at = at[part]


def test_the_headers_of_records_are_explained(found: dict[str, Any]):
    schemas = found["components"]["schemas"]
    for name in (epochs.EPOCH, epochs.CLAIM, epochs.UNSEEN, epochs.WIPED[0]):
        assert schemas["headers"]["properties"][name]["description"]
    record = Incoming("events", 0, 7, 1, 0, b"key", b"value", None, 3, 5, ())
    dead = dead_letter(record, ProcessingFailure("intake", "r", "d", rule="a rule"), now_ms=1)
    explained = schemas["dead-letter-headers"]["properties"]
    assert {name for name, _ in dead.headers or ()} <= set(explained)
    (message,) = found["channels"][DEAD_LETTERS]["messages"].values()
    assert message["headers"]["$ref"].endswith("/dead-letter-headers")
