"""Read-only Schema Registry API, so that Kafka viewers can decode records.

Schemas cannot be registered: they are part of the code. Subjects follow the TopicName strategy.
"""

import json
from typing import Final

from litestar import Router, get
from litestar.params import FromPath

from headwater.gateway.api.openapi import responses_of
from headwater.gateway.api.problems import Problem
from headwater.schemas.installed_tables import ALL_TABLES, SCHEMA_IDS, schema_of_version
from headwater.schemas.topics import TOPICS

_SUBJECTS: Final = {f"{topic.name}-value": topic.value for topic in TOPICS if topic.value}
_VERSION_OF: Final = {number: version for version, number in SCHEMA_IDS.items()}
_ROW_SCHEMAS: Final = {table.schema for table in ALL_TABLES}
_PROBLEMS: Final = responses_of("invalid_parameter", "unknown_schema")


@get("/subjects", summary="List the subjects", sync_to_thread=False)
def list_subjects() -> list[str]:
    """Return all subjects: one for each topic with Avro values."""
    return sorted(_SUBJECTS)


@get(
    "/subjects/{subject:str}/versions",
    summary="List a subject's versions",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def list_versions(subject: FromPath[str]) -> list[int]:
    """Return the version numbers of a subject."""
    return _versions(subject)


@get(
    "/subjects/{subject:str}/versions/{number:str}",
    summary="Get a version of a subject",
    responses=_PROBLEMS,
    sync_to_thread=False,
)
def get_version(subject: FromPath[str], number: FromPath[str]) -> dict[str, str | int]:
    """Return a version of a subject, by number or as `latest`."""
    name = _schema_of(subject)
    latest = number in ("latest", "-1")
    version = f"{name}.{max(_versions(subject)) if latest else number}"
    if version not in SCHEMA_IDS:
        raise Problem(
            "unknown_schema", f"expected a version of {_versions(subject)}, found {number[:64]!r}"
        )
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
def get_subject_config(subject: FromPath[str]) -> dict[str, str]:
    """Return the compatibility of a subject, which the evolution check enforces."""
    rows = _schema_of(subject) in _ROW_SCHEMAS
    return {"compatibilityLevel": "FULL_TRANSITIVE" if rows else "BACKWARD_TRANSITIVE"}


def _schema_of(subject: str) -> str:
    name = _SUBJECTS.get(subject)
    if name is None:
        raise Problem(
            "unknown_schema", f"expected one of /registry/subjects, found {subject[:64]!r}"
        )
    return name


def _versions(subject: str) -> list[int]:
    return versions_of(_schema_of(subject))


def versions_of(name: str) -> list[int]:
    """Return the version numbers of a schema, newest last."""
    parts = (version.rsplit(".", 1) for version in SCHEMA_IDS)
    return sorted(int(number) for stem, number in parts if stem == name)


registry: Final = Router(
    path="/registry",
    route_handlers=[
        list_subjects,
        list_versions,
        get_version,
        get_schema,
        get_config,
        get_subject_config,
    ],
    tags=["schema registry"],
)
