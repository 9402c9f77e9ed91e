"""Descriptions of topics and records: a read-only Schema Registry API, and AsyncAPI.

Schemas cannot be registered: they are part of the code. Subjects follow the TopicName strategy.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from litestar import Response, Router, get
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from headwater.gateway.api.openapi import responses_of
from headwater.gateway.api.problems import Problem
from headwater.schemas import epochs
from headwater.schemas.installed_tables import ALL_TABLES, SCHEMA_IDS, schema_of_version
from headwater.schemas.topics import DEAD_LETTERS, TOPICS, Topic
from headwater.streams.kafka import dead_letters

_SCHEMAS: Final = {f"{topic.name}-value": topic.value for topic in TOPICS if topic.value}
_VERSION_OF: Final = {number: version for version, number in SCHEMA_IDS.items()}
_ROW_SCHEMAS: Final = {table.schema for table in ALL_TABLES}
_PROBLEMS: Final = responses_of("invalid_parameter", "unknown_schema")


@get("/subjects", summary="List the subjects", sync_to_thread=False)
def list_subjects(prefix: NamedDependency[str]) -> list[str]:
    """Return all subjects: one per topic with Avro values."""
    return sorted(prefix + name for name in _SCHEMAS)


@get(
    "/subjects/{subject:str}/versions",
    summary="List a subject's versions",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def list_versions(subject: FromPath[str], prefix: NamedDependency[str]) -> list[int]:
    """Return the version numbers of a subject."""
    return versions_of(_schema_of(subject, prefix))


@get(
    "/subjects/{subject:str}/versions/{number:str}",
    summary="Get a version of a subject",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def get_version(
    subject: FromPath[str], number: FromPath[str], prefix: NamedDependency[str]
) -> dict[str, str | int]:
    """Return a version of a subject, by number or as `latest`."""
    name = _schema_of(subject, prefix)
    versions = versions_of(name)
    latest = number in ("latest", "-1")
    version = f"{name}.{max(versions) if latest else number}"
    if version not in SCHEMA_IDS:
        raise Problem("unknown_schema", f"expected a version of {versions}, found {number[:64]!r}")
    return {
        "subject": subject,
        "id": SCHEMA_IDS[version],
        "version": int(version.rsplit(".", 1)[1]),
        "schema": json.dumps(schema_of_version(version)),
    }


@get(
    "/schemas/ids/{number:int}",
    summary="Get a schema by its id",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def get_schema(number: FromPath[int]) -> dict[str, str]:
    """Return a schema by the id in the first five bytes of a record."""
    if number not in _VERSION_OF:
        known = ", ".join(map(str, sorted(_VERSION_OF)))
        raise Problem("unknown_schema", f"expected one of the ids {known}, found {number}")
    return {"schema": json.dumps(schema_of_version(_VERSION_OF[number]))}


@get("/config", summary="Get the compatibility of events", sync_to_thread=False)
def get_config() -> dict[str, str]:
    """Return the default compatibility, which applies to all subjects except those of rows."""
    return {"compatibilityLevel": "BACKWARD_TRANSITIVE"}


@get(
    "/config/{subject:str}",
    summary="Get the compatibility of a subject",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def get_subject_config(subject: FromPath[str], prefix: NamedDependency[str]) -> dict[str, str]:
    """Return the compatibility of a subject, which the evolution check enforces."""
    rows = _schema_of(subject, prefix) in _ROW_SCHEMAS
    return {"compatibilityLevel": "FULL_TRANSITIVE" if rows else "BACKWARD_TRANSITIVE"}


def _schema_of(subject: str, prefix: str) -> str:
    is_ours = subject.startswith(prefix)
    name = _SCHEMAS.get(subject.removeprefix(prefix)) if is_ours else None
    if name is None:
        raise Problem(
            "unknown_schema", f"expected one of /registry/subjects, found {subject[:64]!r}"
        )
    return name


def versions_of(name: str) -> list[int]:
    """Return the version numbers of a schema, newest last."""
    parts = (version.rsplit(".", 1) for version in SCHEMA_IDS)
    return sorted(int(number) for stem, number in parts if stem == name)


def registry_routes(prefix: str) -> Router:
    """Return the routes of the registry; subjects begin with the prefix of the topics."""
    return Router(
        path="/registry",
        route_handlers=[
            list_subjects,
            list_versions,
            get_version,
            get_schema,
            get_config,
            get_subject_config,
        ],
        dependencies={"prefix": Provide(lambda: prefix, sync_to_thread=False)},
        tags=["schema registry"],
    )


# -- AsyncAPI 3.0

#: Version of the Kafka bindings.
_BINDING: Final = "0.5.0"
_AVRO: Final = "application/vnd.apache.avro;version=1.9.0"
_BYTES: Final = "bytes"
#: Settings that depend on the size of the cluster, so they are left out.
_CLUSTER_SETTINGS: Final = frozenset({"min.insync.replicas"})
_REPLICATION: Final = 1


def asyncapi(version: str, prefix: str) -> dict[str, Any]:
    """Return the AsyncAPI document, for topics with a prefix.

    The document lists no servers, because the address of Kafka and the access to it are up to the
    operator.
    """
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
        "channels": {topic.name: _channel(topic, prefix) for topic in TOPICS},
        "components": {
            "schemas": {
                **schemas,
                "headers": _headers(epochs.MEANINGS),
                "dead-letter-headers": _headers(dead_letters.MEANINGS),
            }
        },
    }


def asyncapi_route(version: str, prefix: str) -> Router:
    """Return the route of the document. Like the OpenAPI document, it needs no key."""
    content = msgspec.json.encode(asyncapi(version, prefix))

    @get("/asyncapi.json", include_in_schema=False, sync_to_thread=False)
    def document() -> Response[bytes]:
        return Response(content, media_type="application/json")

    return Router("/", route_handlers=[document])


def _values(topic: Topic) -> tuple[str, ...]:
    """Return the names of the schemas of a topic's values."""
    return () if topic.value is None else (topic.value, *topic.others)


def _channel(topic: Topic, prefix: str) -> dict[str, Any]:
    return {
        "address": prefix + topic.name,
        "description": topic.purpose,
        "messages": {name: _message(topic, name) for name in _values(topic) or (_BYTES,)},
        "bindings": {
            "kafka": {
                "topic": prefix + topic.name,
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
