"""Any order and repetition of the same deliveries comes to the same rows and outcomes."""

from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.providers.envelope import event_id
from headwater.processors.providers.headwater import delivery_of
from headwater.schemas.providers.headwater import (
    ConnectionClosed,
    ConnectionListed,
    LabSubmitted,
    LabUploaded,
)
from headwater.schemas.records import WebhookReceived
from tests.oracle import Folded, fold

#: 2026-07-02T12:00:00Z.
NOW_MS = 1782993600000
PREFIX = "user_"


class Person(NamedTuple):
    """A user with two connections, of which the second replaces the first."""

    user: str
    subjects: tuple[str, str]
    provider: str


PEOPLE = (
    Person("user_ada", ("s-a1", "s-a2"), "GARMIN"),
    Person("user_bob", ("s-b1", "s-b2"), "WHOOP"),
)
NUMBERS = st.none() | st.integers(20, 100)
DAYS = st.sampled_from(("2026-06-30", "2026-07-01"))
OFFSETS = st.sampled_from(("Z", "+01:00", "-08:00", ""))


@st.composite
def daily(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "metadata": {"start_time": f"{draw(DAYS)}T00:00:00{draw(OFFSETS)}"},
        "distance_data": {"steps": draw(NUMBERS)},
        "heart_rate_data": {
            "summary": {"resting_hr_bpm": draw(NUMBERS), "avg_hrv_rmssd": draw(NUMBERS)}
        },
        "active_durations_data": {
            "low_intensity_seconds": draw(NUMBERS),
            "vigorous_intensity_seconds": draw(NUMBERS),
        },
        "scores": {"recovery": draw(NUMBERS), "sleep": draw(NUMBERS)},
    }


@st.composite
def sleep(draw: st.DrawFn) -> dict[str, Any]:
    day, offset = draw(DAYS), draw(OFFSETS)
    return {
        "metadata": {
            "start_time": f"{day}T00:{draw(st.sampled_from(('10', '20')))}:00{offset}",
            "end_time": f"{day}T07:00:00{offset}",
            "is_nap": draw(st.sampled_from((None, False, True))),
        },
        "sleep_durations_data": {
            "asleep": {
                "duration_asleep_state_seconds": draw(st.none() | st.integers(20_000, 25_000)),
                "duration_deep_sleep_state_seconds": draw(NUMBERS),
            },
            "awake": {"duration_awake_state_seconds": draw(NUMBERS)},
        },
        "heart_rate_data": {
            "summary": {"resting_hr_bpm": draw(NUMBERS), "avg_hrv_rmssd": draw(NUMBERS)}
        },
        "scores": {"sleep": draw(NUMBERS)},
        "readiness_data": {"readiness": draw(NUMBERS)},
    }


@st.composite
def activity(draw: st.DrawFn) -> dict[str, Any]:
    day, offset = draw(DAYS), draw(OFFSETS)
    return {
        "metadata": {
            "start_time": f"{day}T18:00:00{offset}",
            "end_time": draw(st.sampled_from((None, f"{day}T18:30:00{offset}"))),
            "type": draw(st.none() | st.integers(0, 3)),
        },
        "heart_rate_data": {"summary": {"avg_hr_bpm": draw(NUMBERS)}},
        "calories_data": {"total_burned_calories": draw(NUMBERS)},
    }


@st.composite
def body(draw: st.DrawFn) -> dict[str, Any]:
    samples = st.fixed_dictionaries({"systolic_bp": NUMBERS, "diastolic_bp": NUMBERS})
    weights = st.fixed_dictionaries({"weight_kg": NUMBERS, "bodyfat_percentage": NUMBERS})
    return {
        "metadata": {},
        draw(st.sampled_from(("summary_date", "date", "day"))): draw(DAYS),
        "blood_pressure_data": {"blood_pressure_samples": draw(st.lists(samples, max_size=2))},
        "measurements_data": {"measurements": draw(st.lists(weights, max_size=2))},
    }


RECORDS = {"daily": daily(), "sleep": sleep(), "activity": activity(), "body": body()}


@st.composite
def lab_reports(draw: st.DrawFn) -> WebhookReceived:
    """A report of an upload of one of two people, or a word of how it failed."""
    person = draw(st.sampled_from(PEOPLE))
    upload = f"upl-{person.user}"
    kind = draw(st.sampled_from(("lab_report", "lab_report.completed", "lab_report.failed")))
    results = st.fixed_dictionaries(
        {
            "biomarker": st.sampled_from(("ldl_cholesterol", "ldl", "x")),
            "value": NUMBERS | st.just("<5"),
            "unit": st.sampled_from((None, "mg/dL")),
        }
    )
    report = {"report_date": draw(DAYS), "results": draw(st.lists(results, max_size=3))}
    data = {"error": {"code": "unread"}} if kind == "lab_report.failed" else report
    raw = msgspec.json.encode(
        {"upload_id": upload, "data": [data] if kind == "lab_report" else data}
    )
    return WebhookReceived(
        event_id=event_id("terra", kind, upload, raw),
        request_id="r",
        source="terra",
        type=kind,
        subject=upload,
        sent_at_ms=NOW_MS + draw(st.sampled_from((0, 1_000, 3_600_000))),
        updated_at_ms=0,
        received_at_ms=NOW_MS,
        body=raw,
    )


