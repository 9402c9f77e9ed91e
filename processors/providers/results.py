"""Results of normalizing a delivery: rows with ranks, effects, and when its user was seen."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import msgspec

from headwater.processors.columns import HOUR_MS, RowUpdate, Update
from headwater.processors.input_texts import rfc3339
from headwater.schemas.history import SendEvent, StartRun
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import USERS

#: Resting heart rate and variability during sleep outrank those of the day, in any order.
SLEEP_RANK: Final = 1

# A lab report may be returned before it is recorded that it was sent: the later stage wins.
#: An upload that was submitted to Terra outranks one that is only stored here.
SUBMITTED_RANK: Final = 1


# -- results

#: Reason of a delivery without any usable record.
NO_USABLE_RECORD: Final = "no_usable_record"


#: Reasons why the value of a field is dropped, while the rest of its record is stored.
NOT_MEASURED: Final = "not_measured"
OUT_OF_RANGE: Final = "out_of_range"
WRONG_TYPE: Final = "wrong_type"

#: Fields that an outcome names; the number of all of them is recorded as well.
_FIELDS_NAMED: Final = 50
#: Characters of the details of rejected records; beyond them, records are only listed by number.
_DETAILS_CHARS: Final = 32_000
_NUMBERED: Final = re.compile(r"(data(?:\[\d+\])?\.results|data)\[(\d+)\]")


class Rejected(msgspec.Struct, frozen=True):
    """A record of a delivery that is rejected; `detail` has its position."""

    code: str
    detail: str


class DroppedField(msgspec.Struct, frozen=True):
    """A value of a delivery that is not stored: its dotted path, and one of the reasons above."""

    path: str
    reason: str


class Effect(msgspec.Struct, frozen=True):
    """Effect of a delivery on a workflow instance: starts it, or sends it an event.

    The event id and the sender of a SendEvent stay empty.

    Attributes:
        name: Distinguishes effects of one delivery; of two with the same name the first counts.
    """

    name: str
    workflow: str
    instance_id: str
    command: StartRun | SendEvent


class Normalized(msgspec.Struct, frozen=True):
    """A normalized delivery: column values of rows, and effects on workflows.

    Attributes:
        rejected: Records that set no columns.
        dropped: Values that set no columns, in records that do.
    """

    updates: tuple[Update, ...]
    rejected: tuple[Rejected, ...] = ()
    effects: tuple[Effect, ...] = ()
    dropped: tuple[DroppedField, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A delivery that is understood but has nothing, or little, to store (`updates`)."""

    reason: str
    updates: tuple[Update, ...] = ()
    dropped: tuple[DroppedField, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """A delivery that cannot be stored and becomes a dead letter.

    Attributes:
        rejected: Number of its records, if they are the reason.
    """

    code: str
    detail: str
    rejected: int = 0
    dropped: tuple[DroppedField, ...] = ()


NormalizeResult: TypeAlias = Normalized | Skipped | Failed


def normalized(
    updates: Sequence[Update], rejected: Sequence[Rejected], dropped: Sequence[DroppedField] = ()
) -> Normalized | Failed:
    """Return the result of a delivery of records: Failed if all of them were rejected."""
    if rejected and not updates:
        return Failed(NO_USABLE_RECORD, details_of(rejected), len(rejected), tuple(dropped))
    return Normalized(tuple(updates), tuple(rejected), dropped=tuple(dropped))


def updates_of(result: NormalizeResult) -> tuple[Update, ...]:
    """Return the row updates of a result."""
    return () if isinstance(result, Failed) else result.updates


def details_of(rejected: Sequence[Rejected]) -> str:
    """Return a text with one line per rejected record, or per code if it would be too long."""
    lines = "\n".join(f"{record.code}: {record.detail}" for record in rejected)
    if len(lines) <= _DETAILS_CHARS:
        return lines
    numbers: dict[tuple[str, str], list[int]] = {}
    for record in rejected:
        match = _NUMBERED.match(record.detail)
        path, number = match.groups() if match else ("data", "0")
        numbers.setdefault((record.code, path), []).append(int(number))
    return "\n".join(
        f"{code}: {_ranges(path, of_code)}" for (code, path), of_code in numbers.items()
    )


def _ranges(path: str, numbers: Iterable[int]) -> str:
    """Return numbers of records as ranges: data[0-3], data[7]."""
    ordered = sorted(set(numbers))
    breaks = [index for index, (one, next_) in enumerate(pairwise(ordered), 1) if next_ > one + 1]
    groups = [ordered[start:end] for start, end in pairwise((0, *breaks, len(ordered)))]
    return ", ".join(
        f"{path}[{group[0]}]" if len(group) == 1 else f"{path}[{group[0]}-{group[-1]}]"
        for group in groups
    )


def fields_text(dropped: Sequence[DroppedField]) -> str:
    """Return dropped fields as outcomes store them: a JSON array of path, reason and count."""
    counts = Counter(dropped).most_common(_FIELDS_NAMED)
    return msgspec.json.encode(
        [{"path": one.path, "reason": one.reason, "count": count} for one, count in counts]
    ).decode()


# -- rows of `users`


def first_seen(user_id: str, events: Sequence[WebhookAdmitted]) -> tuple[RowUpdate, ...]:
    """Return the updates of a user's row by one or more of the user's deliveries.

    Deliveries are ordered by their stamps, so the first and the last of a set do not depend on the
    order of reading. Of a batch two suffice: its first one, and the first one of its last hour. A
    user's row changes once an hour, not with every delivery: with many users it would otherwise be
    a third of all records.
    """
    first = last = events[0]
    if len(events) > 1:
        hour = max(event.sent_at_ms for event in events) // HOUR_MS
        first = min(events, key=_order)
        in_hour = (event for event in events if event.sent_at_ms // HOUR_MS == hour)
        last = min(in_hour, key=_order)
    key, created = (user_id,), {"created_at": _timestamp(first.sent_at_ms)}
    seen = {"last_seen_at": _timestamp(last.sent_at_ms)}
    if first is last:
        return (RowUpdate(USERS, key, created | seen, first.stamp()),)
    return (
        RowUpdate(USERS, key, created, first.stamp()),
        RowUpdate(USERS, key, seen, last.stamp()),
    )


#: Cached, because senders sign whole seconds, which many deliveries share.
_timestamp: Final = lru_cache(maxsize=4_096)(rfc3339)


def _order(event: WebhookAdmitted) -> tuple[int, int, str]:
    return event.sent_at_ms, event.updated_at_ms, event.event_id
