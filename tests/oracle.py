"""The oracle: what the whole pipeline must come to, as one function of the topic `webhooks`.

No batches, partitions or time: the agents may take any way they like, but when they are done, rows
and outcomes must be these. Written to be read, not to be fast.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from math import fsum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate, Update
from headwater.processors.input_texts import rfc3339
from headwater.processors.providers.envelope import event_id, occurrence_of
from headwater.processors.providers.headwater import HEADWATER
from headwater.processors.providers.provider import NO_USER, DeliveryType, Provider, reroute
from headwater.processors.providers.results import Failed, Normalized, Skipped
from headwater.processors.providers.terra.auth import CLOSING_TYPES, OPENING_TYPES
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import Stamp, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import (
    ACTIVITIES,
    BIOMARKERS,
    CONNECTIONS,
    DAILY_SUMMARY,
    LAB_UPLOADS,
    SLEEP_SESSIONS,
    TABLES,
    TERRA_LAB_UPLOADS,
    USERS,
    Row,
    Table,
)

#: Partition and offset in the topic `webhooks`, and the delivery found there.
Delivery: TypeAlias = tuple[int, int, WebhookReceived]
#: Rows by key.
Rows: TypeAlias = dict[tuple[str, ...], Row]
#: Status and reason, as in `OutcomeRecorded`.
Outcome: TypeAlias = tuple[str, str]

_PROVIDERS: Final[dict[str, Provider]] = {"terra": TERRA, "headwater": HEADWATER}
#: The tables in which users are looked up.
_LOOKUPS: Final = (CONNECTIONS, TERRA_LAB_UPLOADS)


class Folded(msgspec.Struct, frozen=True):
    """What the pipeline came to.

    Shape:  rows by table name and key, every table named; outcomes by event id.
    """

    rows: dict[str, Rows]
    outcomes: dict[str, Outcome]


def fold(deliveries: Iterable[Delivery], *, user_prefix: str) -> Folded:
    """Folds the topic `webhooks` into rows and outcomes.

    Shape:  deliveries in any order; partition and offset, not the order, say which of several with
            one event id came first and counts. A subject is taken to belong to one user: where it
            changes hands, deliveries in between belong to whoever had it when they were resolved,
            which no fold can know.
    """
    admitted = [_admit(delivery) for delivery in _first_of_each(deliveries)]
    known = _looked_up(admitted, user_prefix)
    outcomes: dict[str, Outcome] = {}
    updates: list[Update] = []
    for event in admitted:
        outcomes[event.event_id], result = _outcome(event, known, user_prefix)
        updates += result
    return Folded({table.name: {} for table in TABLES} | rows_of(updates), outcomes)


_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000


def rows_of(updates: Iterable[Update]) -> dict[str, Rows]:
    """The rows that updates come to: for each column, the greatest stamp of those that set it.

    Shape:  rows by the name of the table and key. The least stamp, where the first value stays,
            and that of the latest hour in `hourly` columns; one stamp for all columns, where a row
            is one value. Then what follows from several deliveries together: nights, workouts that
            replace others, means.
    """
    given = [update for update in updates if isinstance(update, RowUpdate)]
    of_row: dict[tuple[str, tuple[str, ...]], list[RowUpdate]] = defaultdict(list)
    for update in given:
        of_row[update.table.name, update.key].append(update)
    rows: dict[str, Rows] = defaultdict(dict)
    for (name, key), result in of_row.items():
        columns = _columns(result)
        if columns is not None:
            rows[name][key] = columns
    _nights(given, rows)
    _means(given, rows)
    _failures(given, rows[LAB_UPLOADS.name])
    _workouts(rows[ACTIVITIES.name])
    return {name: found for name, found in rows.items() if found}


def _columns(result: list[RowUpdate]) -> Row | None:
    """The row of the columns that updates set themselves."""
    table = result[0].table
    result = [item for item in result if item.values or not item.parts]
    winners = {}
    for column in table.column_names:
        setting = [item for item in result if table.whole or item.values.get(column) is not None]
        if column in table.hourly and setting:
            latest = max(item.stamp.sent_at_ms // _HOUR_MS for item in setting)
            setting = [item for item in setting if item.stamp.sent_at_ms // _HOUR_MS == latest]
        best = min if column in table.first | table.hourly else max
        winner = best(setting, key=lambda item: _order(item.stamp), default=None)
        winners[column] = None if winner is None else (winner.values.get(column), winner.stamp)
    values = tuple(winner and winner[0] for winner in winners.values())
    stamps = tuple(
        None if winner is None or winner[0] is None else winner[1] for winner in winners.values()
    )
    return Row(result[0].key, values, stamps) if result else None


def _with(table: Table, row: Row, values: Mapping[str, Any], stamp: Stamp) -> Row:
    """A row with other values in some columns."""
    cells = {
        name: (value, at)
        for name, value, at in zip(table.column_names, row.values, row.stamps, strict=True)
    }
    cells |= {name: (value, stamp) for name, value in values.items() if value is not None}
    ordered = [cells[name] for name in table.column_names]
    return Row(row.key, tuple(v for v, _ in ordered), tuple(at for _, at in ordered))


class _Night(NamedTuple):
    """A version of a sleep: the day on which it ended, when it was, and what it says."""

    owner: tuple[str, str]
    day: str
    id: str
    values: Mapping[str, Any]
    stamp: Stamp

    @property
    def times(self) -> tuple[int, int, str]:
        start, end, summary_id = self.id.split("/", 2)
        return int(start), int(end), summary_id

    @property
    def version(self) -> tuple[Any, ...]:
        start, end, _ = self.times
        return _order(self.stamp), end - start, self.id

    def is_another_of(self, other: "_Night") -> bool:
        """Whether both are versions of one sleep."""
        if self.owner != other.owner:
            return False
        (start, end, name), (start2, end2, name2) = self.times, other.times
        if name and name == name2:
            return True
        if abs(date.fromisoformat(self.day) - date.fromisoformat(other.day)).days > 1:
            return False
        if start == start2:
            return True
        lengths = end - start, end2 - start2
        shared = min(end, end2) - max(start, start2)
        return max(lengths) <= _DAY_MS and shared * 2 > min(lengths)


def _nights(given: list[RowUpdate], rows: dict[str, Rows]) -> None:
    known: dict[tuple[Any, ...], _Night] = {}
    for update in given:
        for part, values in update.parts.items() if update.table is DAILY_SUMMARY else ():
            user, source, day = update.key
            night = _Night((user, source), day, part, values, update.stamp)
            key = (user, source, day, part)
            if key not in known or known[key].version < night.version:
                known[key] = night
    alive = [
        night
        for night in known.values()
        if not any(
            other is not night and other.is_another_of(night) and other.version > night.version
            for other in known.values()
        )
    ]
    main: dict[tuple[str, str, str], _Night] = {}
    for night in alive:
        if night.values:
            key = (*night.owner, night.day)
            main[key] = max(main.get(key, night), night, key=_preference)
    days, sessions = rows[DAILY_SUMMARY.name], rows[SLEEP_SESSIONS.name]
    nothing = (None,) * len(DAILY_SUMMARY.columns)
    for key, night in main.items():
        day = days.get(key, Row(key, nothing, nothing))
        score = DAILY_SUMMARY.index["sleep_score"]  # Of the night alone, if there is one.
        values, stamps = list(day.values), list(day.stamps)
        values[score] = stamps[score] = None
        day = Row(key, tuple(values), tuple(stamps))
        days[key] = _with(DAILY_SUMMARY, day, night.values, night.stamp)
    kept: Rows = {}
    for night in alive:
        session = sessions.get((*night.owner, rfc3339(night.times[0])))
        stamp = None if session is None else session.stamps[SLEEP_SESSIONS.index["end_time"]]
        if session is not None and stamp is not None and _order(stamp) == _order(night.stamp):
            is_main = {"is_main": main.get((*night.owner, night.day)) is night}
            kept[session.key] = _with(SLEEP_SESSIONS, session, is_main, stamp)
    rows[SLEEP_SESSIONS.name] = kept


def _preference(night: _Night) -> tuple[Any, ...]:
    start, end, _ = night.times
    asleep = night.values.get("sleep_minutes")
    return (end - start) / 60_000 if asleep is None else asleep, _order(night.stamp), night.id


def _means(given: list[RowUpdate], rows: dict[str, Rows]) -> None:
    samples: dict[tuple[str, ...], dict[str, tuple[Mapping[str, Any], Stamp]]] = defaultdict(dict)
    for update in given:
        for part, values in update.parts.items() if update.table is BIOMARKERS else ():
            known = samples[update.key].get(part)
            if known is None or _order(known[1]) < _order(update.stamp):
                samples[update.key][part] = (values, update.stamp)
    nothing = (None,) * len(BIOMARKERS.columns)
    for key, parts in samples.items():
        mean = parts.pop("mean", None)
        stamp = max((at for _, at in parts.values()), key=_order, default=None)
        numbers = [values["value"] for values, _ in parts.values()]
        if stamp is not None:
            unit = next(iter(parts.values()))[0]["unit"]
            values = {"value": fsum(numbers) / len(numbers), "samples": len(numbers), "unit": unit}
        else:
            assert mean is not None
            values, stamp = dict(mean[0]), mean[1]
        rows[BIOMARKERS.name][key] = _with(BIOMARKERS, Row(key, nothing, nothing), values, stamp)


def _failures(given: list[RowUpdate], uploads: Rows) -> None:
    """Failed reports that name only their user are each of the oldest upload that waited then."""
    failures = {
        (_order(update.stamp), part): update
        for update in given
        if update.table is USERS
        for part in update.parts
    }
    status, created, user = (
        LAB_UPLOADS.index[name] for name in ("terra_status", "created_at", "user_id")
    )
    ended: set[tuple[str, ...]] = set()
    for (at, part), update in sorted(failures.items(), key=lambda item: item[0]):
        waiting = []
        for key, row in uploads.items():
            stamp, begun = row.stamps[status], row.stamps[created]
            if row.values[user] != update.key[0] or key in ended or not (stamp and begun):
                continue
            reported = stamp.rank == at[0]
            waits = _order(stamp) > at if reported else row.values[status] == "submitted"
            if waits and begun.sent_at_ms < at[1]:
                waiting.append((str(row.values[created]), key))
        if waiting:
            _, key = min(waiting)
            ended.add(key)
            stamp = uploads[key].stamps[status]
            if stamp and at > _order(stamp):
                failed = {"terra_status": part.partition("/")[2]}
                uploads[key] = _with(LAB_UPLOADS, uploads[key], failed, update.stamp)


def _workouts(rows: Rows) -> None:
    """Of the workouts with one id only the latest stays."""
    latest: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for (user, source, start, name), row in rows.items():
        version = (max(_order(stamp) for stamp in row.stamps if stamp), start)
        latest[user, source, name] = max(latest.get((user, source, name), version), version)
    for (user, source, start, name), row in list(rows.items()):
        version = (max(_order(stamp) for stamp in row.stamps if stamp), start)
        if name and version != latest[user, source, name]:
            del rows[user, source, start, name]


def _order(stamp: Stamp) -> tuple[int, int, int, str]:
    return stamp.rank, stamp.sent_at_ms, stamp.updated_at_ms, stamp.event_id


def _first_of_each(deliveries: Iterable[Delivery]) -> list[Delivery]:
    first: dict[str, Delivery] = {}
    seen: set[str] = set()
    switched_ms: dict[tuple[str, bool], int] = {}
    for delivery in sorted(deliveries, key=lambda one: one[:2]):
        received = delivery[2]
        opens = _opens(received)
        parts = (received.source, received.type, received.subject)
        repeated = event_id(*parts, received.body) in seen
        seen.add(event_id(*parts, received.body))
        if received.event_id in first:
            continue
        if opens is not None:
            signed = occurrence_of(received.sent_at_ms, 0)
            unordered = received.event_id == event_id(*parts, received.body, signed)
            opposite_ms = switched_ms.get((received.subject, not opens))
            is_new = opposite_ms is not None and received.sent_at_ms > opposite_ms
            if repeated and unordered and not is_new:
                continue
            name = (received.subject, opens)
            switched_ms[name] = max(received.sent_at_ms, switched_ms.get(name, 0))
        first[received.event_id] = delivery
    return list(first.values())


def _opens(received: WebhookReceived) -> bool | None:
    """Whether a delivery opens a connection or closes one; None if it does neither."""
    if received.source == "headwater":
        return {"connection_listed": True, "connection_gone": False}.get(received.type)
    if received.type in OPENING_TYPES:
        return True
    return False if received.type in CLOSING_TYPES else None


def _admit(delivery: Delivery) -> WebhookAdmitted:
    partition, offset, received = delivery
    received = reroute(received, _PROVIDERS)
    return WebhookAdmitted(
        **msgspec.structs.asdict(received),
        partition=partition,
        offset=offset,
        admitted_at_ms=received.received_at_ms,
    )


def _looked_up(admitted: Iterable[WebhookAdmitted], user_prefix: str) -> Mapping[str, Rows]:
    """The rows of the tables in which users are looked up.

    A delivery can take its user from a row that another one writes, so all are gone through until
    nothing changes. Every round starts from what the last one knew: the order does not matter.
    """
    events = [
        event for event in admitted if (kind := _kind(event)) and set(kind.tables) & set(_LOOKUPS)
    ]
    known: Mapping[str, Rows] = {}
    while True:  # a round adds users, which are never taken away: it ends
        updates = [item for event in events for item in _outcome(event, known, user_prefix)[1]]
        result = rows_of(update for update in updates if update.table in _LOOKUPS)
        if result == known:
            return known
        known = result


def _kind(event: WebhookAdmitted) -> DeliveryType[Any] | None:
    return _PROVIDERS[event.source].types.get(event.type)


def _subjects(event: WebhookAdmitted) -> tuple[str, ...]:
    """A delivery's own subject, then the one that it replaces."""
    kind = _kind(event)
    if kind is None:
        return (event.subject,)
    try:
        return kind.subjects_of(event)
    except MalformedPayload:
        return (event.subject,)


