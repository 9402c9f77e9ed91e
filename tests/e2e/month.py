"""A month of some people's deliveries, made from a seed in the shapes that Terra documents.

Each delivery has a moment of its own, which Terra's ordering timestamp says: so it is known which
of two is the later one, however they are sent.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp

from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded, SystemEvent
from tests.e2e.system import System, signed

Json = dict[str, Any]

MAKERS = ("GARMIN", "WHOOP", "OURA", "WITHINGS")
FIRST_DAY = datetime(2026, 6, 1)  # noqa: DTZ001 (each person's own day)
CLOCKS_CHANGE = FIRST_DAY + timedelta(days=13, hours=2)
#: Of the sender of a delivery that is not taken.
_PATIENCE_S = 120.0
_BURST = 500
_CONNECTIONS = 32
#: Senders retry for a day; what is sent claims to be from a little before now.
_AGE_MS = 6 * 60 * 60 * 1000


class Sent(NamedTuple):
    """A delivery as it is posted, or a fact as it is told."""

    at_ms: int
    body: Json
    fact: SystemEvent | None = None


class Person(NamedTuple):
    """Somebody's wearable; a user may have several."""

    user: str
    subject: str
    provider: str
    #: Minutes from UTC until the day on which the clocks of the place go forward.
    offset: int
    #: Terra's id after a reauthentication, if there is one, and the day of that.
    again: str | None = None
    on: int = 0

    def subject_on(self, day: int) -> str:
        """Terra's id of the connection on a day of the month."""
        return self.subject if self.again is None or day < self.on else self.again

    def zone(self, moment: datetime) -> timezone:
        """The zone of a local time."""
        forward = 60 if moment >= CLOCKS_CHANGE else 0
        return timezone(timedelta(minutes=self.offset + forward))


