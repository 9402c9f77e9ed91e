"""Declaration of Terra: where its deliveries are posted, and how every type is processed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from headwater.processors.providers.provider import (
    CONNECTION,
    LAB_UPLOAD,
    AfterWipe,
    DeliveryType,
    Provider,
    Unnamed,
)
from headwater.processors.providers.results import NormalizeResult
from headwater.processors.providers.terra.activity import normalize_activity
from headwater.processors.providers.terra.auth import (
    AUTH_TYPES,
    CLOSING_TYPES,
    OPENING_TYPES,
    PERMISSION_CHANGE,
    USER_REAUTH,
    failure_of,
    latest_events,
    normalize_auth,
    normalize_permissions,
    previous_subject,
)
from headwater.processors.providers.terra.backfill import backfill
from headwater.processors.providers.terra.body import BODY, normalize_body
from headwater.processors.providers.terra.daily import normalize_daily
from headwater.processors.providers.terra.envelope import (
    LAB_COMPLETED,
    LAB_FAILED,
    LAB_REPORT,
    ORDERING_HEADER,
    read_envelope,
)
from headwater.processors.providers.terra.labs import (
    NO_UPLOAD_NAMED,
    normalize_lab_failure,
    normalize_lab_report,
    why_skipped,
)
from headwater.processors.providers.terra.limits import (
    ACTIVITY,
    ALL,
    DAILY,
    READINESS,
    SLEEP,
    Ranges,
    with_ranges,
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
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import (
    ACTIVITIES,
    BIOMARKERS,
    CONNECTIONS,
    DAILY_SUMMARY,
    LAB_UPLOADS,
    SLEEP_SESSIONS,
    USERS,
    Table,
)

P = TypeVar("P")


def _of_connection(
    decode: Callable[[bytes], P],
    normalize: Callable[[WebhookAdmitted, str, P], NormalizeResult],
    *tables: Table,
) -> DeliveryType[P]:
    """Return a type with rows that belong to the connection's user."""
    return DeliveryType(decode=decode, normalize=normalize, tables=tables, lookup=CONNECTION)


def _records(ranges: Ranges) -> dict[str, DeliveryType[Any]]:
    """Return the types of deliveries with records, with other plausible ranges for some numbers."""
    daily = partial(normalize_daily, limits=with_ranges(DAILY, ranges))
    (readiness,) = with_ranges((READINESS,), ranges)
    sleep = partial(normalize_sleep, limits=with_ranges(SLEEP, ranges), readiness=readiness)
    activity = partial(normalize_activity, limits=with_ranges(ACTIVITY, ranges))
    body = partial(normalize_body, limits=with_ranges(BODY, ranges))
    return {
        "daily": _of_connection(decode_daily, daily, DAILY_SUMMARY),
        "sleep": _of_connection(decode_sleep, sleep, SLEEP_SESSIONS, DAILY_SUMMARY),
        "activity": _of_connection(decode_activity, activity, ACTIVITIES),
        "body": _of_connection(decode_body, body, BIOMARKERS),
    }


_TYPES: Final[dict[str, DeliveryType[Any]]] = {
    **_records({}),
    LAB_FAILED: DeliveryType(
        decode=decode_lab_failure,
        normalize=normalize_lab_failure,
        tables=(LAB_UPLOADS, USERS),
        lookup=LAB_UPLOAD,
        skips=why_skipped,
        unnamed=Unnamed(table=LAB_UPLOADS, reason=NO_UPLOAD_NAMED),
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
            unnamed=Unnamed(table=LAB_UPLOADS),
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
            latest=partial(latest_events, opens=type_ in OPENING_TYPES),
            after_wipe=AfterWipe.COMES_BACK if type_ in AUTH_TYPES else AfterWipe.SKIPPED,
        )
        for type_ in (*OPENING_TYPES, *CLOSING_TYPES)
    },
}


def _with_ranges(ranges: Ranges) -> Provider:
    return replace(TERRA, types={**TERRA.types, **_records(ranges)})


TERRA: Final = Provider(
    name="terra",
    domain="co.tryterra",
    # Terra's dashboard accepts only a host name, and has used four paths over the years.
    more_paths=("/webhook/terra", "/webhook", "/terra", "/"),
    scheme=SCHEMES["terra"],
    headers=(ORDERING_HEADER,),
    read=read_envelope,
    types=_TYPES,
    ranges=frozenset(ALL),
    with_ranges=_with_ranges,
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
