"""Terra, declared: where its deliveries come in, and what becomes of each type."""

from typing import Any, Final

from headwater.processors.providers.lookups import CONNECTION
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.terra.auth import (
    CLOSING_TYPES,
    OPENING_TYPES,
    USER_REAUTH,
    failure_of,
    normalize_auth,
    previous_subject,
)
from headwater.processors.providers.terra.backfill import backfill
from headwater.processors.providers.terra.daily import normalize_daily
from headwater.processors.providers.terra.envelope import (
    LAB_REPORT,
    LAB_REPORT_FAMILY,
    read_envelope,
)
from headwater.processors.providers.terra.sleep import normalize_sleep
from headwater.processors.signature_schemes import SCHEMES
from headwater.schemas.providers.terra import decode_daily, decode_envelope, decode_sleep
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS

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
    read=read_envelope,
    types=_TYPES,
    skipped=frozenset(
        {
            "activity",
            "athlete",
            "auth_cancelled",
            "body",
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
            LAB_REPORT,
            LAB_REPORT_FAMILY,
        }
    ),
)