class Month:
    """Deliveries of a month, in the order of their moments."""

    def __init__(self, seed: int, *, people: int, days: int, now_ms: int, name: str) -> None:
        self._draw = random.Random(seed)
        self._days = days
        self._next_ms = now_ms - _AGE_MS
        self.people = [
            person for number in range(people) for person in self._wearables(name, number)
        ]
        self.sent: list[Sent] = [
            self._at(body, fact) for person in self.people for body, fact in self._of(person)
        ]

    def _wearables(self, name: str, number: int) -> Iterator[Person]:
        offset = 30 * self._draw.randint(-20, 24)
        several = 2 if self._draw.random() < 0.2 else 1
        for one, maker in enumerate(self._draw.sample(MAKERS, several)):
            subject = f"{name}-terra-{number}-{one}"
            again = f"{subject}-b" if self._draw.random() < 0.15 else None
            day = self._draw.randrange(self._days)
            yield Person(f"user_{name}{number}", subject, maker, offset, again, day)

    def _at(self, body: Json, fact: SystemEvent | None) -> Sent:
        self._next_ms += 1
        if fact is not None:
            fact = type(fact)(**{**_fields(fact), "at_ms": self._next_ms})
        return Sent(self._next_ms, body, fact)

    def _of(self, person: Person) -> Iterator[tuple[Json, SystemEvent | None]]:
        user = {"user_id": person.subject, "provider": person.provider, "scopes": "A,B"}
        connects = {"type": "auth", "status": "success"}
        connects["user"] = user | {"reference_id": person.user}
        yield connects, None
        if self._draw.random() < 0.15:  # Disconnects, and connects again by the same bytes.
            yield {"type": "deauth", "status": "success", "user": user}, None
            yield connects, None
        known = user | {"reference_id": person.user if self._draw.random() < 0.3 else "widget"}
        for day in range(self._days):
            if person.again is not None and day == person.on:
                old, known = known, known | {"user_id": person.again}
                names = {"old_user": old, "new_user": known}
                yield {"type": "user_reauth", "status": "success", **names}, None
            for kind in (
                "daily",
                "daily",
                "sleep",
                "sleep",
                "activity",
                "activity",
                "body",
                "body",
            ):
                if self._draw.random() < 0.8:
                    made = getattr(self, f"_{kind}")(person, FIRST_DAY + timedelta(days=day))
                    yield {"type": kind, "user": known, "data": made}, None
            if self._draw.random() < 0.1:
                yield {"type": "nutrition", "user": known, "data": [{"day": day}]}, None
        yield from self._labs(person)
        if self._draw.random() < 0.2:
            scopes = {"scopes": self._draw.choice(("A", "A,B,C"))}
            yield {"type": "permission_change", "user": known | scopes}, None
        if self._draw.random() < 0.1:
            yield {"type": "deauth", "status": "success", "user": known}, None

    def _number(self, low: float, high: float, digits: int = 1) -> float | None:
        """A number, or none: a wearable does not always know."""
        value = round(self._draw.uniform(low, high), digits)
        return None if self._draw.random() < 0.25 else value

    def _pulse(self, low: float, high: float) -> float | None:
        """A number, none, or what a wearable sends that has no contact."""
        return self._draw.choice((0, -1)) if self._draw.random() < 0.1 else self._number(low, high)

    def _moment(self, person: Person, day: datetime, hour: float) -> str:
        moment = day + timedelta(hours=hour)
        return moment.replace(tzinfo=person.zone(moment)).isoformat(timespec="microseconds")

    def _daily(self, person: Person, day: datetime) -> list[Json]:
        start = {
            "start_time": self._moment(person, day, 0),
            "end_time": self._moment(person, day, 24),
        }
        named = {"metadata": {}, "summary_date": day.date().isoformat()}
        record = {"metadata": start} if self._draw.random() < 0.9 else named
        record |= {
            "distance_data": {"steps": self._number(0, 20_000, 0), "distance_meters": 4.5},
            "heart_rate_data": {
                "summary": {
                    "resting_hr_bpm": self._pulse(40, 70),
                    "avg_hrv_rmssd": self._pulse(20, 90),
                }
            },
            "active_durations_data": {
                f"{level}_intensity_seconds": self._number(0, 5_000, 0)
                for level in ("low", "moderate", "vigorous")
            },
            "stress_data": {"avg_stress_level": self._draw.choice((-1, self._number(0, 100, 0)))},
            "strain_data": {"strain_level": self._number(0, 21)},
            "scores": {"recovery": self._number(0, 100, 0), "sleep": self._number(0, 100, 0)},
        }
        if self._draw.random() < 0.05:
            record["strain_data"] = []
        bad = {"metadata": start, "distance_data": {"steps": -1}}
        return [record, bad] if self._draw.random() < 0.05 else [record]

    def _sleep(self, person: Person, day: datetime) -> list[Json]:
        """A night, of which a later delivery may be a revision; perhaps in two pieces, or a nap."""
        draw = self._draw
        begun = draw.choice((-2.5, -2.4, -1.0, 0.5))
        name = f"{person.subject}-{day:%d}" if draw.random() < 0.5 else None
        if draw.random() < 0.04:  # A clock that was days off, and was set right.
            name = f'{person.subject} "moved"'
        kind = draw.random()
        if kind < 0.15:
            pieces = [(begun, begun + 3.5, name, None), (begun + 4.5, begun + 8, None, None)]
        elif kind < 0.3:
            pieces = [(begun, begun + 8, name, False), (14.0, 14.5, None, None)]
        elif kind < 0.4:
            pieces = [(13.0, 15.0, None, True)]
        else:
            pieces = [(begun, begun + draw.choice((8, 7.5)), name, draw.choice((None, False)))]
        return [self._slept(person, day, *piece) for piece in pieces]

    def _slept(
        self,
        person: Person,
        day: datetime,
        start: float,
        end: float,
        name: str | None,
        nap: bool | None,
    ) -> Json:
        length = (end - start) * 3_600
        asleep = {
            "duration_asleep_state_seconds": self._number(length * 0.7, length * 0.9, 0),
            "duration_deep_sleep_state_seconds": self._number(60, length * 0.2, 0),
            "duration_REM_sleep_state_seconds": self._number(60, length * 0.2, 0),
            "duration_light_sleep_state_seconds": self._number(60, length * 0.2, 0),
        }
        return {
            "metadata": {
                "start_time": self._moment(person, day, start),
                "end_time": self._moment(person, day, end),
                "summary_id": name,
                "is_nap": nap,
            },
            "sleep_durations_data": {
                "asleep": asleep,
                "awake": {"duration_awake_state_seconds": self._number(0, length * 0.1, 0)},
            },
            "heart_rate_data": {
                "summary": {
                    "resting_hr_bpm": self._pulse(40, 60),
                    "avg_hrv_rmssd": self._pulse(20, 90),
                }
            },
            "respiration_data": {
                "breaths_data": {"avg_breaths_per_min": self._pulse(10, 20)},
                "oxygen_saturation_data": {"avg_saturation_percentage": self._pulse(90, 100)},
            },
            "temperature_data": {"delta": self._number(-1, 1, 2)},
            "readiness_data": {"readiness": self._number(0, 100, 0)},
            "scores": {"sleep": self._number(0, 100, 0)},
        }

    def _activity(self, person: Person, day: datetime) -> list[Json]:
        start = self._draw.choice((7.0, 7.1, 18.25))
        name = self._draw.choice((None, f"{person.subject}-w{day:%d}"))
        name = f"{person.subject}-moved" if self._draw.random() < 0.04 else name
        return [
            {
                "metadata": {
                    "start_time": self._moment(person, day, start),
                    "end_time": self._moment(person, day, start + self._draw.choice((0.5, 1.25))),
                    "name": self._draw.choice(("Run", "Ride \U0001f6b4", None)),
                    "summary_id": name,
                    "type": self._draw.randint(0, 100),
                },
                "distance_data": {
                    "summary": {
                        "distance_meters": self._number(0, 20_000),
                        "steps": self._number(0, 9_000, 0),
                    }
                },
                "calories_data": {"total_burned_calories": self._number(50, 900)},
                "heart_rate_data": {
                    "summary": {
                        "avg_hr_bpm": self._pulse(90, 150),
                        "max_hr_bpm": self._pulse(150, 190),
                    }
                },
                "strain_data": {"strain_level": self._number(0, 21)},
            }
        ]

    def _body(self, person: Person, day: datetime) -> list[Json]:
        measurements = [
            {
                "measurement_time": self._moment(person, day, hour),
                "weight_kg": self._pulse(50, 90),
                "bodyfat_percentage": self._number(10, 30),
            }
            for hour in self._draw.sample(range(-5, 24), self._draw.randint(0, 3))
        ]
        samples = [
            {
                "timestamp": self._moment(person, day, hour),
                "systolic_bp": self._draw.randint(100, 140),
                "diastolic_bp": self._pulse(60, 90),
            }
            for hour in self._draw.sample(range(-5, 24), self._draw.randint(0, 3))
        ]
        glucose = [{"blood_glucose_mg_per_dL": 95}] if self._draw.random() < 0.2 else []
        return [
            {
                "metadata": {"start_time": self._moment(person, day, 0)},
                "measurements_data": {"measurements": measurements},
                "blood_pressure_data": {"blood_pressure_samples": samples},
                "glucose_data": {"blood_glucose_samples": glucose},
            }
        ]

    def _labs(self, person: Person) -> Iterator[tuple[Json, SystemEvent | None]]:
        ours, theirs = f"our-{person.subject}", f"upl-{person.subject}"
        named: Json = {"at_ms": 0, "user_id": person.user, "upload_id": ours}
        file = {"storage_key": f"lab-uploads/{ours}.pdf", "original_name": "blood test.pdf"}
        yield {}, LabUploaded(**named, **file, content_type="application/pdf", size=1_000)
        yield {}, LabSubmitted(**named, terra_status="submitted", terra_upload_id=theirs)
        draw = self._draw
        results = [
            {
                "biomarker": code,
                "name": code.replace("_", " ").title(),
                "value": draw.choice((round(draw.uniform(1, 200), 1), "12.5", "<0.5")),
                "unit": draw.choice(("mg/dL", None)),
                "reference_range": {"lower": 1, "upper": draw.choice((99, "99.5", None))},
                "classification": draw.choice(("normal", "high", "borderline_low", "odd", None)),
            }
            for code in draw.sample(
                ("glucose_fasting", "ldl_cholesterol", "ferritin", "odd_one"), 3
            )
        ]
        if draw.random() < 0.3:  # A share and a count of the same thing, in either order.
            share = {"biomarker": "odd_two", "value": draw.choice((56, "few")), "unit": "%"}
            count = {"biomarker": "odd_two", "value": 3.2, "unit": "10^9/L"}
            results += draw.sample((share, count), 2)
        bad = {"biomarker": "tsh", "value": 1, "collection_date": "20260-01-01"}
        body: Json = {"report_date": "2026-06-15", "results": [*results, bad]}
        if draw.random() < 0.5:
            yield {"upload_id": theirs, "data": [body]}, None
        elif draw.random() < 0.8:
            yield {"type": "lab_report.completed", "upload_id": theirs, "data": body}, None
        else:
            failed = {"error": {"code": "file_unreadable"}}
            if draw.random() < 0.5:
                named = {"type": "lab_report.failed", "event_id": f"evt-{person.subject}"}
                yield named | {"data": failed | {"reference_id": person.user}}, None
            else:
                yield {"type": "lab_report.failed", "upload_id": theirs, "data": failed}, None


