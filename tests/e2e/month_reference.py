"""What a month must come to: a plain program over its deliveries, in the order of their moments.

It knows nothing of the pipeline: no stamps, batches, partitions or parts. Days are written over but
for nulls, workouts and results as a whole; sleeps and measurements are collected, and looked at in
the end. Written to be read beside the contract.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from math import fsum
from typing import Any, NamedTuple

from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from tests.e2e.month import Json, Person, Sent, moment_of

#: Columns by key, by table.
Tables = dict[str, dict[tuple[Any, ...], Json]]

ALIASES = {"glucose_fasting": "glucose", "ldl_cholesterol": "ldl"}
CODES = {
    "weight_kg": "weight_kg",
    "bodyfat_percentage": "body_fat_percent",
    "systolic_bp": "systolic_bp",
    "diastolic_bp": "diastolic_bp",
}
STATUSES = {"normal": "optimal", "high": "out_of_range", "borderline_low": "borderline"}


def reference(people: Iterable[Person], sent: Iterable[Sent]) -> Tables:
    """The tables of a month, nulls left out."""
    return _Reference(people).read(sent)


class _Reference:
    def __init__(self, people: Iterable[Person]) -> None:
        self._person_of = {
            subject: person
            for person in people
            for subject in (person.subject, person.again)
            if subject is not None
        }
        self._tables: Tables = defaultdict(lambda: defaultdict(dict))
        #: Sleeps of each wearable, in the order of their deliveries.
        self._sleeps: dict[tuple[str, str], list[_Slept]] = defaultdict(list)
        #: Measurements of each day, by their moments.
        self._measured: dict[tuple[Any, ...], dict[datetime, float]] = defaultdict(dict)
        self._upload_of: dict[str, tuple[str, str]] = {}
        #: The hour in which a user was last heard of.
        self._hours: dict[str, int] = {}

    def read(self, sent: Iterable[Sent]) -> Tables:
        for item in sorted(sent, key=lambda one: one.at_ms):
            if item.fact is not None:
                self._fact(item)
            elif item.body.get("type") == "user_reauth":
                self._reauth(item)
            elif "user" in item.body:
                self._of_terra(item)
            else:
                self._lab(item)
        for owner, sleeps in self._sleeps.items():
            self._nights(owner, sleeps)
        for key, values in self._measured.items():
            self._tables["biomarkers_raw"][key] = _biomarker(key[3], values)
        return {table: dict(rows) for table, rows in self._tables.items()}

    def _write(self, table: str, key: tuple[Any, ...], columns: Json) -> None:
        known = {name: value for name, value in columns.items() if value is not None}
        self._tables[table][key].update(known)

    def _heard(self, user: str, at_ms: int) -> None:
        row = self._tables["users"][user,]
        row.setdefault("created_at", moment_of(at_ms))
        hour = at_ms // 3_600_000
        if self._hours.get(user) != hour:
            self._hours[user] = hour
            row["last_seen_at"] = moment_of(at_ms)

    def _fact(self, sent: Sent) -> None:
        match sent.fact:
            case LabUploaded() as fact:
                file = {
                    name: getattr(fact, name) for name in ("storage_key", "original_name", "size")
                }
                created = {"created_at": moment_of(sent.at_ms), "content_type": fact.content_type}
                columns = {"user_id": fact.user_id, "terra_status": "pending", **file, **created}
            case LabSubmitted() as fact:
                columns = {"terra_status": "submitted", "terra_upload_id": fact.terra_upload_id}
                self._upload_of[fact.terra_upload_id or ""] = (fact.user_id, fact.upload_id)
            case other:
                raise AssertionError(other)
        self._write("lab_uploads", (fact.upload_id,), columns)
        self._heard(fact.user_id, sent.at_ms)

    def _reauth(self, sent: Sent) -> None:
        old, new = sent.body["old_user"], sent.body["new_user"]
        person = self._person_of[new["user_id"]]
        columns = {"user_id": person.user, "provider": person.provider}
        self._write("terra_connections", (old["user_id"],), columns | {"active": False})
        opened = {"scopes": new["scopes"], "reference_id": new["reference_id"], "active": True}
        self._write("terra_connections", (new["user_id"],), columns | opened)
        self._heard(person.user, sent.at_ms)

    def _of_terra(self, sent: Sent) -> None:
        body, kind = sent.body, sent.body["type"]
        named = body["user"]
        person = self._person_of[named["user_id"]]
        connection = (named["user_id"],)
        if kind == "nutrition":
            return
        if kind == "permission_change":
            self._write("terra_connections", connection, {"scopes": named["scopes"]})
            return
        if kind in ("auth", "deauth"):
            columns = {
                "user_id": person.user,
                "provider": person.provider,
                "active": kind == "auth",
            }
            if kind == "auth":
                columns |= {"scopes": named["scopes"], "reference_id": named["reference_id"]}
            self._write("terra_connections", connection, columns)
            self._heard(person.user, sent.at_ms)
            return
        taken = [getattr(self, f"_{kind}")(person, record) for record in body["data"]]
        if any(taken):
            self._heard(person.user, sent.at_ms)

    def _daily(self, person: Person, record: Json) -> bool:
        steps = record["distance_data"]["steps"]
        if steps is not None and steps < 0:
            return False  # Nothing else is in such a record.
        start = record["metadata"].get("start_time")
        pulse, strain = record["heart_rate_data"]["summary"], record["strain_data"]
        stress = record["stress_data"]["avg_stress_level"]
        active = record["active_durations_data"]
        zones = [active[f"{level}_intensity_seconds"] for level in ("low", "moderate", "vigorous")]
        known = [zone for zone in zones if zone is not None]
        columns = {
            "steps": None if steps is None else int(steps),
            "resting_heart_rate": positive(pulse["resting_hr_bpm"]),
            "heart_rate_variability": positive(pulse["avg_hrv_rmssd"]),
            "active_zone_minutes": minutes(sum(known)) if known else None,
            "fatburn_active_zone_minutes": minutes(zones[0]),
            "cardio_active_zone_minutes": minutes(zones[1]),
            "peak_active_zone_minutes": minutes(zones[2]),
            "stress_management_score": None if stress == -1 else stress,
            "strain": strain["strain_level"] if isinstance(strain, dict) else None,
            "recovery_score": record["scores"]["recovery"],
            "sleep_score": record["scores"]["sleep"],
            "utc_offset_minutes": None if start is None else offset(datetime.fromisoformat(start)),
        }
        day = (start or record["summary_date"])[:10]
        self._write("daily_summary", _day_key(person, day), columns)
        return True

    def _sleep(self, person: Person, record: Json) -> bool:
        metadata = record["metadata"]
        start, end = (
            datetime.fromisoformat(metadata[f"{value}_time"]) for value in ("start", "end")
        )
        night = {} if metadata["is_nap"] else _night(person, record, start, end)
        slept = _Slept(start, end, metadata["summary_id"], metadata["is_nap"], night)
        self._sleeps[person.user, person.provider.lower()].append(slept)
        return True

    def _nights(self, owner: tuple[str, str], sleeps: list["_Slept"]) -> None:
        """What sleeps come to: later ones have replaced what they are versions of."""
        left = [
            one
            for number, one in enumerate(sleeps)
            if not any(later.replaces(one) for later in sleeps[number + 1 :])
        ]
        days: dict[date, _Slept] = {}
        for one in left:
            known = days.get(one.end.date())
            if one.night and (known is None or one.length >= known.length):
                days[one.end.date()] = one
        for one in left:
            columns = {
                "end_time": one.end,
                "is_nap": one.is_nap,
                "summary_id": one.summary_id,
                "is_main": days.get(one.end.date()) is one,
                "utc_offset_minutes": offset(one.end),
            }
            self._write("sleep_sessions", (*owner, one.start), columns)
        for day, one in days.items():
            # What a day says of a night is not mixed with the night.
            self._tables["daily_summary"][*owner, day].pop("sleep_score", None)
            self._write("daily_summary", (*owner, day), one.night)

    def _activity(self, person: Person, record: Json) -> bool:
        metadata = record["metadata"]
        start, end = (
            datetime.fromisoformat(metadata[f"{value}_time"]) for value in ("start", "end")
        )
        distance, pulse = record["distance_data"]["summary"], record["heart_rate_data"]["summary"]
        steps = distance["steps"]
        columns = {
            "end_time": end,
            "type": metadata["type"],
            "name": metadata["name"],
            "duration_seconds": (end - start).total_seconds(),
            "calories": record["calories_data"]["total_burned_calories"],
            "distance_meters": distance["distance_meters"],
            "steps": None if steps is None else int(steps),
            "avg_heart_rate": positive(pulse["avg_hr_bpm"]),
            "max_heart_rate": positive(pulse["max_hr_bpm"]),
            "strain": record["strain_data"]["strain_level"],
            "utc_offset_minutes": offset(start),
        }
        owner, name = (person.user, person.provider.lower()), metadata["summary_id"] or ""
        workouts = self._tables["activities"]
        for key in [key for key in workouts if key[:2] == owner and name and key[3] == name]:
            del workouts[key]
        workouts.pop((*owner, start, name), None)
        self._write("activities", (*owner, start, name), columns)
        return True

    def _body(self, person: Person, record: Json) -> bool:
        measured = False
        for field, one in (
            *(("measurement_time", one) for one in record["measurements_data"]["measurements"]),
            *(
                ("timestamp", one)
                for one in record["blood_pressure_data"]["blood_pressure_samples"]
            ),
        ):
            at = datetime.fromisoformat(one[field])
            for name, code in CODES.items():
                value = positive(one.get(name))
                if value is not None:
                    key = (person.user, f"{person.provider.lower()}_body", at.date(), code)
                    self._measured[key][at] = value
                    measured = True
        return measured

    def _lab(self, sent: Sent) -> None:
        body = sent.body
        if "upload_id" not in body:
            self._failed(sent.at_ms, body["data"])
            return
        user, upload = self._upload_of[body["upload_id"]]
        self._heard(user, sent.at_ms)
        if body.get("type") == "lab_report.failed":
            status = {"terra_status": f"failed:{body['data']['error']['code']}"}
            self._write("lab_uploads", (upload,), status)
            return
        parsed = {"terra_status": "parsed", "parsed_at": moment_of(sent.at_ms)}
        self._write("lab_uploads", (upload,), parsed)
        report = body["data"][0] if isinstance(body["data"], list) else body["data"]
        # Of two results with one code, a number is written over a text, and a unit over a later
        # one of the alphabet. One has a date of the year 20260.
        ordered = sorted(report["results"], key=lambda one: one.get("unit") or "", reverse=True)
        for result in sorted(ordered, key=lambda one: one["value"] not in ("few", "<0.5")):
            value, limits = result["value"], result.get("reference_range") or {}
            text = value if value in ("<0.5", "few") else None
            columns = {
                "value": None if text else float(value),
                "value_text": text,
                "unit": result.get("unit"),
                "status": STATUSES.get(result.get("classification")),
                "classification": result.get("classification"),
                "reference_low": limits.get("lower"),
                "reference_high": None if limits.get("upper") is None else float(limits["upper"]),
                "name": result.get("name"),
                "upload_id": upload,
            }
            code = ALIASES.get(result["biomarker"], result["biomarker"])
            key = (user, "terra_lab", date.fromisoformat(report["report_date"]), code)
            known = {name: value for name, value in columns.items() if value is not None}
            self._tables["biomarkers_raw"][key] = known

    def _failed(self, at_ms: int, failure: Json) -> None:
        """A failure that names only the user is of the oldest upload that waits."""
        user = failure["reference_id"]
        self._heard(user, at_ms)
        waiting = [
            (row["created_at"], key)
            for key, row in self._tables["lab_uploads"].items()
            if row["user_id"] == user and row["terra_status"] == "submitted"
        ]
        if waiting:
            _, key = min(waiting)
            self._write("lab_uploads", key, {"terra_status": f"failed:{failure['error']['code']}"})


class _Slept(NamedTuple):
    start: datetime
    end: datetime
    summary_id: str | None
    is_nap: bool | None
    #: Columns of its day; none if it is a nap.
    night: Json

    @property
    def length(self) -> float:
        asleep = self.night.get("sleep_minutes")
        return (self.end - self.start).total_seconds() / 60 if asleep is None else asleep

    def replaces(self, earlier: "_Slept") -> bool:
        """Whether it is a later version of a sleep."""
        if self.summary_id and self.summary_id == earlier.summary_id:
            return True
        overlap = min(self.end, earlier.end) - max(self.start, earlier.start)
        return overlap * 2 > min(self.end - self.start, earlier.end - earlier.start)


def _night(person: Person, record: Json, start: datetime, end: datetime) -> Json:
    durations = record["sleep_durations_data"]
    stages = {
        name: durations["asleep"][f"duration_{field}_sleep_state_seconds"]
        for name, field in (("deep", "deep"), ("rem", "REM"), ("light", "light"))
    }
    asleep = durations["asleep"]["duration_asleep_state_seconds"]
    awake = durations["awake"]["duration_awake_state_seconds"]
    known = [stage for stage in stages.values() if stage is not None]
    slept = sum(known) if asleep is None and known else asleep
    whole = None if slept is None else slept + (awake or 0)
    breathing, pulse = record["respiration_data"], record["heart_rate_data"]["summary"]
    readiness = record["readiness_data"]["readiness"]
    oxygen = breathing["oxygen_saturation_data"]["avg_saturation_percentage"]
    return {
        "sleep_minutes": minutes(slept),
        "bed_time": start,
        "wake_up_time": end,
        **{f"{name}_sleep_minutes": minutes(stage) for name, stage in stages.items()},
        **{f"{name}_sleep_percent": percent(stage, whole) for name, stage in stages.items()},
        "awake_minutes": minutes(awake),
        "awake_percent": percent(awake, whole),
        "resting_heart_rate": positive(pulse["resting_hr_bpm"]),
        "heart_rate_variability": positive(pulse["avg_hrv_rmssd"]),
        "spo2": positive(oxygen),
        "respiratory_rate": positive(breathing["breaths_data"]["avg_breaths_per_min"]),
        "skin_temperature": record["temperature_data"]["delta"],
        "recovery_score": readiness if person.provider == "WHOOP" else None,
        "sleep_score": record["scores"]["sleep"],
        "utc_offset_minutes": offset(end),
    }


def _biomarker(code: str, values: dict[datetime, float]) -> Json:
    if code.endswith("_bp"):
        mean = fsum(values.values()) / len(values)
        return {"value": mean, "unit": "mmHg", "samples": len(values)}
    unit = "kg" if code == "weight_kg" else "percent"
    return {"value": values[max(values)], "unit": unit}


def positive(value: float | None) -> float | None:
    """A number that a living body can have; without contact, wearables send 0 or less."""
    return value if value is not None and value > 0 else None


def offset(moment: datetime) -> int:
    result = moment.utcoffset()
    assert result is not None
    return int(result.total_seconds() // 60)


def _day_key(person: Person, day: str) -> tuple[str, str, date]:
    return person.user, person.provider.lower(), date.fromisoformat(day)


def minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 2)
