"""Common parts of normalizers: the source, records with a day or a period, rows.

A record with an impossible date is rejected: it would create a row that no query expects. A number
outside its limits, or of another type, is dropped and named, and the rest of its record is stored.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from headwater.processors.input_texts import MAX_ID_CHARS, read_date, text_problem, unix_ms
from headwater.processors.providers.results import (
    OUT_OF_RANGE,
    WRONG_TYPE,
    DroppedField,
    Failed,
    Rejected,
    Skipped,
)
from headwater.schemas.providers.terra import Dated, Delivery, Metadata, Unreadable, User
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Value

K = TypeVar("K")
R = TypeVar("R")
F = TypeVar("F")

#: No wearable that Terra supports is older; an earlier date comes from a clock that was never set.
EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)

#: A day may end tomorrow, in a time zone 14 hours ahead; two days allow for inaccurate clocks.
AHEAD: Final = timedelta(days=2)

_EARLIEST_MS: Final = unix_ms(EARLIEST)
_AHEAD_MS: Final = AHEAD // timedelta(milliseconds=1)
_EXCERPT_CHARS: Final = 40
#: Cached timestamps: many records begin at the midnight of a few days and offsets.
_TIMESTAMPS_CACHED: Final = 4_096
#: A timestamp begins with its day, YYYY-MM-DD.
_DAY_CHARS: Final = 10
_MINUTE: Final = timedelta(minutes=1)


def read_source(user: User) -> str | Failed:
    """Return the source column: the wearable's maker in lower case."""
    if not user.provider:
        return Failed(
            "missing_provider", "user.provider: expected the wearable's maker, found none"
        )
    problem = text_problem("user.provider", user.provider)
    return Failed("malformed_id", problem) if problem is not None else user.provider.lower()


class Records(NamedTuple, Generic[F]):
    """The parsed records of a delivery."""

    source: str
    parsed: list[F]
    rejected: list[Rejected]
    dropped: list[DroppedField]


def latest_of(event: WebhookAdmitted) -> int:
    """Return the latest time allowed in a delivery's records, in Unix milliseconds."""
    return event.received_at_ms + _AHEAD_MS


@lru_cache(_TIMESTAMPS_CACHED)
def _timestamp(text: str) -> tuple[datetime, int] | None:
    """Parse a timestamp, as a datetime with its own offset and as Unix milliseconds.

    Python compares datetimes of different offsets ten times as slowly as numbers.
    """
    moment = read_date(text)
    return None if moment is None else (moment, unix_ms(moment))