def _fields(fact: SystemEvent) -> Json:
    return {name: getattr(fact, name) for name in fact.__struct_fields__}


def post_shuffled(system: System, sent: Sequence[Sent], seed: int, gateways: Sequence[str]) -> None:
    """Posts deliveries shuffled, doubled and in bursts, through several gateways."""
    draw = random.Random(seed)
    posts = [item for item in sent if item.fact is None for _ in range(2)]
    draw.shuffle(posts)
    urls = [f"{system.url(gateway)}/webhooks/terra" for gateway in gateways]
    asyncio.run(_post_in_bursts([(draw.choice(urls), post) for post in posts]))


async def _post_in_bursts(posts: Sequence[tuple[str, Sent]]) -> None:
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        for first in range(0, len(posts), _BURST):
            burst = posts[first : first + _BURST]
            await asyncio.gather(*(_post(session, url, item) for url, item in burst))


async def _post(session: aiohttp.ClientSession, url: str, sent: Sent) -> None:
    """Posts until it is taken: senders try again when a connection is lost, or Kafka takes long."""
    raw = json.dumps(sent.body).encode()
    said, deadline = "nothing", time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        headers = signed(raw) | {"x-terra-ordering-timestamp": str(sent.at_ms)}
        with suppress(aiohttp.ClientConnectionError, TimeoutError):
            async with session.post(url, data=raw, headers=headers) as answer:
                if answer.status == HTTPStatus.OK:
                    return
                said = await answer.text()
                if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    break
        await asyncio.sleep(0.1)
    raise AssertionError(f"expected 200, found {said}")


def moment_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC) + timedelta(milliseconds=at_ms % 1000)
