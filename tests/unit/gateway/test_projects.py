"""A project is a namespace: one setting chooses its names in Kafka, in Postgres and on disk."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from headwater.gateway.settings.addresses import SettingsUnusable
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.environment import SettingsInvalid, environment, load_settings
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_with_secrets
from headwater.processors.sources import SourcesInvalid
from headwater.projections.postgres.connections import in_schema, own_dsn, schemas_of

DSN = "postgresql://me@db/shared"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROJECT", "TOPIC_PREFIX", "POSTGRES_SCHEMA"):
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)


def test_the_default_project_has_names_without_a_prefix():
    settings = load_settings(postgres=DSN)
    assert cluster_of(settings).prefix == ""
    assert dsn_of(settings) == DSN
    assert schemas_of(DSN).tables == "headwater"
    assert schemas_of(DSN).authors == "authors"
    assert settings.state_dir == Path(".headwater/state").absolute()
    assert settings.blobs_at == ".headwater/blobs"


def test_one_setting_chooses_all_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWATER_PROJECT", "acme-EU")
    settings = load_settings(postgres=DSN)
    assert cluster_of(settings).prefix == "acme-EU."
    schemas = schemas_of(dsn_of(settings))
    assert schemas.tables == "headwater_acme_eu"
    assert schemas.authors == "headwater_acme_eu_authors"
    assert schemas.steps == "headwater_acme_eu_steps"
    assert schemas.rebuilt == "headwater_acme_eu_rebuilt"
    assert settings.state_dir == Path(".headwater/state/acme-EU.").absolute()
    assert settings.blobs_at == ".headwater/blobs/acme-EU."


def test_a_child_process_has_the_names_of_its_parent(monkeypatch: pytest.MonkeyPatch):
    parent = load_settings(project="acme", topic_prefix="", postgres_schema="elsewhere")
    for name, value in environment(parent).items():
        if not name.endswith("_FILE"):
            monkeypatch.setenv(name, value)
    child = load_settings()
    assert (child.project, child.topic_prefix, child.postgres_schema) == ("acme", "", "elsewhere")


def test_blobs_of_two_projects_in_one_bucket_are_apart():
    settings = Settings(project="acme", blobs="s3://bucket/files/")
    assert settings.blobs_at == "s3://bucket/files/acme."


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("topic_prefix", "acme", "ending with"),
        ("topic_prefix", "a b.", "characters out of"),
        ("topic_prefix", "__acme.", "beginning"),
        ("topic_prefix", "a" * 100 + ".", "at most 100"),
        ("postgres_schema", "Acme", "name of a schema"),
        ("postgres_schema", "a" * 54, "1 to 53"),
        ("postgres_schema", "1a", "name of a schema"),
        ("postgres_schema", "public", "own"),
        ("postgres_schema", "authors", "own"),
        ("postgres_schema", "pg_acme", "own"),
        ("postgres_schema", "headwater_rebuilt", "own"),
        ("project", "steps", "own"),
    ],
)
def test_a_name_that_is_not_possible_is_refused(name: str, value: str, expected: str):
    with pytest.raises(SettingsInvalid) as refused:
        load_settings(**{name: value})
    (problem,) = refused.value.problems
    variable = "POSTGRES_SCHEMA" if name == "project" else name.upper()
    assert problem.startswith(f"HEADWATER_{variable}: expected ")
    assert expected in problem


def test_a_prefix_that_makes_the_name_of_another_projects_topic_is_refused():
    with pytest.raises(SettingsUnusable, match="found 'terra-lab-uploads'"):
        cluster_of(load_settings(topic_prefix="terra-"))


def test_a_source_is_no_topic_of_the_project(tmp_path: Path):
    def problems(topic: str) -> str:
        file = tmp_path / "sources.toml"
        file.write_text(
            f'[[source]]\nname = "own"\nkind = "kafka"\ntopic = "{topic}"\nformat = "json"\n'
            "type = { cel = \"'a'\" }\nsubject = { cel = \"'b'\" }\n"
        )
        settings = load_settings(project="acme", sources=str(file))
        try:
            sources_with_secrets(settings, {})
        except SourcesInvalid as error:
            return error.message
        return ""

    assert "found Headwater's own acme.events" in problems("acme.events")
    assert problems("events") == ""


def test_a_dsn_states_the_schema_whatever_its_search_path():
    stated = in_schema("host=db options='-c search_path=public -c lock_timeout=1s'", "elsewhere")
    options = str(conninfo_to_dict(own_dsn(stated, "elsewhere_rebuilt"))["options"])
    assert options.endswith("-c search_path=elsewhere_rebuilt,elsewhere")
    assert "lock_timeout=1s" in options
