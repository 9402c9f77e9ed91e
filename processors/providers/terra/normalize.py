"""Normalizers: from a delivery to the columns it sets. Pure; the caller resolved the user."""

from typing import Final

from headwater.processors.providers.results import Failed, Normalized, NormalizeResult, Skipped
from headwater.processors.providers.terra.auth import failed_to_authenticate, normalize_auth
from headwater.processors.providers.terra.daily import normalize_daily
from headwater.processors.providers.terra.identity import NO_USER, STORED_TYPES
from headwater.processors.providers.terra.sleep import normalize_sleep
from headwater.schemas.providers.terra import DailyDelivery, Envelope, Payload, SleepDelivery
from headwater.schemas.records import WebhookAdmitted

__all__ = ["Failed", "NormalizeResult", "Normalized", "Skipped", "normalize"]

#: Types that are known and hold nothing for a table; the reason of their outcome is the type.
SKIPPED_TYPES: Final = frozenset(
    {
        "athlete",
        "menstruation",
        "nutrition",
        "large_request_processing",
        "request_processing",
        "activity",
        "body",
        "lab_report",
    }
)

_LAB_REPORT_FAMILY: Final = "lab_report."


def normalize(event: WebhookAdmitted, payload: Payload) -> NormalizeResult:
    """Normalizes a delivery.

    Shape:  (delivery, its body read as its type) -> rows, or why there are none. Total: a type
            that is not known is skipped, not an error. What is skipped needs no user.
    Errors: none; Failed is a dead letter and carries a code and the place.
    """
    if event.type not in STORED_TYPES:
        known = event.type in SKIPPED_TYPES or event.type.startswith(_LAB_REPORT_FAMILY)
        return Skipped(event.type if known else f"unknown_type:{event.type}")
    if isinstance(payload, Envelope) and failed_to_authenticate(event.type, payload):
        return Skipped("auth_failed")
    user_id = event.user_id
    if user_id is None:
        return Failed(NO_USER, "user_id: expected the delivery's user to be resolved, found none")
    if isinstance(payload, DailyDelivery):
        return normalize_daily(event, user_id, payload)
    if isinstance(payload, SleepDelivery):
        return normalize_sleep(event, user_id, payload)
    return normalize_auth(event, user_id, payload)
