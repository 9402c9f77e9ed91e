"""`python -m benchmarks.codec`: the cost of writing and reading a record, in microseconds.

Method. Records of the delivery pipeline and the workflow engine are written and read in a loop. The
fastest of several loops counts, in processor time, because disturbances only make a loop slower.
"""

import sys
from collections.abc import Callable
from time import process_time
from timeit import Timer
from typing import Any, Final

from benchmarks.raw import received
from headwater.projections.deliveries.row_readers import ROW_READERS
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.history import (
    NO_CAUSE,
    CommandSent,
    EntryCompleted,
    HistoryAppended,
    RunSuspended,
    SendEvent,
    StepCompleted,
)
from headwater.schemas.records import (
    OutcomeRecorded,
    Record,
    Stamp,
    WebhookAdmitted,
    WebhooksClaimed,
)
from headwater.schemas.tables import DAILY_SUMMARY, Row

_LOOPS: Final = 15
_NOW_MS: Final = 1_782_900_000_000


def _row() -> Row:
    """Return a day that a daily and a sleep delivery have filled, except for three columns."""
    daily, sleep = (
        Stamp(rank, _NOW_MS + rank, _NOW_MS, f"{rank:064x}", 3, 1_000 + rank) for rank in (0, 1)
    )
    columns = DAILY_SUMMARY.columns
    samples: dict[type, Any] = {str: "2026-07-01T22:10:00.000000+02:00", int: 11_894, float: 61.25}
    values = [samples[column.type] for column in columns[:-3]]
    stamps = [daily if index < len(columns) // 2 else sleep for index in range(len(values))]
    unset = (None,) * 3
    return Row(("user-1", "garmin", "2026-07-01"), (*values, *unset), (*stamps, *unset))


def _records() -> dict[str, Record]:
    delivery = received(1, _NOW_MS)
    fields = {name: getattr(delivery, name) for name in delivery.__struct_fields__}
    step = StepCompleted("pages/~3/fetch", "fetch", 7, _NOW_MS, 1, 5, 600_000, '{"rows": 120}')
    events = (step, EntryCompleted("pages/~3/wait", "{}", ("e-1",)), RunSuspended())
    return {
        "webhook received": delivery,
        "webhook admitted": WebhookAdmitted(
            **fields, user_id="user-1", partition=3, offset=1_000, admitted_at_ms=_NOW_MS
        ),
        "webhooks claimed, 100": WebhooksClaimed(
            [delivery.event_id] * 100, list(range(1_000, 1_100)), [_NOW_MS] * 100, _NOW_MS
        ),
        "outcome": OutcomeRecorded(
            event_id=delivery.event_id, request_id=delivery.request_id, source="terra",
            type="daily", subject=delivery.subject, user_id="user-1", status="processed", reason="",
            rows=1, partition=3, offset=1_000, received_at_ms=_NOW_MS, admitted_at_ms=_NOW_MS,
            at_ms=_NOW_MS, stage="intake", position="webhooks/3@1000",
        ),
        "history of a step": HistoryAppended(
            workflow="import", instance_id="user-1", run_number=0, sequence=12, epoch=90_000,
            cause=NO_CAUSE, at_ms=_NOW_MS, events=(step,),
        ),
        "history of three events": HistoryAppended(
            workflow="import", instance_id="user-1", run_number=0, sequence=12, epoch=90_000,
            cause=88_000, at_ms=_NOW_MS, events=events,
        ),
        "command": CommandSent(
            command_id="0197c0ffee", workflow="import", instance_id="user-1", sent_at_ms=_NOW_MS,
            reply_to=3, command=SendEvent("e-1", "approved", '{"by": "mara"}'),
        ),
    }  # fmt: skip


def _us(work: Callable[[], object]) -> float:
    timer = Timer(work, timer=process_time)
    loops, seconds = timer.autorange()
    loops = max(1, int(loops * 0.03 / seconds))
    return min(timer.repeat(_LOOPS, loops)) / loops * 1e6


def main() -> None:
    """Measure, and print a line per record."""
    row = _row()
    data = encode_row(DAILY_SUMMARY, row)
    lines = [
        (
            "row of daily_summary",
            _us(lambda: encode_row(DAILY_SUMMARY, row)),
            _us(lambda: decode_row(DAILY_SUMMARY, data)),
        ),
        ("  for Postgres", None, _us(lambda: ROW_READERS["daily_summary"](data))),
    ]
    for name, record in _records().items():
        lines.append((name, *_both(record)))
    for name, writing, reading in lines:
        written = "" if writing is None else f"{writing:.1f}"
        sys.stdout.write(f"{name:26}{written:>8}{reading:8.1f}\n")


def _both(record: Record) -> tuple[float, float]:
    data, kind = encode(record), type(record)
    return _us(lambda: encode(record)), _us(lambda: decode(data, kind))


if __name__ == "__main__":
    main()
