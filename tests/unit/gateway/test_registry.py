"""The read half of the Schema Registry's API."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from headwater.gateway.api.record_schemas import asyncapi, registry_routes
from headwater.schemas.codec import encode
from headwater.schemas.installed_tables import SCHEMA_IDS
from headwater.schemas.records import WebhooksClaimed

Get = Callable[[str], httpx2.Response]


@pytest.fixture
def get(client: TestClient[Any]) -> Get:
    return lambda path: client.get(f"/registry{path}")


def test_a_viewer_finds_the_schema_that_a_record_names(get: Get):
    number = int.from_bytes(encode(WebhooksClaimed(["e1"], [1], [1], 2))[1:5], "big")
    schema = json.loads(get(f"/schemas/ids/{number}").json()["schema"])
    assert schema["name"] == "WebhooksClaimed"


def test_every_topic_with_values_of_ours_is_a_subject(get: Get):
    subjects = get("/subjects").json()
    assert "daily-summary-value" in subjects
    assert "dead-letters-value" not in subjects
    for subject in subjects:
        versions = get(f"/subjects/{subject}/versions").json()
        assert versions == list(range(1, len(versions) + 1))
        latest = get(f"/subjects/{subject}/versions/latest").json()
        assert latest["id"] in SCHEMA_IDS.values()
        assert latest == get(f"/subjects/{subject}/versions/{versions[-1]}").json()


def test_rows_are_held_to_full_compatibility_and_events_to_backward(get: Get):
    assert get("/config/daily-summary-value").json() == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert get("/config").json() == {"compatibilityLevel": "BACKWARD_TRANSITIVE"}


def test_what_is_not_there_is_a_problem(get: Get):
    for path in (
        "/config/x",
        "/schemas/ids/99",
        "/subjects/x/versions/1",
        "/subjects/events-value/versions/9",
    ):
        answer = get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_schema")


def test_topics_and_subjects_have_the_prefix_of_their_project():
    channel = asyncapi("1", "acme.")["channels"]["daily-summary"]
    assert channel["address"] == channel["bindings"]["kafka"]["topic"] == "acme.daily-summary"
    with TestClient(Litestar([registry_routes("acme.")], openapi_config=None)) as client:
        subjects = client.get("/registry/subjects").json()
        assert "acme.daily-summary-value" in subjects
        assert "daily-summary-value" not in subjects
        for subject in subjects:
            assert client.get(f"/registry/subjects/{subject}/versions").is_success
        assert client.get("/registry/subjects/daily-summary-value/versions").is_error
