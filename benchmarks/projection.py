"""`python -m benchmarks.projection`: the cost of turning records into rows, in microseconds.

Method. A delivery is an outcome and a changed row of `daily_summary`. Five deliveries share a row,
but never in one batch, which is the most expensive order. The records are planned and applied batch
by batch to a Postgres of this benchmark, as the projector does. Figures are processor time per
delivery: of planning (decoding and making parameters), of applying (talking to Postgres), and of
Postgres, all its processes together. Kafka is left out. The first round, a warm-up, is not shown.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.meter import CpuReading
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.projector.projection import Batch, Span
from headwater.projections.projector.store import Store
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.records import OutcomeRecorded, Stamp
from headwater.schemas.tables import DAILY_SUMMARY, Row
from headwater.schemas.topics import OUTCOMES

_DELIVERIES: Final = 20_000
_SHARING: Final = 5
_BATCH: Final = 2_000
_ROUNDS: Final = 6
_NOW_MS: Final = 1_782_900_000_000
_SET: Final = 12  # columns that a daily delivery of the load sets, approximately


class Record(NamedTuple):
    """A record as aiokafka returns it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def _event_id(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4


def _outcome(number: int, offset: int) -> Record:
    at_ms = _NOW_MS + number
    record = OutcomeRecorded(
        event_id=_event_id(number), request_id=f"01K{number:023d}", source="terra", type="daily",
        subject=f"00000000-0000-4000-8000-{number % 2_000:012d}",
        user_id=f"user_{number % 2_000:06d}", status="processed", reason="", rows=1,
        partition=3, offset=offset, received_at_ms=at_ms, admitted_at_ms=at_ms + 40,
        at_ms=at_ms + 80, stage="normalize", position=f"events/3@{offset}",
    )  # fmt: skip
    return Record(OUTCOMES, 3, offset, at_ms, record.event_id.encode(), encode(record))


def _day(number: int, offset: int) -> Record:
    shared = number % (_DELIVERIES // _SHARING)
    key = (f"user_{shared % 2_000:06d}", "garmin", f"20{10 + shared // 2_000:02d}-07-01")
    stamp = Stamp(0, _NOW_MS + number // 9 * 1_000, _NOW_MS, _event_id(number), 3, offset)
    unset = (None,) * (len(DAILY_SUMMARY.columns) - _SET)
    values = [index + number % 1_000 / 8 for index in range(1, _SET)]
    row = Row(key, (number % 20_000, *values, *unset), (*[stamp] * _SET, *unset))
    value = encode_row(DAILY_SUMMARY, row)
    return Record(
        DAILY_SUMMARY.topic, 3, offset, stamp.sent_at_ms, DAILY_SUMMARY.row_key(key), value
    )


def _batches(first: int) -> Iterator[tuple[list[Record], dict[tuple[str, int], Span]]]:
    for start in range(first, first + _DELIVERIES, _BATCH):
        numbers = range(start, start + _BATCH)
        records = [_outcome(n, n) for n in numbers] + [_day(n, n) for n in numbers]
        span = Span(start, start + _BATCH)
        yield records, {(OUTCOMES, 3): span, (DAILY_SUMMARY.topic, 3): span}


async def _round(store: Store, pid: int | None, first: int) -> dict[str, float]:
    batches = list(_batches(first))
    gc.collect()
    planning = applying = 0.0
    before, began = CpuReading.of({"postgres": pid}), time.perf_counter()
    for records, spans in batches:
        started = time.process_time()
        plan = DELIVERIES.plan(records)
        planned = time.process_time()
        batch = Batch(records=records, spans=spans, plan=plan)
        await store.apply(batch)
        planning += planned - started
        applying += time.process_time() - planned
    took = time.perf_counter() - began
    postgres = before.us_per_event(CpuReading.of({"postgres": pid}), _DELIVERIES)["postgres"]
    us = 1e6 / _DELIVERIES
    return {
        "planning": planning * us, "applying": applying * us, "postgres": postgres,
        "all": (planning + applying) * us + postgres, "elapsed": took * us,
    }  # fmt: skip


async def _measure(dsn: str, pid: int | None, rounds: int) -> None:
    store = Store(dsn, projection=DELIVERIES, clock=lambda: _NOW_MS)
    await store.offsets([(OUTCOMES, 3), (DAILY_SUMMARY.topic, 3)])
    measured = [await _round(store, pid, number * _DELIVERIES) for number in range(rounds)][1:]
    for name in measured[0]:
        values = [round_[name] for round_ in measured]
        sys.stdout.write(
            f"{name:12}{median(values):8.1f}   ({min(values):.1f} to {max(values):.1f})\n"
        )
    await store.close()


def main() -> None:
    """Measure, and print medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory:
        postgres = EmbeddedPostgres(Path(directory), report=lambda _line: None)
        try:
            dsn = postgres.start()
            migrate(dsn, lambda _line: None)
            asyncio.run(_measure(dsn, postgres.pid, rounds))
        finally:
            postgres.stop()


if __name__ == "__main__":
    main()
