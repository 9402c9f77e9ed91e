"""Daily deliveries of 2 KB, all different and plausible.

A delivery is a function of its number, so that all processes generate the same ones. Wearables send
a day again every time they sync, so five deliveries make a row: numbers iterate over the users,
then over the versions of their day, and then over the days.
"""

import json
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final

#: Number of users.
USERS: Final = 2_000
#: Deliveries of one user's day, with different numbers; a whole round has all of them.
VERSIONS: Final = 5
#: A multiple of this number of deliveries makes complete rows.
WHOLE: Final = USERS * VERSIONS

_FIRST_DAY: Final = date(1995, 1, 1)
_HEART_SAMPLES: Final = 11


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery: the user, Terra's name of the user, and the body."""

    user: str
    subject: str
    body: bytes


def rows_of(count: int) -> int:
    """Return how many rows the first `count` deliveries make."""
    return count // WHOLE * USERS + min(count % WHOLE, USERS)


def distinct(number: int) -> int:
    """Return the number of a delivery that has a row of its own, from 0, and is the row's first."""
    return number // USERS * WHOLE + number % USERS


def delivery(number: int) -> Delivery:
    """Return the delivery with a number, from 0."""
    user, day, version = number % USERS, number // WHOLE, number // USERS % VERSIONS
    mixed = user * 7_919 + day * 104_729 + version * 15_485_863
    name, subject = f"user_{user:06d}", f"00000000-0000-4000-8000-{user:012d}"
    today = _day(day)
    readings = (2_000 + mixed % 20_000, 45 + mixed % 30, 20 + mixed % 90, 900 + mixed % 5_000)
    marks = (600 + mixed % 3_000, 60 + mixed % 1_500, mixed % 100, mixed % 101, (mixed + 7) % 101)
    parts = (subject, today, name, today, *readings, *marks, mixed % 90, today)
    return Delivery(name, subject, (_TEMPLATE % parts).encode())


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return (_FIRST_DAY + timedelta(days=number)).isoformat()


def _record() -> dict[str, Any]:
    """Return a day as Terra sends it; "%s" and "%d" are placeholders."""
    samples = [
        {"timestamp": f"2026-07-01T{hour:02d}:00:00.000000+01:00", "bpm": 55 + 3 * hour}
        for hour in range(_HEART_SAMPLES)
    ]
    return {
        "metadata": {"start_time": "%sT00:00:00.000000+01:00", "upload_type": 1},
        "distance_data": {
            "steps": "%d",
            "distance_meters": 9412.7,
            "floors_climbed": 12,
            "elevation": {"gain_actual_meters": 48.2, "loss_actual_meters": 47.9},
        },
        "heart_rate_data": {
            "summary": {
                "resting_hr_bpm": "%d",
                "avg_hrv_rmssd": "%d",
                "avg_hr_bpm": 68,
                "max_hr_bpm": 151,
                "min_hr_bpm": 49,
                "user_max_hr_bpm": 187,
            },
            "detailed": {"hr_samples": samples},
        },
        "active_durations_data": {
            "low_intensity_seconds": "%d",
            "moderate_intensity_seconds": "%d",
            "vigorous_intensity_seconds": "%d",
            "activity_seconds": 5340,
            "inactivity_seconds": 41220,
            "rest_seconds": 25200,
            "num_continuous_inactive_periods": 4,
        },
        "stress_data": {"avg_stress_level": "%d", "max_stress_level": 93},
        "scores": {"recovery": "%d", "sleep": "%d", "activity": 71},
        "strain_data": {"strain_level": "%d"},
        "calories_data": {"total_burned_calories": 2450.8, "BMR_calories": 1710.0},
        "met_data": {"num_low_intensity_minutes": 45, "num_high_intensity_minutes": 13},
        "oxygen_data": {"avg_saturation_percentage": 96.4, "vo2max_ml_per_min_per_kg": 44.0},
        "device_data": {
            "manufacturer": "Garmin",
            "name": "Forerunner 945",
            "software_version": "5.2.1",
            "last_upload_date": "%sT21:58:40.902000+01:00",
        },
    }


def _template() -> str:
    whole = {
        "type": "daily",
        "version": "2022-03-16",
        "user": {
            "user_id": "%s",
            "provider": "GARMIN",
            "last_webhook_update": "%sT21:58:40.902000+00:00",
            "scopes": "ACTIVITY,DAILY,SLEEP",
            "reference_id": "%s",
            "active": True,
        },
        "data": [_record()],
    }
    return json.dumps(whole, separators=(",", ":")).replace('"%d"', "%d")


_TEMPLATE: Final = _template()
