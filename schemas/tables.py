"""The projection tables, declared once.

A struct declares the columns. Its fields without a default form the primary key and are text; the
others are last-writer-wins columns, null until a delivery sets them (see `first` and `whole` for
exceptions). Columns are only ever appended: a row refers to their stamps by position.

`table_of` adds what a struct cannot express. Everything else is derived: the topic, the Avro
schema, the Postgres table with its comments, the rows of `/v1/sync` and of a SQLite copy.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from headwater.schemas.records import Stamp
from headwater.schemas.row_states import RowState, Stamps

Value: TypeAlias = str | int | float | bool | None


class Row(msgspec.Struct, frozen=True):
    """A row of a projection table.

    Attributes:
        values: One value per column, in the table's order.
        stamps: One stamp per column; a column is unset exactly if value and stamp are None.
        state: What is known besides the columns; None for most rows.
    """

    key: tuple[str, ...]
    values: tuple[Value, ...]
    stamps: tuple[Stamp | None, ...]
    state: RowState | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether only its owner knows it: it was deleted, or its parts set no columns."""
        return self.state is not None and not any(self.stamps)


@dataclass(frozen=True, slots=True)
class Sql:
    """The Postgres type of a column, if its Python type does not determine it."""

    type: str


#: A date, YYYY-MM-DD.
Day: TypeAlias = Annotated[str, Sql("date")]
#: A timestamp, RFC 3339.
Moment: TypeAlias = Annotated[str, Sql("timestamptz")]
#: The text of a JSON value, byte for byte.
JsonText: TypeAlias = Annotated[str, Sql("json")]

_DATED: Final = frozenset({"date", "timestamptz"})

_SQL_TYPES: Final = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}


class TerraConnection(msgspec.Struct):
    """A user's link to a wearable account."""

    #: Terra's id of the connection.
    terra_user_id: str
    #: User id.
    user_id: str | None = None
    #: The wearable's maker as Terra writes it, for example GARMIN.
    provider: str | None = None
    #: The user id that Terra echoes.
    reference_id: str | None = None
    #: Granted scopes, comma separated.
    scopes: str | None = None
    #: False once the user deauthorized, revoked access or received a new connection.
    active: bool | None = None
    #: When the latest delivery that closed it was first sent; kept when it is opened again.
    last_deactivated_at: Moment | None = None


class DailySummary(msgspec.Struct):
    """A user's day as recorded by one wearable."""

    #: User id.
    user_id: str
    #: The wearable's maker, lower case, for example garmin.
    source: str
    #: The day, YYYY-MM-DD, in the record's own time zone.
    datetime: Day
    #: Steps walked.
    steps: int | None = None
    #: Beats per minute; of the main sleep that ended on this day if it has one, else of the day.
    resting_heart_rate: float | None = None
    #: RMSSD in milliseconds; of the main sleep if it has one, else of the day.
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
    #: Recovery, 0 to 100, of the main sleep, else of the day; Whoop's readiness if it has none.
    recovery_score: float | None = None
    #: Sleep score, 0 to 100, of the main sleep; of the day if no sleep is known.
    sleep_score: float | None = None
    #: Minutes asleep, of the main sleep: the longest that ended on this day and is not a nap.
    sleep_minutes: float | None = None
    #: Start of that sleep; local time is utc_offset_minutes later.
    bed_time: Moment | None = None
    #: End of that sleep; local time is utc_offset_minutes later.
    wake_up_time: Moment | None = None
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
    #: Offset from UTC in minutes: at the end of the main sleep, else at the beginning of the day.
    utc_offset_minutes: int | None = None


class SleepSession(msgspec.Struct):
    """One sleep; a later version of a sleep replaces it."""

    #: User id.
    user_id: str
    #: The wearable's maker, lower case, for example garmin.
    source: str
    #: Start of the sleep, RFC 3339 in UTC.
    start_time: Moment
    #: End of the sleep, RFC 3339 in UTC.
    end_time: Moment | None = None
    #: True for a nap; naps are not part of daily_summary.
    is_nap: bool | None = None
    #: The record as Terra sent it, JSON text byte for byte.
    raw: JsonText | None = None
    #: Terra's id of the sleep, if it has one; a later sleep with the same id replaces it.
    summary_id: str | None = None
    #: True for the main sleep of the day on which it ended, which daily_summary describes.
    is_main: bool | None = None
    #: Offset of local time from UTC at its end, in minutes.
    utc_offset_minutes: int | None = None


