"""Generated data of people who do not exist, and the deliveries that carry it.

All values are determined by a seed, a connection and a day, so repeated requests get the same data.

Source: the schemas of Terra's OpenAPI document, version 2026.07.17.1.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from hashlib import sha256
from typing import Any, Final, TypeAlias

from headwater.gateway.local.terra_stand_in.people import Person, Post

Record: TypeAlias = dict[str, Any]

#: Time zone of all people: days are local days, not days in UTC.
_ZONE: Final = timezone(timedelta(hours=1))
_WORKOUTS: Final = ((8, "Run"), (1, "Ride"), (82, "Swim"), (7, "Walk"))


class SeededValues:
    """Pseudorandom values that are determined by a name."""

    def __init__(self, *name: object) -> None:
        self._name = "/".join(map(str, name))

    def between(self, what: str, low: float, high: float) -> float:
        """Return a number with one decimal."""
        digest = sha256(f"{self._name}/{what}".encode()).digest()
        return round(low + (high - low) * int.from_bytes(digest[:6], "big") / (1 << 48), 1)

    def whole(self, what: str, low: int, high: int) -> int:
        """Return an integer between `low` and `high`, inclusive."""
        return min(high, int(self.between(what, low, high + 1)))

    def id_of(self, what: str) -> str:
        """Return an id in the format of a UUID."""
        text = sha256(f"{self._name}/{what}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:32]}"


def records_of(kind: str, seed: int, user_id: str, provider: str, day: date) -> list[Record]:
    """Return the records of a connection, a type and a day; some types have none on many days."""
    record = _KINDS[kind](SeededValues(seed, user_id, kind, day), provider, day)
    return [] if record is None else [record]


def _daily(values: SeededValues, provider: str, day: date) -> Record:
    steps = values.whole("steps", 2_000, 16_000)
    record: Record = {
        "metadata": _span(day, time(), timedelta(days=1)) | {"upload_type": 0},
        "distance_data": {"steps": steps, "distance_meters": round(steps * 0.78, 1)},
        "calories_data": {"total_burned_calories": values.between("calories", 1_700, 3_200)},
        "active_durations_data": {
            "activity_seconds": 60 * values.whole("active", 20, 140),
            "low_intensity_seconds": 60 * values.whole("low", 10, 90),
            "moderate_intensity_seconds": 60 * values.whole("moderate", 5, 60),
            "vigorous_intensity_seconds": 60 * values.whole("vigorous", 0, 40),
        },
        "heart_rate_data": {"summary": {"resting_hr_bpm": values.whole("resting", 46, 64)}},
        "stress_data": {"avg_stress_level": values.whole("stress", 12, 60)},
    }
    if provider == "WHOOP":
        record["strain_data"] = {"strain_level": values.between("strain", 4, 19)}
        record["scores"] = {"recovery": values.whole("recovery", 25, 98)}
    return record


def _sleep(values: SeededValues, provider: str, day: date) -> Record:
    asleep = 60 * values.whole("asleep", 300, 520)
    deep, rem = round(asleep * 0.18), round(asleep * 0.22)
    awake = 60 * values.whole("awake", 10, 60)
    woke = datetime.combine(day, time(6, values.whole("woke", 0, 59)), _ZONE)
    record: Record = {
        "metadata": {
            "summary_id": values.id_of("sleep"),
            "start_time": _text(woke - timedelta(seconds=asleep + awake)),
            "end_time": _text(woke),
            "is_nap": False,
            "upload_type": 1,
        },
        "sleep_durations_data": {
            "asleep": {
                "duration_asleep_state_seconds": asleep,
                "duration_deep_sleep_state_seconds": deep,
                "duration_REM_sleep_state_seconds": rem,
                "duration_light_sleep_state_seconds": asleep - deep - rem,
            },
            "awake": {"duration_awake_state_seconds": awake},
        },
        "heart_rate_data": {
            "summary": {
                "resting_hr_bpm": values.whole("resting", 44, 60),
                "avg_hrv_rmssd": values.between("hrv", 28, 110),
            }
        },
        "respiration_data": {
            "breaths_data": {"avg_breaths_per_min": values.between("breaths", 12, 18)},
            "oxygen_saturation_data": {"avg_saturation_percentage": values.between("spo2", 94, 99)},
        },
        "temperature_data": {"delta": values.between("temperature", -0.8, 0.8)},
    }
    if provider == "WHOOP":
        record["readiness_data"] = {"readiness": values.whole("recovery", 25, 98)}
    return record


def _activity(values: SeededValues, _provider: str, day: date) -> Record | None:
    if values.whole("rests", 0, 1):
        return None
    type_, name = _WORKOUTS[values.whole("workout", 0, len(_WORKOUTS) - 1)]
    length = timedelta(minutes=values.whole("minutes", 20, 90))
    metres = round(length.total_seconds() * values.between("speed", 2.2, 3.6), 1)
    average = values.whole("pulse", 118, 155)
    return {
        "metadata": {
            "summary_id": values.id_of("activity"),
            "name": name,
            "type": type_,
            **_span(day, time(17, values.whole("start", 0, 59)), length),
            "upload_type": 1,
        },
        "distance_data": {"summary": {"distance_meters": metres, "steps": round(metres * 1.2)}},
        "calories_data": {"total_burned_calories": round(length.total_seconds() / 6, 1)},
        "heart_rate_data": {
            "summary": {"avg_hr_bpm": average, "max_hr_bpm": average + values.whole("peak", 15, 35)}
        },
    }


def _body(values: SeededValues, _provider: str, day: date) -> Record | None:
    if day.toordinal() % 3:
        return None
    at = _text(datetime.combine(day, time(7, values.whole("minute", 0, 59)), _ZONE))
    measured = {
        "measurement_time": at,
        "weight_kg": values.between("weight", 68, 74),
        "bodyfat_percentage": values.between("fat", 15, 20),
    }
    return {
        "metadata": _span(day, time(), timedelta(days=1)),
        "measurements_data": {"measurements": [measured]},
        "blood_pressure_data": {
            "blood_pressure_samples": [
                {
                    "timestamp": at,
                    "systolic_bp": values.whole("systolic", 108, 132),
                    "diastolic_bp": values.whole("diastolic", 68, 86),
                }
            ]
        },
    }


_KINDS: Final[Mapping[str, Callable[[SeededValues, str, date], Record | None]]] = {
    "activity": _activity,
    "body": _body,
    "daily": _daily,
    "sleep": _sleep,
}

#: All types of data.
KINDS: Final = tuple(_KINDS)


def lab_results(seed: int, upload_id: str, day: date) -> list[Record]:
    """Return the results of a generated lab report in the current format."""
    values = SeededValues(seed, upload_id)
    return [
        {
            "source": {
                "name": name,
                "value": str(value := values.between(key, low * 0.8, high * 1.2)),
                "units": unit,
                "collection_date": day.isoformat(),
            },
            "biomarker": {"key": key, "display_name": name, "loinc_code": loinc},
            "measurement": {"type": "numeric", "numeric": value, "units": unit},
            "interpretation": {
                "flag": "low" if value < low else "high" if value > high else "normal",
                "source": "report",
                "applied_range": {"lower": low, "upper": high},
            },
            "reference_ranges": [{"lower": low, "upper": high, "type": "normal"}],
        }
        for key, name, loinc, unit, low, high in _MARKERS
    ]


_MARKERS: Final = (
    ("glucose_fasting", "Glucose, Fasting", "1558-6", "mg/dL", 70.0, 99.0),
    ("ldl_cholesterol", "LDL Cholesterol", "13457-7", "mg/dL", 50.0, 130.0),
    ("hdl_cholesterol", "HDL Cholesterol", "2085-9", "mg/dL", 40.0, 80.0),
    ("hemoglobin", "Hemoglobin", "718-7", "g/dL", 13.5, 17.5),
    ("ferritin", "Ferritin", "2276-4", "ng/mL", 30.0, 300.0),
    ("vitamin_d", "Vitamin D, 25-Hydroxy", "1989-3", "ng/mL", 30.0, 80.0),
)


def _span(day: date, start_time: time, length: timedelta) -> dict[str, str]:
    start = datetime.combine(day, start_time, _ZONE)
    return {"start_time": _text(start), "end_time": _text(start + length)}


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


# -- deliveries

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