def _owned(
    event: WebhookAdmitted, known: Mapping[str, Rows], user_prefix: str
) -> tuple[str | None, str | None]:
    """Whose a delivery is, and our id of its subject: as it says, else as a row that it names."""
    reference = event.reference or ""
    if event.source == "headwater" or reference.startswith(user_prefix):
        return reference or None, None
    kind = _kind(event)
    if kind is None or kind.lookup is None:
        return None, None
    table, rows = kind.lookup.table, known.get(kind.lookup.table.name, {})
    for subject in _subjects(event):
        row = rows.get((subject,))
        values = dict(zip(table.column_names, row.values, strict=True)) if row else {}
        if values.get("user_id"):
            ours = values.get(kind.lookup.our_id) if kind.lookup.our_id else None
            return str(values["user_id"]), None if ours is None else str(ours)
    return None, None


def _outcome(
    event: WebhookAdmitted, known: Mapping[str, Rows], user_prefix: str
) -> tuple[Outcome, tuple[Update, ...]]:
    """What becomes of one delivery, and the rows it touches."""
    user, ours = _owned(event, known, user_prefix)
    kind = _kind(event)
    waits = kind is not None and kind.of_user and user is None
    missing = kind.lookup.missing if kind is not None and kind.lookup else ""
    try:
        if waits and kind is not None and not kind.fills_lookup:
            skipped = kind.skip_reason(event.body)
            unknown = ("parked", missing) if event.subject and missing else ("dead", NO_USER)
            return (unknown if skipped is None else ("skipped", skipped)), ()
        event = msgspec.structs.replace(event, user_id=user, our_id=ours)
        result = _PROVIDERS[event.source].normalize(event)
    except MalformedPayload as error:
        return ("dead", error.code), ()
    if isinstance(result, Skipped):
        return ("skipped", result.reason), result.updates
    if waits and event.subject:
        return ("parked", missing), ()
    if isinstance(result, Failed):
        return ("dead", result.code), ()
    return ("processed", ""), (*result.updates, *_heard_of(event, result))


def _heard_of(event: WebhookAdmitted, result: Normalized) -> tuple[RowUpdate, ...]:
    """What a delivery with rows of a user says of when they were heard of."""
    if not event.user_id or not result.updates:
        return ()
    sent = datetime.fromtimestamp(event.sent_at_ms / 1000, UTC)
    moment = f"{sent:%Y-%m-%dT%H:%M:%S}.{event.sent_at_ms % 1000:03}Z"
    seen = {"created_at": moment, "last_seen_at": moment}
    return (RowUpdate(USERS, (event.user_id,), seen, event.stamp()),)
