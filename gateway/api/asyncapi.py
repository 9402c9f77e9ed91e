"""AsyncAPI 3.0 document of the topics, generated from the catalogs of topics and schemas.

It lists no servers, because the address of Kafka and the access to it are up to the operator.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from litestar import Response, Router, get

from headwater.gateway.api.schema_registry import versions_of
from headwater.schemas import epochs
from headwater.schemas.installed_tables import SCHEMA_IDS, schema_of_version
from headwater.schemas.topics import DEAD_LETTERS, TOPICS, Topic
from headwater.streams.kafka import dead_letters

#: Version of the Kafka bindings.
_BINDING: Final = "0.5.0"
_AVRO: Final = "application/vnd.apache.avro;version=1.9.0"
_BYTES: Final = "bytes"
#: Settings that depend on the size of the cluster, so they are left out.
_CLUSTER_SETTINGS: Final = frozenset({"min.insync.replicas"})
_REPLICATION: Final = 1


def asyncapi(version: str) -> dict[str, Any]:
    """Return the AsyncAPI document."""
    schemas = {name: _schema(name) for topic in TOPICS for name in _values(topic)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headwater",
            "version": version,
            "description": "The topics and the records in them. Values are Avro in Confluent's "
            "wire format; their ids and older versions are at /registry.",
        },
        "defaultContentType": "application/vnd.apache.avro",
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "components": {
            "schemas": {
                **schemas,
                "headers": _headers(epochs.MEANINGS),
                "dead-letter-headers": _headers(dead_letters.MEANINGS),
            }
        },
    }


def asyncapi_route(version: str) -> Router:
    """Return the route of the document. Like the OpenAPI document, it needs no key."""
    content = msgspec.json.encode(asyncapi(version))

    @get("/asyncapi.json", include_in_schema=False, sync_to_thread=False)
    def document() -> Response[bytes]:
        return Response(content, media_type="application/json")

    return Router("/", route_handlers=[document])


def _values(topic: Topic) -> tuple[str, ...]:
    """Return the names of the schemas of a topic's values."""
    return () if topic.value is None else (topic.value, *topic.others)


def _channel(topic: Topic) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": topic.purpose,
        "messages": {name: _message(topic, name) for name in _values(topic) or (_BYTES,)},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "topicConfiguration": _configuration(topic),
                "bindingVersion": _BINDING,
            }
        },
    }


def _configuration(topic: Topic) -> dict[str, Any]:
    configuration: dict[str, Any] = {}
    for name, value in topic.config(_REPLICATION).items():
        if name == "cleanup.policy":
            configuration[name] = value.split(",")
        elif name not in _CLUSTER_SETTINGS:
            configuration[name] = int(value) if value.removeprefix("-").isdigit() else value
    return configuration


def _message(topic: Topic, name: str) -> dict[str, Any]:
    key = {"type": "string", "description": topic.key}
    headers = "dead-letter-headers" if topic.name == DEAD_LETTERS else "headers"
    message: dict[str, Any] = {"name": name, "headers": _reference(headers)}
    kafka: dict[str, Any] = {"key": key, "bindingVersion": _BINDING}
    if topic.key_form is not None:
        key["pattern"] = f"^(?:{topic.key_form.pattern.decode()})$"
    if name == _BYTES:
        message |= {"contentType": "application/octet-stream", "summary": "Opaque bytes."}
    else:
        message["payload"] = _reference(name)
        kafka |= {
            "schemaIdLocation": "payload",
            "schemaIdPayloadEncoding": "confluent",
            "schemaLookupStrategy": "TopicNameStrategy",
        }
    return {**message, "bindings": {"kafka": kafka}}


def _schema(name: str) -> dict[str, Any]:
    """Return the newest version of a schema."""
    newest = f"{name}.{versions_of(name)[-1]}"
    return {
        "schemaFormat": _AVRO,
        "schema": schema_of_version(newest),
        "x-registry-id": SCHEMA_IDS[newest],
    }


def _headers(meanings: Mapping[str, str]) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": meaning} for name, meaning in meanings.items()
    }
    return {"type": "object", "properties": properties}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
