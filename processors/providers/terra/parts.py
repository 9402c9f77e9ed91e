"""What deliveries of records have in common: a source, records with a day or a span of time, rows.

A record with a date that cannot be true is rejected, like one with a number outside its limits: it
would put a row where nobody looks for it.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import read_date, unix_ms
from headwater.processors.providers.results import (
    Failed,
    NormalizeResult,
    Rejected,
    Skipped,
    normalized,
)
from headwater.processors.texts import text_problem
from headwater.schemas.providers.terra import Dated, Delivery, Metadata, Unreadable, User
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Table, Value

K = TypeVar("K")
R = TypeVar("R")
F = TypeVar("F")

#: No wearable that Terra reads is older; a date before it is a clock that was never set.
EARLIEST: Final = datetime(1990, 1, 1, tzinfo=UTC)

#: A day may end tomorrow, in a time zone 14 hours ahead; two days allow for clocks that are wrong.
AHEAD: Final = timedelta(days=2)

_EARLIEST_MS: Final = unix_ms(EARLIEST)
_AHEAD_MS: Final = AHEAD // timedelta(milliseconds=1)
_GLIMPSE_CHARS: Final = 40
#: Texts whose moment is kept: many records begin at the midnight of a few days and offsets.
_MOMENTS_KEPT: Final = 4_096
#: A moment begins with its day, YYYY-MM-DD.
_DAY_CHARS: Final = 10


def read_source(user: User) -> str | Failed:
    """The source column: the wearable's maker in lower case."""
    if not user.provider:
        return Failed(
            "missing_provider", "user.provider: expected the wearable's maker, found none"
        )
    found = text_problem("user.provider", user.provider)
    return Failed("malformed_id", found) if found is not None else user.provider.lower()


class Records(NamedTuple, Generic[F]):
    """What was read of the records of a delivery."""

    source: str
    found: list[F]
    rejected: list[Rejected]


def latest_of(event: WebhookAdmitted) -> int:
    """The last moment that a record of a delivery may speak of, in Unix milliseconds."""
    return event.received_at_ms + _AHEAD_MS


@lru_cache(_MOMENTS_KEPT)
def _moment(text: str) -> tuple[datetime, int] | None:
    """A moment with its own offset, and as Unix milliseconds; None if it is none.

    Python compares moments of unlike offsets ten times as slowly as numbers.
    """
    moment = read_date(text)
    return None if moment is None else (moment, unix_ms(moment))


def utc_ms(moment: datetime) -> str:
    """A moment as a key has it: RFC 3339 in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def read_records(
    event: WebhookAdmitted,
    delivery: Delivery[R],
    read: Callable[[R, int, int], F | Rejected],
) -> Records[F] | Skipped | Failed:
    """Reads a delivery record by record, so that one which cannot be true harms no other.

    Shape:  `read` is given a record, its number, and the last moment that it may speak of, in Unix
            milliseconds.
    """
    if not delivery.data:
        return Skipped("empty_data")
    source = read_source(delivery.user)
    if isinstance(source, Failed):
        return source
    latest_ms = latest_of(event)
    # Not `Records[F](…)`, which costs a microsecond more.
    records: Records[F] = Records(source, [], [])
    for number, record in enumerate(delivery.data):
        if isinstance(record, Unreadable):
            detail = f"data[{number}]: {record.detail}"
            records.rejected.append(Rejected("malformed_record", detail))
            continue
        found = read(record, number, latest_ms)
        if isinstance(found, Rejected):
            records.rejected.append(found)
        else:
            records.found.append(found)
    return records


def rows_of_records(
    table: Table,
    event: WebhookAdmitted,
    user_id: str,
    delivery: Delivery[R],
    read: Callable[[R, int, int], tuple[str, dict[str, Value]] | Rejected],
) -> NormalizeResult:
    """Makes rows of (user, source, key), where each record says one key and columns of it.

    Shape:  `read` as in `read_records`; of records of one key the later one's columns stay.
    """
    records = read_records(event, delivery, read)
    if not isinstance(records, Records):
        return records
    rows: dict[str, dict[str, Value]] = {}
    for key, columns in records.found:
        combine(rows, key, columns)
    stamp = event.stamp()
    updates = [
        RowUpdate(table, (user_id, records.source, key), columns, stamp)
        for key, columns in rows.items()
    ]
    return normalized(updates, records.rejected)


def read_day(record: Dated, number: int, latest_ms: int) -> str | Rejected:
    """The day of record `number`, YYYY-MM-DD: that of its start, in its own offset.

    Shape:  without a start it is `summary_date`, `date` or `day`, a date or a moment.
    Errors: Rejected with bad_date, implausible_date or end_before_start, and the path.
    """
    metadata = record.metadata
    if metadata is not None and metadata.start_time is not None:
        start = read_start(metadata, number, latest_ms)
        if isinstance(start, Rejected):
            return start
        if metadata.end_time is not None:
            end = read_end(metadata, number, latest_ms, start)
            if isinstance(end, Rejected):
                return end
        return metadata.start_time[:_DAY_CHARS]
    for field in ("summary_date", "date", "day"):
        text = getattr(record, field)
        if text is not None:
            return read_day_of(f"data[{number}].{field}", text, EARLIEST, latest_ms)
    return read_day_of(f"data[{number}].metadata.start_time", None, EARLIEST, latest_ms)


def read_day_of(path: str, text: str | None, earliest: datetime, latest_ms: int) -> str | Rejected:
    """The day that a date or a moment names, in its own offset.

    Errors: Rejected with bad_date or implausible_date, and the path.
    """
    moment = None if text is None else read_date(text) or read_date(f"{text}T00:00:00Z")
    if moment is None:
        found = "none" if text is None else ascii(text[:_GLIMPSE_CHARS])
        return Rejected("bad_date", f"{path}: expected a date, such as 2026-07-01, found {found}")
    if not unix_ms(earliest) <= unix_ms(moment) <= latest_ms:
        return Rejected(
            "implausible_date",
            f"{path}: expected {earliest:%Y} or later and at most {AHEAD.days} days after its "
            f"arrival ({_text_of(latest_ms)}), found {text}",
        )
    return moment.date().isoformat()


def read_start(metadata: Metadata, number: int, latest_ms: int) -> datetime | Rejected:
    """The start of record `number`, with its own offset.

    Errors: Rejected with bad_date or implausible_date, and the path.
    """
    return _read("start_time", metadata.start_time, number, latest_ms)


def read_end(
    metadata: Metadata, number: int, latest_ms: int, start: datetime
) -> datetime | Rejected:
    """The end of record `number`, with its own offset; not before its start.

    Errors: Rejected with bad_date, implausible_date or end_before_start, and the path.
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
    found = None if text is None else _moment(text)
    if found is None:
        glimpse = "none" if text is None else ascii(text[:_GLIMPSE_CHARS])
        return Rejected(
            "bad_date",
            f"data[{number}].metadata.{field}: expected RFC 3339, "
            f"such as 2026-07-01T00:00:00+01:00, found {glimpse}",
        )
    moment, at_ms = found
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
    """Minutes of seconds, to 2 decimals."""
    return None if seconds is None else round(seconds / 60, 2)


def combine(rows: dict[K, dict[str, Value]], key: K, columns: dict[str, Value]) -> None:
    """Adds a record's columns to those of its row; a later value wins, a null says nothing.

    The merge of rows compares stamps only, and two records of one delivery have the same: so one
    delivery must say one thing of a row.
    """
    held = rows.get(key)
    if held is None:
        rows[key] = columns
    else:
        held.update({name: value for name, value in columns.items() if value is not None})