class Activity(msgspec.Struct):
    """One workout; a later version of a workout replaces it."""

    #: User id.
    user_id: str
    #: The wearable's maker, lower case, for example garmin.
    source: str
    #: Start of the workout, RFC 3339 in UTC.
    start_time: Moment
    #: Terra's id of the workout; empty if it has none. A later workout of the same id replaces it.
    summary_id: str
    #: End of the workout, RFC 3339 in UTC.
    end_time: Moment | None = None
    #: Kind of the workout, as Terra's number.
    type: int | None = None
    #: The wearable's name of the workout.
    name: str | None = None
    #: Seconds from start to end.
    duration_seconds: float | None = None
    #: Total kilocalories burned.
    calories: float | None = None
    #: Distance in meters.
    distance_meters: float | None = None
    #: Steps walked or run.
    steps: int | None = None
    #: Average beats per minute.
    avg_heart_rate: float | None = None
    #: Highest beats per minute.
    max_heart_rate: float | None = None
    #: Strain (Whoop: 0 to 21).
    strain: float | None = None
    #: The record as Terra sent it, JSON text byte for byte.
    raw: JsonText | None = None
    #: Offset of local time from UTC at its start, in minutes.
    utc_offset_minutes: int | None = None


class Biomarker(msgspec.Struct):
    """One measurement of a user's body or blood on one day, or the mean of several."""

    #: User id.
    user_id: str
    #: Where it was measured: terra_lab, or a wearable's maker with _body, such as withings_body.
    source: str
    #: The day, YYYY-MM-DD: a lab's collection date, or the day in the body's own time zone.
    date: Day
    #: What was measured, for example glucose; as the lab sent it if it has no canonical code.
    code: str
    #: The number: weight and body fat are the latest of the day, blood pressure is its mean.
    value: float | None = None
    #: The lab's text if it is not a number, for example <0.5.
    value_text: str | None = None
    #: The unit, as sent.
    unit: str | None = None
    #: optimal, borderline or out_of_range; null if the lab's classification is none of these.
    status: str | None = None
    #: The lab's own classification, as sent.
    classification: str | None = None
    #: Lower end of the lab's reference range.
    reference_low: float | None = None
    #: Upper end of the lab's reference range.
    reference_high: float | None = None
    #: Name in the report, as sent.
    name: str | None = None
    #: The upload of the report, lab_uploads.id.
    upload_id: str | None = None
    #: Number of averaged samples of the day; null for a single value.
    samples: int | None = None


class LabUpload(msgspec.Struct):
    """A lab report that a user uploaded, and its status at Terra."""

    #: Id of the upload.
    id: str
    #: User id.
    user_id: str | None = None
    #: Key of the file in blob storage.
    storage_key: str | None = None
    #: The file's name, as it was uploaded.
    original_name: str | None = None
    #: The MIME type of the file.
    content_type: str | None = None
    #: Bytes of the file.
    size: int | None = None
    #: pending, submitted, parsed, or failed:<HTTP status, network, no_report or Terra's code>.
    terra_status: str | None = None
    #: Terra's id of the upload, which its report contains.
    terra_upload_id: str | None = None
    #: Terra's response to the submitted file.
    terra_response: str | None = None
    #: When it was uploaded.
    created_at: Moment | None = None


class TerraLabUpload(msgspec.Struct):
    """The upload of Terra's upload id: Terra's lab reports contain no other reference."""

    #: Terra's id of the upload.
    terra_upload_id: str
    #: User id.
    user_id: str | None = None
    #: Id of the upload, lab_uploads.id.
    upload_id: str | None = None


class User(msgspec.Struct):
    """A user whose deliveries filled rows."""

    #: User id.
    id: str
    #: Time of the user's earliest delivery.
    created_at: Moment | None = None
    #: Time of the user's latest delivery, to the hour: that of the first one in the latest hour.
    last_seen_at: Moment | None = None


class Owner(StrEnum):
    """Owner of a table's rows, by which its topic is partitioned."""

    USER = "user"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name, its Python type (str, int, float or bool), and its type in Postgres."""

    name: str
    type: type
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedColumn:
    """A column that Postgres computes from the others, and that no record contains."""

    name: str
    sql: str
    expression: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumn:
    """A Postgres column: when the delivery that gave `column` this value was sent, or null."""

    name: str
    column: str
    value: Value
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A projection table: a compacted topic, and a Postgres table of the same columns.

    Tables are compared by identity.
    """

    name: str
    #: The stem of its Avro file.
    schema: str
    kind: type[msgspec.Struct]
    topic: str
    owner: Owner
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    generated: tuple[GeneratedColumn, ...]
    times: tuple[TimeColumn, ...]
    #: Columns that keep their first value instead of the last.
    first: frozenset[str]
    #: Columns of which the first delivery of the latest hour counts: they change once an hour.
    hourly: frozenset[str]
    #: Whether a row is one value: all of it is from one delivery, including nulls.
    whole: bool
    #: Positions of columns of the key: of rows with the same, not empty values the latest stays.
    unique: tuple[int, ...]
    #: Columns, including those of the key, that Postgres stores as dates or timestamps.
    dated: frozenset[str]
    #: Position and type of every column, by name.
    index: dict[str, int]
    types: dict[str, type]
    key_names: tuple[str, ...]
    column_names: tuple[str, ...]
    #: All fields of a record of the table, in order.
    field_names: tuple[str, ...]

    def row_key(self, key: tuple[str, ...]) -> bytes:
        """Return the record key of a row: a JSON array, so that different keys never collide."""
        return msgspec.json.encode(key)


