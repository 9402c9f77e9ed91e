"""What a month must come to: a plain program over its deliveries, in the order of their moments.

It knows nothing of the pipeline: no stamps, batches or partitions. What comes later is written over
what came earlier, but for nulls; that is all. Written to be read beside the contract.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from tests.e2e.month import Json, Person, Sent, moment_of

#: Columns by key, by table.
Tables = dict[str, dict[tuple[Any, ...], Json]]

ALIASES = {"glucose_fasting": "glucose", "ldl_cholesterol": "ldl"}
STATUSES = {"normal": "optimal", "high": "out_of_range", "borderline_low": "borderline"}


def reference(people: Iterable[Person], sent: Iterable[Sent]) -> Tables:
    """The tables of a month, nulls left out."""
    return _Reference(people).read(sent)


class _Reference:
    def __init__(self, people: Iterable[Person]) -> None:
        self._person_of = {person.subject: person for person in people}
        self._tables: Tables = defaultdict(lambda: defaultdict(dict))
        #: What a night says of a pulse stays, whatever a day says later.
        self._pulses: dict[tuple[Any, ...], Json] = defaultdict(dict)
        self._upload_of: dict[str, tuple[str, str]] = {}
        #: The hour in which a user was last heard of.
        self._hours: dict[str, int] = {}

    def read(self, sent: Iterable[Sent]) -> Tables:
        for item in sorted(sent, key=lambda one: one.at_ms):
            if item.fact is not None:
                self._fact(item)
            elif "user" in item.body:
                self._of_terra(item)
            else:
                self._lab(item)
        for key, columns in self._pulses.items():
            self._write("daily_summary", key, columns)
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

    def _of_terra(self, sent: Sent) -> None:
        body, kind = sent.body, sent.body["type"]
        named = body["user"]
        person = self._person_of[named["user_id"]]
        connection = (person.subject,)
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
            return False
        day = (record["metadata"].get("start_time") or record["summary_date"])[:10]
        pulse = record["heart_rate_data"]["summary"]
        active = record["active_durations_data"]
        zones = [active[f"{level}_intensity_seconds"] for level in ("low", "moderate", "vigorous")]
        known = [zone for zone in zones if zone is not None]
        columns = {
            "steps": None if steps is None else int(steps),
            "resting_heart_rate": pulse["resting_hr_bpm"],
            "heart_rate_variability": pulse["avg_hrv_rmssd"],
            "active_zone_minutes": minutes(sum(known)) if known else None,
            "fatburn_active_zone_minutes": minutes(zones[0]),
            "cardio_active_zone_minutes": minutes(zones[1]),
            "peak_active_zone_minutes": minutes(zones[2]),
            "stress_management_score": record["stress_data"]["avg_stress_level"],
            "strain": record["strain_data"]["strain_level"],
            "recovery_score": record["scores"]["recovery"],
            "sleep_score": record["scores"]["sleep"],
        }
        self._write("daily_summary", _day_key(person, day), columns)
        return True

    def _sleep(self, person: Person, record: Json) -> bool:
        metadata = record["metadata"]
        start, end = (
            datetime.fromisoformat(metadata[f"{value}_time"]) for value in ("start", "end")
        )
        key = (person.user, person.provider.lower(), start)
        self._write("sleep_sessions", key, {"end_time": end, "is_nap": metadata["is_nap"]})
        if metadata["is_nap"]:
            return True
        durations = record["sleep_durations_data"]
        stages = {
            name: durations["asleep"][f"duration_{field}_sleep_state_seconds"]
            for name, field in (("deep", "deep"), ("rem", "REM"), ("light", "light"))
        }
        asleep = durations["asleep"]["duration_asleep_state_seconds"]
        awake = durations["awake"]["duration_awake_state_seconds"]
        known = [stage for stage in stages.values() if stage is not None]
        whole = asleep + awake if asleep is not None and awake is not None else None
        breathing = record["respiration_data"]
        readiness = record["readiness_data"]["readiness"]
        columns = {
            "sleep_minutes": minutes(sum(known) if asleep is None and known else asleep),
            "bed_time": start,
            "wake_up_time": end,
            **{f"{name}_sleep_minutes": minutes(stage) for name, stage in stages.items()},
            **{f"{name}_sleep_percent": percent(stage, whole) for name, stage in stages.items()},
            "awake_minutes": minutes(awake),
            "awake_percent": percent(awake, whole),
            "spo2": breathing["oxygen_saturation_data"]["avg_saturation_percentage"],
            "respiratory_rate": breathing["breaths_data"]["avg_breaths_per_min"],
            "skin_temperature": record["temperature_data"]["delta"],
            "recovery_score": readiness if person.provider == "WHOOP" else None,
            "sleep_score": record["scores"]["sleep"],
        }
        day = _day_key(person, metadata["end_time"][:10])
        self._write("daily_summary", day, columns)
        pulse = record["heart_rate_data"]["summary"]
        for name, value in (
            ("resting_heart_rate", pulse["resting_hr_bpm"]),
            ("heart_rate_variability", pulse["avg_hrv_rmssd"]),
        ):
            if value is not None:
                self._pulses[day][name] = value
        return True

    def _activity(self, person: Person, record: Json) -> bool:
        metadata = record["metadata"]
        start, end = (
            datetime.fromisoformat(metadata[f"{value}_time"]) for value in ("start", "end")
        )
        distance = record["distance_data"]["summary"]
        steps = distance["steps"]
        columns = {
            "end_time": end,
            "type": metadata["type"],
            "name": metadata["name"],
            "duration_seconds": (end - start).total_seconds(),
            "calories": record["calories_data"]["total_burned_calories"],
            "distance_meters": distance["distance_meters"],
            "steps": None if steps is None else int(steps),
            "avg_heart_rate": record["heart_rate_data"]["summary"]["avg_hr_bpm"],
            "max_heart_rate": record["heart_rate_data"]["summary"]["max_hr_bpm"],
            "strain": record["strain_data"]["strain_level"],
        }
        self._write("activities", (person.user, person.provider.lower(), start), columns)
        return True

    def _body(self, person: Person, record: Json) -> bool:
        source, day = f"{person.provider.lower()}_body", record["metadata"]["start_time"][:10]
        result: dict[str, Json] = {}
        measurements = record["measurements_data"]["measurements"]
        for one in sorted(measurements, key=lambda item: item["measurement_time"]):
            for code, field, unit in (
                ("weight_kg", "weight_kg", "kg"),
                ("body_fat_percent", "bodyfat_percentage", "percent"),
            ):
                if one[field] is not None:
                    result[code] = {"value": one[field], "unit": unit}
        for code in ("systolic_bp", "diastolic_bp"):
            samples = record["blood_pressure_data"]["blood_pressure_samples"]
            values = [sample[code] for sample in samples if sample[code] is not None]
            if values:
                mean = sum(values) / len(values)
                result[code] = {"value": mean, "unit": "mmHg", "samples": len(values)}
        for code, columns in result.items():
            key = (person.user, source, date.fromisoformat(day), code)
            self._tables["biomarkers_raw"][key] = columns
        return bool(result)

    def _lab(self, sent: Sent) -> None:
        body = sent.body
        user, upload = self._upload_of[body["upload_id"]]
        self._heard(user, sent.at_ms)
        if body.get("type") == "lab_report.failed":
            status = {"terra_status": f"failed:{body['data']['error']['code']}"}
            self._write("lab_uploads", (upload,), status)
            return
        parsed = {"terra_status": "parsed", "parsed_at": moment_of(sent.at_ms)}
        self._write("lab_uploads", (upload,), parsed)
        report = body["data"][0] if isinstance(body["data"], list) else body["data"]
        for result in report["results"][:-1]:  # The last one has a date of the year 20260.
            value, limits = result["value"], result["reference_range"]
            text = value if value == "<0.5" else None
            columns = {
                "value": None if text else float(value),
                "value_text": text,
                "unit": result["unit"],
                "status": STATUSES.get(result["classification"]),
                "classification": result["classification"],
                "reference_low": limits["lower"],
                "reference_high": None if limits["upper"] is None else float(limits["upper"]),
                "name": result["name"],
                "upload_id": upload,
            }
            code = ALIASES.get(result["biomarker"], result["biomarker"])
            key = (user, "terra_lab", date.fromisoformat(report["report_date"]), code)
            known = {name: value for name, value in columns.items() if value is not None}
            self._tables["biomarkers_raw"][key] = known


def _day_key(person: Person, day: str) -> tuple[str, str, date]:
    return person.user, person.provider.lower(), date.fromisoformat(day)


def minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 2)
