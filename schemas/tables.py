"""The projection tables: their keys, columns and row type.

A struct declares a table. Its fields without a default form the primary key and are text; the
others are last-writer-wins columns, null until a delivery sets them. Columns are only ever added
behind the others, because a row names the stamps of its columns by their place.
"""

from dataclasses import dataclass
from types import NoneType
from typing import Final, TypeAlias, get_args

import msgspec

from headwater.schemas.records import Stamp

Value: TypeAlias = str | int | float | bool | None

#: Value of a byte of `stamp_of` for a column that nobody has set. A row can therefore name at most
#: 255 deliveries, more than it has columns.
UNSET: Final = 255


class Row(msgspec.Struct, frozen=True):
    """A row of a projection table.

    Shape:  values and stamps have one entry a column, in the table's order; a column is unset
            exactly when both are None.
    """

    key: tuple[str, ...]
    values: tuple[Value, ...]
    stamps: tuple[Stamp | None, ...]


class Stamps(msgspec.Struct):
    """Which deliveries set the columns of a row: what every row has behind them."""

    #: The deliveries that set the columns.
    stamps: tuple[Stamp, ...]
    #: One byte a column, in order: the index into stamps; 255 where the column is unset.
    stamp_of: bytes


class TerraConnection(msgspec.Struct):
    """A user's link to a wearable account. Topic connections."""

    #: Terra's id of the connection.
    terra_user_id: str
    #: Our user.
    user_id: str | None = None
    #: The wearable's maker as Terra writes it, for example GARMIN.
    provider: str | None = None
    #: The id of ours that Terra echoes.
    reference_id: str | None = None
    #: Granted scopes, comma separated.
    scopes: str | None = None
    #: False once the user deauthorized, revoked access or was given a new connection.
    active: bool | None = None


class DailySummary(msgspec.Struct):
    """A user's day as one wearable saw it. Topic daily-summary."""

    #: Our user.
    user_id: str
    #: The wearable's maker, lower case, for example garmin.
    source: str
    #: The day, YYYY-MM-DD, in the record's own time zone.
    datetime: str
    #: Steps walked.
    steps: int | None = None
    #: Beats per minute; from sleep where there is one, else from the day.
    resting_heart_rate: float | None = None
    #: RMSSD in milliseconds; from sleep where there is one, else from the day.
    heart_rate_variability: float | None = None
    #: Minutes of low, moderate and vigorous activity together.
    active_zone_minutes: float | None = None
    #: Minutes of low intensity.
    fatburn_active_zone_minutes: float | None = None
    #: Minutes of moderate intensity.
    cardio_active_zone_minutes: float | None = None
    #: Minutes of vigorous intensity.
    peak_active_zone_minutes: float | None = None
    #: Average stress level, 0 to 100.
    stress_management_score: float | None = None
    #: Strain (Whoop: 0 to 21).
    strain: float | None = None
    #: Recovery, 0 to 100; Whoop's readiness where recovery is missing.
    recovery_score: float | None = None
    #: Sleep score, 0 to 100.
    sleep_score: float | None = None
    #: Minutes asleep, of the main sleep that ended on this day.
    sleep_minutes: float | None = None
    #: Start of that sleep, RFC 3339 with the record's own offset.
    bed_time: str | None = None
    #: End of that sleep, RFC 3339 with the record's own offset.
    wake_up_time: str | None = None
    #: Minutes of deep sleep.
    deep_sleep_minutes: float | None = None
    #: Minutes of REM sleep.
    rem_sleep_minutes: float | None = None
    #: Minutes of light sleep.
    light_sleep_minutes: float | None = None
    #: Minutes awake during that sleep.
    awake_minutes: float | None = None
    #: Deep sleep as a percentage of asleep and awake time together.
    deep_sleep_percent: float | None = None
    #: REM sleep as a percentage of asleep and awake time together.
    rem_sleep_percent: float | None = None
    #: Light sleep as a percentage of asleep and awake time together.
    light_sleep_percent: float | None = None
    #: Awake time as a percentage of asleep and awake time together.
    awake_percent: float | None = None
    #: Average blood oxygen saturation, percent.
    spo2: float | None = None
    #: Average breaths per minute.
    respiratory_rate: float | None = None
    #: Deviation from the wearer's baseline, degrees Celsius.
    skin_temperature: float | None = None


class SleepSession(msgspec.Struct):
    """One sleep, whole. Topic sleep-sessions."""

    #: Our user.
    user_id: str
    #: The wearable's maker, lower case, for example garmin.
    source: str
    #: Start of the sleep, RFC 3339 in UTC.
    start_time: str
    #: End of the sleep, RFC 3339 in UTC.
    end_time: str | None = None
    #: True for a nap; naps stay out of daily_summary.
    is_nap: bool | None = None
    #: The record as Terra sent it, JSON text byte for byte.
    raw: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name and its Python type (str, int, float or bool)."""

    name: str
    type: type


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A projection table: a compacted topic, and a Postgres table of the same columns.

    A table is declared once: it equals itself and no other.
    """

    name: str
    #: The stem of its Avro file.
    schema: str
    kind: type[msgspec.Struct]
    topic: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    index: dict[str, int]
    key_names: tuple[str, ...]
    column_names: tuple[str, ...]
    #: All that a record of the table holds, in order.
    field_names: tuple[str, ...]

    def row_key(self, key: tuple[str, ...]) -> bytes:
        """The record key of a row: a JSON array, so that no key can imitate another."""
        return msgspec.json.encode(key)


def _table(name: str, schema: str, kind: type[msgspec.Struct], topic: str) -> Table:
    fields = msgspec.structs.fields(kind)
    key = tuple(Column(name=field.name, type=field.type) for field in fields if field.required)
    columns = tuple(
        Column(name=field.name, type=next(t for t in get_args(field.type) if t is not NoneType))
        for field in fields[len(key) :]
    )
    return Table(
        name=name,
        schema=schema,
        kind=kind,
        topic=topic,
        key=key,
        columns=columns,
        index={column.name: position for position, column in enumerate(columns)},
        key_names=tuple(column.name for column in key),
        column_names=tuple(column.name for column in columns),
        field_names=(*kind.__struct_fields__, *Stamps.__struct_fields__),
    )


CONNECTIONS: Final = _table("terra_connections", "terra_connection", TerraConnection, "connections")
DAILY_SUMMARY: Final = _table("daily_summary", "daily_summary", DailySummary, "daily-summary")
SLEEP_SESSIONS: Final = _table("sleep_sessions", "sleep_session", SleepSession, "sleep-sessions")

TABLES: Final = (CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS)
TABLE_BY_TOPIC: Final = {table.topic: table for table in TABLES}