@st.composite
def facts(draw: st.DrawFn) -> WebhookReceived:
    """Something that the system has learnt of one of two people."""
    person = draw(st.sampled_from(PEOPLE))
    named = {
        "at_ms": NOW_MS + draw(st.sampled_from((0, 1_000, 3_600_000))),
        "user_id": person.user,
        "upload_id": f"our-{person.user}",
    }
    connection = {name: named[name] for name in ("at_ms", "user_id")}
    subject = draw(st.sampled_from(person.subjects))
    fact = draw(
        st.sampled_from(
            (
                LabUploaded(**named, storage_key="k", original_name="n", content_type="t", size=1),
                LabSubmitted(
                    **named, terra_status="submitted", terra_upload_id=f"upl-{person.user}"
                ),
                LabSubmitted(**named, terra_status="failed:500"),
                ConnectionListed(**connection, terra_user_id=subject, provider=person.provider),
                ConnectionClosed(**connection, terra_user_id=subject),
            )
        )
    )
    return delivery_of(fact, request_id="r", now_ms=NOW_MS)


@st.composite
def deliveries_of_terra(draw: st.DrawFn) -> WebhookReceived:
    """A delivery of one of two people, with or without the reference that makes it easy."""
    person = draw(st.sampled_from(PEOPLE))
    connecting = ("auth", "user_reauth", "deauth", "permission_change", "athlete")
    kind = draw(st.sampled_from((*connecting, *RECORDS)))
    reference = draw(st.sampled_from((person.user, "widget-session", None)))
    old, new = (
        {
            "user_id": subject,
            "provider": person.provider,
            "reference_id": reference,
            "scopes": draw(st.sampled_from((None, "A", "A,B"))),
        }
        for subject in person.subjects
    )
    subject = (
        person.subjects[1] if kind == "user_reauth" else draw(st.sampled_from(person.subjects))
    )
    user = new if subject == person.subjects[1] else old
    made: dict[str, Any] = {"type": kind, "user": user}
    if kind == "user_reauth":
        made = {"type": kind, "new_user": new, "old_user": old}
    elif kind in RECORDS:
        made["data"] = draw(st.lists(RECORDS[kind], max_size=2))
    raw = msgspec.json.encode(made)
    return WebhookReceived(
        event_id=event_id("terra", kind, subject, raw),
        request_id="r",
        source="terra",
        type=kind,
        subject=subject,
        reference=reference,
        # Few moments, so that many are equal.
        sent_at_ms=NOW_MS + draw(st.sampled_from((0, 1_000, 3_600_000))),
        updated_at_ms=draw(st.integers(0, 1)),
        received_at_ms=NOW_MS,
        body=raw,
    )


def deliveries() -> st.SearchStrategy[WebhookReceived]:
    return deliveries_of_terra() | deliveries_of_terra() | lab_reports() | facts()


def folded(received: list[WebhookReceived]) -> Folded:
    return fold(((0, offset, item) for offset, item in enumerate(received)), user_prefix=PREFIX)


def said(found: Folded) -> object:
    """What a fold says, apart from where in the log it found it."""
    return found.outcomes, {
        table: {
            key: (
                row.values,
                [
                    stamp and (stamp.rank, stamp.sent_at_ms, stamp.updated_at_ms, stamp.event_id)
                    for stamp in row.stamps
                ],
            )
            for key, row in rows.items()
        }
        for table, rows in found.rows.items()
    }


def distinct(received: list[WebhookReceived]) -> list[WebhookReceived]:
    """One delivery per event id: a second one with another time is another story, told below."""
    return list({item.event_id: item for item in received}.values())


@given(data=st.data(), received=st.lists(deliveries(), max_size=8).map(distinct))
@settings(max_examples=75, deadline=None)
def test_any_order_and_repetition_comes_to_the_same(
    data: st.DataObject, received: list[WebhookReceived]
):
    again = data.draw(st.lists(st.sampled_from(received), max_size=4)) if received else []
    shuffled = data.draw(st.permutations(received + again))
    assert said(folded(shuffled)) == said(folded(received))


@given(data=st.data(), received=st.lists(deliveries(), max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_order_of_reading_does_not_matter_only_the_offsets_do(
    data: st.DataObject, received: list[WebhookReceived]
):
    placed = [(0, offset, item) for offset, item in enumerate(received)]
    shuffled = data.draw(st.permutations(placed))
    assert fold(shuffled, user_prefix=PREFIX) == fold(placed, user_prefix=PREFIX)


@given(received=st.lists(deliveries(), max_size=8))
@settings(max_examples=50, deadline=None)
def test_every_delivery_has_one_outcome_and_every_value_a_delivery(
    received: list[WebhookReceived],
):
    result = folded(received)
    assert set(result.outcomes) == {item.event_id for item in received}
    for rows in result.rows.values():
        for row in rows.values():
            assert [value is None for value in row.values] == [
                stamp is None for stamp in row.stamps
            ]
            for stamp in filter(None, row.stamps):
                assert result.outcomes[stamp.event_id] in (
                    ("processed", ""),
                    ("skipped", "permission_change"),
                )
                assert received[stamp.offset].event_id == stamp.event_id


@given(received=st.lists(deliveries(), max_size=8))
@settings(max_examples=50, deadline=None)
def test_nobody_sees_another_persons_rows(received: list[WebhookReceived]):
    providers = {person.user: person.provider.lower() for person in PEOPLE}
    result = folded(received)
    for table in ("daily_summary", "sleep_sessions"):
        assert all(providers[key[0]] == key[1] for key in result.rows[table])