def utc_ms(moment: datetime) -> str:
    """Format a time as in keys: RFC 3339 in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def read_records(
    event: WebhookAdmitted,
    delivery: Delivery[R],
    read: Callable[[R, int, int, list[DroppedField]], F | Rejected],
) -> Records[F] | Skipped | Failed:
    """Parse a delivery record by record, so that an invalid record does not affect others.

    Args:
        event: The delivery.
        delivery: Its payload.
        read: Takes a record, its number, the latest allowed time in Unix milliseconds, and a list
            that receives values which are dropped.
    """
    if not delivery.data:
        return Skipped("empty_data")
    source = read_source(delivery.user)
    if isinstance(source, Failed):
        return source
    latest_ms = latest_of(event)
    # Not `Records[F](…)`, which takes a microsecond longer.
    dropped = [DroppedField(path, WRONG_TYPE) for path in delivery.wrong]
    records: Records[F] = Records(source, [], [], dropped)
    for number, record in enumerate(delivery.data):
        if isinstance(record, Unreadable):
            detail = f"data[{number}]: {record.detail}"
            records.rejected.append(Rejected("malformed_record", detail))
            continue
        parsed = read(record, number, latest_ms, dropped)
        if isinstance(parsed, Rejected):
            records.rejected.append(parsed)
        else:
            records.parsed.append(parsed)
    return records


def nothing_left(number: int, dropped: list[DroppedField]) -> Rejected | None:
    """Return the rejection of record `number`, which has no values, if it had some."""
    prefix = f"data[{number}]."
    lost = [field for field in dropped if field.path.startswith(prefix)]
    if not lost:
        return None
    named = ", ".join(f"{field.path} ({field.reason})" for field in lost)
    return Rejected("no_usable_value", f"data[{number}]: expected a usable value, found {named}")


class Day(NamedTuple):
    """A day, YYYY-MM-DD; `offset_minutes` is the offset of its beginning from UTC, if known."""

    text: str
    offset_minutes: int | None


def read_day(record: Dated, number: int, latest_ms: int) -> Day | Rejected:
    """Return the day of record `number`: that of its start, in its own offset.

    Without a start it is `summary_date`, `date` or `day`, which may be a date or a timestamp.

    Returns:
        The day, or Rejected with bad_date or implausible_date, and the path.
    """
    metadata = record.metadata
    if metadata is not None and metadata.start_time is not None:
        start = read_start(metadata, number, latest_ms)
        if isinstance(start, Rejected):
            return start
        return Day(metadata.start_time[:_DAY_CHARS], offset_minutes(start))
    for field in ("summary_date", "date", "day"):
        text = getattr(record, field)
        if text is not None:
            day = read_day_of(f"data[{number}].{field}", text, EARLIEST, latest_ms)
            return day if isinstance(day, Rejected) else Day(day, None)
    path = f"data[{number}].metadata.start_time"
    day = read_day_of(path, None, EARLIEST, latest_ms)
    return day if isinstance(day, Rejected) else Day(day, None)


def read_day_of(path: str, text: str | None, earliest: datetime, latest_ms: int) -> str | Rejected:
    """Return the day of a date or timestamp, in its own offset.

    Returns:
        The day, or Rejected with bad_date or implausible_date, and the path.
    """
    moment = None if text is None else read_date(text) or read_date(f"{text}T00:00:00Z")
    if moment is None:
        excerpt = "none" if text is None else ascii(text[:_EXCERPT_CHARS])
        return Rejected("bad_date", f"{path}: expected a date, such as 2026-07-01, found {excerpt}")
    if not unix_ms(earliest) <= unix_ms(moment) <= latest_ms:
        return Rejected(
            "implausible_date",
            f"{path}: expected {earliest:%Y} or later and at most {AHEAD.days} days after its "
            f"arrival ({_text_of(latest_ms)}), found {text}",
        )
    return moment.date().isoformat()


def read_start(metadata: Metadata, number: int, latest_ms: int) -> datetime | Rejected:
    """Return the start of record `number`, with its own offset.

    Returns:
        The start, or Rejected with bad_date or implausible_date, and the path.
    """
    return _read("start_time", metadata.start_time, number, latest_ms)


def read_end(
    metadata: Metadata, number: int, latest_ms: int, start: datetime
) -> datetime | Rejected:
    """Return the end of record `number`, with its own offset; not before its start.

    Returns:
        The end, or Rejected with bad_date, implausible_date or end_before_start, and the path.
    """
    end = _read("end_time", metadata.end_time, number, latest_ms)
    if not isinstance(end, Rejected) and end < start:
        return Rejected(
            "end_before_start",
            f"data[{number}].metadata.end_time: expected {metadata.start_time} (start_time) "
            f"or later, found {metadata.end_time}",
        )
    return end


def _read(field: str, text: str | None, number: int, latest_ms: int) -> datetime | Rejected:
    parsed = None if text is None else _timestamp(text)
    if parsed is None:
        excerpt = "none" if text is None else ascii(text[:_EXCERPT_CHARS])
        return Rejected(
            "bad_date",
            f"data[{number}].metadata.{field}: expected RFC 3339, "
            f"such as 2026-07-01T00:00:00+01:00, found {excerpt}",
        )
    moment, at_ms = parsed
    if not _EARLIEST_MS <= at_ms <= latest_ms:
        return Rejected(
            "implausible_date",
            f"data[{number}].metadata.{field}: expected {EARLIEST:%Y} or later and at most "
            f"{AHEAD.days} days after its arrival ({_text_of(latest_ms)}), found {text}",
        )
    return moment


def _text_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def minutes(seconds: float | None) -> float | None:
    """Convert seconds to minutes, rounded to 2 decimals."""
    return None if seconds is None else round(seconds / 60, 2)


def short_text(
    path: str, text: str | None, dropped: list[DroppedField], limit: int = MAX_ID_CHARS
) -> str | None:
    """Return a text that a column can hold, or None; name it if it is too long or unprintable."""
    if text_problem(path, text, limit) is None:
        return text
    dropped.append(DroppedField(path, OUT_OF_RANGE))
    return None


def offset_minutes(moment: datetime) -> int:
    """Return the offset of a time from UTC, in minutes."""
    offset = moment.utcoffset()
    return 0 if offset is None else offset // _MINUTE


def combine(rows: dict[K, dict[str, Value]], key: K, columns: dict[str, Value]) -> None:
    """Merge a record's columns into those of its row; a later value wins, nulls are ignored.

    Rows are merged by stamps only, and two records of one delivery have the same stamp, so a
    delivery must have one value per column.
    """
    current = rows.get(key)
    if current is None:
        rows[key] = columns
    else:
        current.update({name: value for name, value in columns.items() if value is not None})
