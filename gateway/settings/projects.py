"""The project of an installation, and its names in Kafka and Postgres that follow from it."""

import re
from typing import Any, Final

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.gateway.settings.patterns import DEFAULT_SCHEMA, LABEL, SCHEMA, TOPIC_PREFIX

#: The project whose names have no prefix.
DEFAULT_PROJECT: Final = "default"
#: Schemas that other programs use, and that of authors' tables.
_SHARED: Final = ("public", "information_schema", "authors")
#: Ends of the schemas that belong to one of Headwater's tables.
_DERIVED: Final = ("_authors", "_rebuilt", "_steps")


class ProjectSettings(BaseSettings):
    """Several projects share a Kafka cluster and a database, and see nothing of each other."""

    project: str = Field(
        default=DEFAULT_PROJECT,
        pattern=LABEL,
        description="Project name. Scopes audit entries and idempotency keys. One other than "
        "default also chooses HEADWATER_TOPIC_PREFIX and HEADWATER_POSTGRES_SCHEMA.",
    )
    topic_prefix: str = Field(
        default="",
        pattern=TOPIC_PREFIX,
        description="Prefix of Headwater's topics, consumer groups, transactional ids and clients "
        "in Kafka, such as acme.; unless it is set, PROJECT. for a project other than default.",
    )
    postgres_schema: str = Field(
        default=DEFAULT_SCHEMA,
        pattern=SCHEMA,
        description="Schema of Headwater's tables in Postgres; unless it is set, "
        "headwater_PROJECT for a project other than default.",
    )

    @field_validator("postgres_schema")
    @classmethod
    def _of_its_own(cls, schema: str) -> str:
        if schema in _SHARED or schema.startswith("pg_") or schema.endswith(_DERIVED):
            raise PydanticCustomError("not_own_schema", "")
        return schema

    @model_validator(mode="before")
    @classmethod
    def _name_after_project(cls, values: dict[str, Any]) -> dict[str, Any]:
        project = str(values.get("project", DEFAULT_PROJECT))
        if project == DEFAULT_PROJECT or not re.fullmatch(LABEL, project):
            return values
        words = re.sub("[^a-z0-9]+", "_", project.lower())
        names = {"topic_prefix": f"{project}.", "postgres_schema": f"{DEFAULT_SCHEMA}_{words}"}
        return names | values
