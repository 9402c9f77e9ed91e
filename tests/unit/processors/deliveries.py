"""Deliveries for the tests of normalizers: as Terra writes them, small."""

from typing import Any

import msgspec

from headwater.processors.providers.results import Normalized, NormalizeResult, Rejected
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.records import WebhookAdmitted

#: 2026-07-02T12:00:00Z.
RECEIVED_AT_MS = 1782993600000
USER = {
    "user_id": "s-1",
    "provider": "GARMIN",
    "reference_id": "user_1",
    "scopes": "SLEEP,DAILY",
    "last_webhook_update": None,
}


def admitted(type_: str, body: bytes, user_id: str | None = "user_1") -> WebhookAdmitted:
    return WebhookAdmitted(
        event_id="e" * 32,
        request_id="r-1",
        source="terra",
        type=type_,
        subject="s-1",
        reference="user_1",
        sent_at_ms=RECEIVED_AT_MS - 500,
        updated_at_ms=7,
        received_at_ms=RECEIVED_AT_MS,
        body=body,
        user_id=user_id,
        partition=3,
        offset=41,
        admitted_at_ms=RECEIVED_AT_MS + 5,
    )


def normalized(type_: str, body: dict[str, Any], user_id: str | None = "user_1") -> NormalizeResult:
    return TERRA.normalize(admitted(type_, msgspec.json.encode(body), user_id))


def records(type_: str, *data: object, **user: object) -> NormalizeResult:
    """A delivery of records; keywords replace fields of its user."""
    return normalized(type_, {"type": type_, "user": USER | user, "data": list(data)})


def rejected(result: NormalizeResult) -> Rejected:
    """The one record of a delivery that was rejected; the others were taken."""
    assert isinstance(result, Normalized)
    (actual,) = result.rejected
    return actual


def nested(path: str, value: object) -> dict[str, Any]:
    """The object that holds a value at a dotted path."""
    for step in reversed(path.split(".")):
        value = {step: value}
    return value
