"""Made data: days, nights, workouts and measurements of people who do not exist.

Everything follows from a seed, a connection and a day, so whoever asks twice is told the same.

Source: the shapes of Terra's OpenAPI document, version 2026.07.17.1.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from hashlib import sha256
from typing import Any, Final, TypeAlias

Record: TypeAlias = dict[str, Any]

#: All of them live there: data are by a day's own offset, never by UTC.
_ZONE: Final = timezone(timedelta(hours=1))
_WORKOUTS: Final = ((8, "Run"), (1, "Ride"), (82, "Swim"), (7, "Walk"))


class Chance:
    """Numbers that follow from a name."""

    def __init__(self, *name: object) -> None:
        self._name = "/".join(map(str, name))

    def between(self, what: str, low: float, high: float) -> float:
        """A number for one thing, with one decimal."""
        digest = sha256(f"{self._name}/{what}".encode()).digest()
        return round(low + (high - low) * int.from_bytes(digest[:6], "big") / (1 << 48), 1)

    def whole(self, what: str, low: int, high: int) -> int:
        """A whole number for one thing, both ends included."""
        return min(high, int(self.between(what, low, high + 1)))

    def id_of(self, what: str) -> str:
        """An id for one thing, as UUIDs look."""
        text = sha256(f"{self._name}/{what}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:32]}"


def records_of(kind: str, seed: int, user_id: str, provider: str, day: date) -> list[Record]:
    """What a connection has of a type on a day; often nothing, of some types."""
    made = _KINDS[kind](Chance(seed, user_id, kind, day), provider, day)
    return [] if made is None else [made]


def _daily(chance: Chance, provider: str, day: date) -> Record:
    steps = chance.whole("steps", 2_000, 16_000)
    made: Record = {
        "metadata": _span(day, time(), timedelta(days=1)) | {"upload_type": 0},
        "distance_data": {"steps": steps, "distance_meters": round(steps * 0.78, 1)},
        "calories_data": {"total_burned_calories": chance.between("calories", 1_700, 3_200)},
        "active_durations_data": {
            "activity_seconds": 60 * chance.whole("active", 20, 140),
            "low_intensity_seconds": 60 * chance.whole("low", 10, 90),
            "moderate_intensity_seconds": 60 * chance.whole("moderate", 5, 60),
            "vigorous_intensity_seconds": 60 * chance.whole("vigorous", 0, 40),
        },
        "heart_rate_data": {"summary": {"resting_hr_bpm": chance.whole("resting", 46, 64)}},
        "stress_data": {"avg_stress_level": chance.whole("stress", 12, 60)},
    }
    if provider == "WHOOP":
        made["strain_data"] = {"strain_level": chance.between("strain", 4, 19)}
        made["scores"] = {"recovery": chance.whole("recovery", 25, 98)}
    return made


def _sleep(chance: Chance, provider: str, day: date) -> Record:
    asleep = 60 * chance.whole("asleep", 300, 520)
    deep, rem = round(asleep * 0.18), round(asleep * 0.22)
    awake = 60 * chance.whole("awake", 10, 60)
    woke = datetime.combine(day, time(6, chance.whole("woke", 0, 59)), _ZONE)
    made: Record = {
        "metadata": {
            "summary_id": chance.id_of("sleep"),
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
                "resting_hr_bpm": chance.whole("resting", 44, 60),
                "avg_hrv_rmssd": chance.between("hrv", 28, 110),
            }
        },
        "respiration_data": {
            "breaths_data": {"avg_breaths_per_min": chance.between("breaths", 12, 18)},
            "oxygen_saturation_data": {"avg_saturation_percentage": chance.between("spo2", 94, 99)},
        },
        "temperature_data": {"delta": chance.between("temperature", -0.8, 0.8)},
    }
    if provider == "WHOOP":
        made["readiness_data"] = {"readiness": chance.whole("recovery", 25, 98)}
    return made


def _activity(chance: Chance, _provider: str, day: date) -> Record | None:
    if chance.whole("rests", 0, 1):
        return None
    type_, name = _WORKOUTS[chance.whole("workout", 0, len(_WORKOUTS) - 1)]
    length = timedelta(minutes=chance.whole("minutes", 20, 90))
    metres = round(length.total_seconds() * chance.between("speed", 2.2, 3.6), 1)
    average = chance.whole("pulse", 118, 155)
    return {
        "metadata": {
            "summary_id": chance.id_of("activity"),
            "name": name,
            "type": type_,
            **_span(day, time(17, chance.whole("start", 0, 59)), length),
            "upload_type": 1,
        },
        "distance_data": {"summary": {"distance_meters": metres, "steps": round(metres * 1.2)}},
        "calories_data": {"total_burned_calories": round(length.total_seconds() / 6, 1)},
        "heart_rate_data": {
            "summary": {"avg_hr_bpm": average, "max_hr_bpm": average + chance.whole("peak", 15, 35)}
        },
    }


def _body(chance: Chance, _provider: str, day: date) -> Record | None:
    if day.toordinal() % 3:
        return None
    at = _text(datetime.combine(day, time(7, chance.whole("minute", 0, 59)), _ZONE))
    measured = {
        "measurement_time": at,
        "weight_kg": chance.between("weight", 68, 74),
        "bodyfat_percentage": chance.between("fat", 15, 20),
    }
    return {
        "metadata": _span(day, time(), timedelta(days=1)),
        "measurements_data": {"measurements": [measured]},
        "blood_pressure_data": {
            "blood_pressure_samples": [
                {
                    "timestamp": at,
                    "systolic_bp": chance.whole("systolic", 108, 132),
                    "diastolic_bp": chance.whole("diastolic", 68, 86),
                }
            ]
        },
    }


_KINDS: Final[Mapping[str, Callable[[Chance, str, date], Record | None]]] = {
    "activity": _activity,
    "body": _body,
    "daily": _daily,
    "sleep": _sleep,
}

#: The types of data that there are.
KINDS: Final = tuple(_KINDS)


def lab_results(seed: int, upload_id: str, day: date) -> list[Record]:
    """The results of a made lab report, as today's reports have them."""
    chance = Chance(seed, upload_id)
    return [
        {
            "source": {
                "name": name,
                "value": str(value := chance.between(key, low * 0.8, high * 1.2)),
                "units": unit,
                "collection_date": day.isoformat(),
            },
            "biomarker": {"key": key, "display_name": name, "loinc_code": loinc},
            "measurement": {"type": "numeric", "numeric": value, "units": unit},
            "reference_range": {"low": low, "high": high},
            "interpretation": {
                "flag": "low" if value < low else "high" if value > high else "normal",
                "source": "report",
            },
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


def _span(day: date, begins: time, length: timedelta) -> dict[str, str]:
    start = datetime.combine(day, begins, _ZONE)
    return {"start_time": _text(start), "end_time": _text(start + length)}


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
