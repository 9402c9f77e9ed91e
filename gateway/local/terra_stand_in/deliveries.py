"""Deliveries of the stand-in: connections, requested data and lab reports."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any, Final

from headwater.gateway.local.terra_stand_in.generated_data import SeededValues, lab_results
from headwater.gateway.local.terra_stand_in.people import Person, Post

#: Longer ranges are announced before they are sent.
LARGE_DAYS: Final = 28
#: Days of a chunk.
_CHUNK_DAYS: Final = 10


def connected(person: Person, session_id: str) -> Post:
    """Return the delivery that a wearable was connected."""
    return Post(
        session_id,
        {
            "type": "auth",
            "status": "success",
            "message": "User has successfully authenticated",
            "widget_session_id": session_id,
            "user": person.as_user(),
        },
    )


def cancelled(reference_id: str | None, session_id: str) -> Post:
    """Return the delivery that a session was cancelled."""
    return Post(
        session_id,
        {
            "type": "auth_cancelled",
            "status": "error",
            "flow_id": session_id,
            "reason": "access_denied",
            "reference_id": reference_id,
        },
    )


def disconnected(person: Person) -> Post:
    """Return the delivery that a connection was ended."""
    return Post(
        f"deauth-{person.user_id}",
        {
            "type": "deauth",
            "status": "success",
            "message": "User has deauthenticated",
            "user": person.as_user(active=False),
        },
    )


def data(kind: str, person: Person, first: date, last: date, reference: str) -> Iterator[Post]:
    """Yield the data of a range of days in chunks, latest first; a long range is announced."""
    chunks = list(_chunks(first, last))
    if (last - first).days > LARGE_DAYS:
        about = {"reference": reference, "user": person.as_user()}
        yield Post(
            reference,
            {
                "type": "large_request_processing",
                "status": "processing",
                "message": "Large request is being processed",
                **about,
            },
        )
        yield Post(
            reference,
            {
                "type": "large_request_sending",
                "message": "Large request payloads are being sent",
                "expected_payloads": len(chunks),
                **about,
            },
        )
    for start, end in chunks:
        yield Post(reference, chunk=(kind, person.user_id, start.isoformat(), end.isoformat()))


def _chunks(first: date, last: date) -> Iterator[tuple[date, date]]:
    while last >= first:
        start = max(first, last - timedelta(days=_CHUNK_DAYS - 1))
        yield start, last
        last = start - timedelta(days=1)


def lab_report(seed: int, upload_id: str, reference_id: str | None, day: date) -> Post:
    """Return the delivery of a lab report's results."""
    results = lab_results(seed, upload_id, day)
    body: dict[str, Any] = {
        "type": "lab_report.completed",
        "event_id": f"evt_{SeededValues(seed, upload_id).id_of('event')}",
        "occurred_at": f"{day.isoformat()}T12:00:00Z",
        "upload_id": upload_id,
        "data": {
            "session_id": str(SeededValues(seed, upload_id).whole("session", 10**15, 10**16)),
            "reference_id": reference_id,
            "report_date": day.isoformat(),
            "report_locale": "en-GB",
            "results_count": len(results),
            "results": results,
            "panels": [],
        },
    }
    return Post(upload_id, body)


def untyped_lab_report(seed: int, upload_id: str, day: date) -> Post:
    """Return the same in the older format, without a type and a user."""
    results = [
        {
            "biomarker": result["biomarker"]["key"],
            "name": result["source"]["name"],
            "value": result["measurement"]["numeric"],
            "unit": result["measurement"]["units"],
            "classification": result["interpretation"]["flag"],
        }
        for result in lab_results(seed, upload_id, day)
    ]
    report = {"report_date": day.isoformat(), "results": results}
    return Post(upload_id, {"upload_id": upload_id, "data": [report]})
