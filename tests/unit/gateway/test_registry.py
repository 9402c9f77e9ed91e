"""The read half of the Schema Registry's API."""

import json

from litestar import Litestar
from litestar.testing import TestClient

from gateway.problems import HANDLERS
from gateway.registry import registry
from schemas.catalogue import IDS
from schemas.codec import encode
from schemas.records import WebhookClaimed


def get(path: str):
    with TestClient(Litestar([registry], exception_handlers=HANDLERS)) as client:
        return client.get(f"/registry{path}")


def test_a_viewer_finds_the_schema_that_a_record_names():
    number = int.from_bytes(encode(WebhookClaimed(1, 2))[1:5], "big")
    schema = json.loads(get(f"/schemas/ids/{number}").json()["schema"])
    assert schema["name"] == "WebhookClaimed"


def test_every_topic_with_values_of_ours_is_a_subject():
    subjects = get("/subjects").json()
    assert "daily-summary-value" in subjects
    assert "dead-letters-value" not in subjects
    for subject in subjects:
        assert get(f"/subjects/{subject}/versions").json() == [1]
        latest = get(f"/subjects/{subject}/versions/latest").json()
        assert latest["id"] in IDS.values()
        assert latest == get(f"/subjects/{subject}/versions/1").json()


def test_rows_are_held_to_full_compatibility_and_events_to_backward():
    assert get("/config/daily-summary-value").json() == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert get("/config").json() == {"compatibilityLevel": "BACKWARD_TRANSITIVE"}


def test_what_is_not_there_is_a_problem():
    for path in (
        "/config/x",
        "/schemas/ids/99",
        "/subjects/x/versions/1",
        "/subjects/events-value/versions/9",
    ):
        answer = get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_schema")
