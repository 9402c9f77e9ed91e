"""Daily rows in plain dictionaries and orjson, as the alternatives to Headwater make them.

A column keeps the signed time of what set it, the later one wins, and a null changes nothing: the
same rows as Headwater's, without the origin of values.
"""

from typing import Any, Final, TypeAlias

import orjson
import psycopg

#: Values and signed times of the columns that are set.
Held: TypeAlias = dict[str, tuple[int, Any]]
Key: TypeAlias = tuple[str, str, str]

_MINUTES: Final = {
    "fatburn_active_zone_minutes": "low_intensity_seconds",
    "cardio_active_zone_minutes": "moderate_intensity_seconds",
    "peak_active_zone_minutes": "vigorous_intensity_seconds",
}
_COLUMNS: Final = {
    "steps": "bigint",
    "resting_heart_rate": "double precision",
    "heart_rate_variability": "double precision",
    "active_zone_minutes": "double precision",
    **dict.fromkeys(_MINUTES, "double precision"),
    "stress_management_score": "double precision",
    "strain": "double precision",
    "recovery_score": "double precision",
    "sleep_score": "double precision",
}
_KEY: Final = {"user_id": "text", "source": "text", "datetime": "date"}


def read(value: bytes) -> list[tuple[Key, int, dict[str, Any]]]:
    """Return the rows of a raw record: key, signed time and columns of every day in it."""
    record = orjson.loads(value)
    body = orjson.loads(record["body"])
    source = body["user"]["provider"].lower()
    return [
        (
            (record["reference"], source, day["metadata"]["start_time"][:10]),
            record["sent_at_ms"],
            _columns(day),
        )
        for day in body["data"]
    ]


def _columns(day: dict[str, Any]) -> dict[str, Any]:
    heart = day.get("heart_rate_data", {}).get("summary", {})
    active = day.get("active_durations_data", {})
    scores = day.get("scores", {})
    seconds = {column: active.get(name) for column, name in _MINUTES.items()}
    known = [value for value in seconds.values() if value is not None]
    return {
        "steps": day.get("distance_data", {}).get("steps"),
        "resting_heart_rate": heart.get("resting_hr_bpm"),
        "heart_rate_variability": heart.get("avg_hrv_rmssd"),
        "active_zone_minutes": round(sum(known) / 60, 2) if known else None,
        **{c: None if value is None else round(value / 60, 2) for c, value in seconds.items()},
        "stress_management_score": day.get("stress_data", {}).get("avg_stress_level"),
        "strain": day.get("strain_data", {}).get("strain_level"),
        "recovery_score": scores.get("recovery"),
        "sleep_score": scores.get("sleep"),
    }


def merge(held: Held, sent_at_ms: int, columns: dict[str, Any]) -> None:
    """Merge columns into a row: the later one wins."""
    for name, value in columns.items():
        if value is not None and (name not in held or held[name][0] <= sent_at_ms):
            held[name] = (sent_at_ms, value)


def flat(key: Key, held: Held) -> dict[str, Any]:
    """Return a row as it is produced and stored."""
    row: dict[str, Any] = dict(zip(_KEY, key, strict=True))
    for name, (_, value) in held.items():
        row[name] = value
    return row


def make_table(dsn: str, table: str) -> None:
    """Create a table like daily_summary, including its indexes."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"create table {table} (like daily_summary including all)".encode())


def upsert(table: str) -> bytes:
    """Return the statement that writes rows from a JSON array: as fast as COPY, in one trip."""
    both = _KEY | _COLUMNS
    names, values = ", ".join(both), ", ".join(f"r.{name}" for name in both)
    definitions = ", ".join(f"{name} {kind}" for name, kind in both.items())
    assignments = ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS, "updated_at"))
    return (
        f"insert into {table} ({names}, column_sources, updated_at) "  # noqa: S608 (names of ours)
        f"select {values}, '{{}}', now() from json_to_recordset(%s::json) as r ({definitions}) "
        f"on conflict ({', '.join(_KEY)}) do update set {assignments}"
    ).encode()
