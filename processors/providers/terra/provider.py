"""Terra, declared: where its deliveries come in, and what becomes of each type."""

from typing import Any, Final

from headwater.processors.providers.lookups import CONNECTION, LAB_UPLOAD
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.terra.activity import normalize_activity
from headwater.processors.providers.terra.auth import (
    CLOSING_TYPES,
    OPENING_TYPES,
    PERMISSION_CHANGE,
    USER_REAUTH,
    failure_of,
    normalize_auth,
    normalize_permissions,
    previous_subject,
)
from headwater.processors.providers.terra.backfill import backfill
from headwater.processors.providers.terra.body import normalize_body
from headwater.processors.providers.terra.daily import normalize_daily
from headwater.processors.providers.terra.envelope import (
    LAB_COMPLETED,
    LAB_FAILED,
    LAB_REPORT,
    ORDERING_HEADER,
    read_envelope,
)
from headwater.processors.providers.terra.labs import (
    normalize_lab_failure,
    normalize_lab_report,
    why_skipped,
)
from headwater.processors.providers.terra.sleep import normalize_sleep
from headwater.processors.signature_schemes import SCHEMES
from headwater.schemas.providers.terra import (
    decode_activity,
    decode_body,
    decode_daily,
    decode_envelope,
    decode_sleep,
)
from headwater.schemas.providers.terra_labs import decode_lab_failure, decode_lab_report
from headwater.schemas.tables import (
    ACTIVITIES,
    BIOMARKERS,
    CONNECTIONS,
    DAILY_SUMMARY,
    LAB_UPLOADS,
    SLEEP_SESSIONS,
)

__all__ = ["TERRA"]

_TYPES: Final[dict[str, DeliveryType[Any]]] = {
    "daily": DeliveryType(
        decode=decode_daily,
        normalize=normalize_daily,
        tables=(DAILY_SUMMARY,),
        lookup=CONNECTION,
    ),
    "sleep": DeliveryType(
        decode=decode_sleep,
        normalize=normalize_sleep,
        tables=(SLEEP_SESSIONS, DAILY_SUMMARY),
        lookup=CONNECTION,
    ),
    "activity": DeliveryType(
        decode=decode_activity,
        normalize=normalize_activity,
        tables=(ACTIVITIES,),
        lookup=CONNECTION,
    ),
    "body": DeliveryType(
        decode=decode_body,
        normalize=normalize_body,
        tables=(BIOMARKERS,),
        lookup=CONNECTION,
    ),
    LAB_FAILED: DeliveryType(
        decode=decode_lab_failure,
        normalize=normalize_lab_failure,
        tables=(LAB_UPLOADS,),
        lookup=LAB_UPLOAD,
        skips=why_skipped,
    ),
    PERMISSION_CHANGE: DeliveryType(
        decode=decode_envelope,
        normalize=normalize_permissions,
        tables=(CONNECTIONS,),
        of_user=False,
    ),
    **{
        type_: DeliveryType(
            decode=decode_lab_report,
            normalize=normalize_lab_report,
            tables=(BIOMARKERS, LAB_UPLOADS),
            lookup=LAB_UPLOAD,
        )
        for type_ in (LAB_REPORT, LAB_COMPLETED)
    },
    **{
        type_: DeliveryType(
            decode=decode_envelope,
            normalize=normalize_auth,
            tables=(CONNECTIONS,),
            lookup=CONNECTION,
            starts=backfill,
            skips=failure_of if type_ == "auth" else None,
            other_subject=previous_subject if type_ == USER_REAUTH else None,
        )
        for type_ in (*OPENING_TYPES, *CLOSING_TYPES)
    },
}

TERRA: Final = Provider(
    name="terra",
    # Terra's dashboard takes a host name only, and has been pointed at four paths over the years.
    more_paths=("/webhook/terra", "/webhook", "/terra", "/"),
    scheme=SCHEMES["terra"],
    headers=(ORDERING_HEADER,),
    read=read_envelope,
    types=_TYPES,
    skipped=frozenset(
        {
            "athlete",
            "auth_cancelled",
            "connection_error",
            "google_no_datasource",
            "healthcheck",
            "large_request_processing",
            "large_request_sending",
            "menstruation",
            "nutrition",
            "processing",
            "rate_limit_hit",
            "request_processing",
            "s3_payload",
        }
    ),
)