def begins_with_user(table: Table) -> bool:
    """Return whether the first column of a table's key is the user."""
    first = table.key_names[0]
    is_user = any(
        column.name == "user_id" and column.expression == first for column in table.generated
    )
    return first == "user_id" or is_user


def table_of(  # noqa: PLR0913 (providers declare tables with it, a line a property)
    kind: type[msgspec.Struct],
    *,
    name: str,
    topic: str,
    owner: Owner = Owner.USER,
    generated: tuple[GeneratedColumn, ...] = (),
    times: tuple[TimeColumn, ...] = (),
    first: tuple[str, ...] = (),
    hourly: tuple[str, ...] = (),
    whole: bool = False,
    unique: tuple[str, ...] = (),
) -> Table:
    """Declare a table; its Avro schema has the name of the struct."""
    fields = msgspec.structs.fields(kind)
    hints = get_type_hints(kind, include_extras=True)
    columns = [_column(field.name, hints[field.name]) for field in fields]
    width = sum(field.required for field in fields)
    key, values = tuple(columns[:width]), tuple(columns[width:])
    return Table(
        name=name,
        schema=re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower(),
        kind=kind,
        topic=topic,
        owner=owner,
        key=key,
        columns=values,
        generated=generated,
        times=times,
        first=frozenset(first),
        hourly=frozenset(hourly),
        whole=whole,
        unique=tuple(key.index(column) for column in key if column.name in unique),
        dated=frozenset(column.name for column in columns if column.sql in _DATED),
        index={column.name: position for position, column in enumerate(values)},
        types={column.name: column.type for column in values},
        key_names=tuple(column.name for column in key),
        column_names=tuple(column.name for column in values),
        field_names=(*kind.__struct_fields__, *Stamps.__struct_fields__),
    )


def _column(name: str, annotation: Any) -> Column:  # noqa: ANN401, any annotation
    members = [annotation] if get_origin(annotation) is Annotated else get_args(annotation)
    plain = next((member for member in members if member is not NoneType), annotation)
    if get_origin(plain) is Annotated:
        kind, sql = get_args(plain)
        return Column(name=name, type=kind, sql=sql.type)
    return Column(name=name, type=plain, sql=_SQL_TYPES[plain])


CONNECTIONS: Final = table_of(
    TerraConnection,
    name="terra_connections",
    topic="connections",
    owner=Owner.SUBJECT,
    generated=(
        GeneratedColumn(
            name="id",
            sql="uuid",
            expression="md5(terra_user_id)::uuid",
            doc="Id of the row, derived from terra_user_id.",
        ),
    ),
    times=(
        TimeColumn(
            name="deactivated_at",
            column="active",
            value=False,
            doc="When active became false: when the delivery was first sent. Null while active.",
        ),
    ),
)
DAILY_SUMMARY: Final = table_of(DailySummary, name="daily_summary", topic="daily-summary")
# Columns of two deliveries in one of these rows would describe two things, or mix units.
SLEEP_SESSIONS: Final = table_of(
    SleepSession, name="sleep_sessions", topic="sleep-sessions", whole=True
)
ACTIVITIES: Final = table_of(
    Activity,
    name="activities",
    topic="activities",
    whole=True,
    unique=("user_id", "source", "summary_id"),
)
BIOMARKERS: Final = table_of(Biomarker, name="biomarkers_raw", topic="biomarkers", whole=True)
LAB_UPLOADS: Final = table_of(
    LabUpload,
    name="lab_uploads",
    topic="lab-uploads",
    first=("created_at",),
    times=(
        TimeColumn(
            name="parsed_at",
            column="terra_status",
            value="parsed",
            doc="When the report arrived: the time of its delivery. Null until then.",
        ),
    ),
)
TERRA_LAB_UPLOADS: Final = table_of(
    TerraLabUpload, name="terra_lab_uploads", topic="terra-lab-uploads", owner=Owner.SUBJECT
)
USERS: Final = table_of(
    User,
    name="users",
    topic="users",
    first=("created_at",),
    hourly=("last_seen_at",),
    generated=(
        GeneratedColumn(
            name="user_id",
            sql="text",
            expression="id",
            doc="The same as id, under the name that it has in all other tables.",
        ),
    ),
)

#: Headwater's own tables; `installed_tables` adds those of packages.
TABLES: Final = (
    CONNECTIONS,
    DAILY_SUMMARY,
    SLEEP_SESSIONS,
    ACTIVITIES,
    BIOMARKERS,
    LAB_UPLOADS,
    TERRA_LAB_UPLOADS,
    USERS,
)
