"""Write the state of partitions straight into the topics: rows and claims.

`python -m benchmarks.size_load BOOTSTRAP ROWS CLAIMS OF PARTITION...`: so many rows and claims for
these partitions, of `OF` partitions. It reports its progress, and `written` at its end.

The records are those that intake would have written: rows made by the provider's normalizer and the
codec, with the epoch of an owner, and claims of a thousand event ids per record, spread over the
days for which they are kept. Two hundred rows are made; the others are copies with another user,
day and delivery replaced in the bytes, because making a row takes thirty times as long.
"""

import random
import sys
import time
from collections.abc import Iterator
from datetime import date, timedelta
from functools import lru_cache
from itertools import count, islice
from typing import Final

import uvloop

from benchmarks.payloads import USERS
from benchmarks.raw import received
from benchmarks.reporting import report
from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.results import Normalized
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.epochs import EPOCH
from headwater.schemas.records import WebhookAdmitted, WebhookReceived, WebhooksClaimed
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import ADMISSIONS, retention_of
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Headers, Outgoing, partition_of

#: Days per user, from the first one of the payloads on.
DAYS: Final = 400
_FIRST_DAY: Final = date(1995, 1, 1)
_TEMPLATES: Final = 200
_CLAIMS_A_RECORD: Final = 1_000
#: Records of one append.
_AT_ONCE: Final = 5_000
#: Lower than that of any owner.
_HEADERS: Final[Headers] = [(EPOCH, b"0")]
_ID_BYTES: Final = 16


def claimed_ids(partition: int) -> Iterator[str]:
    """Yield the event ids claimed in a partition, from offset 0 on; deterministic."""
    draw = random.Random(f"claims of {partition}")  # noqa: S311, the same every time
    while True:
        drawn = draw.randbytes(_ID_BYTES * _CLAIMS_A_RECORD).hex()
        for start in range(0, len(drawn), 2 * _ID_BYTES):
            yield drawn[start : start + 2 * _ID_BYTES]


def users_of(partition: int, partitions: int) -> Iterator[str]:
    """Yield the users of a partition."""
    names = (f"user_{number:06d}" for number in count())
    return (name for name in names if partition_of(name.encode(), partitions) == partition)


class _Template:
    """An encoded row, split where rows differ."""

    def __init__(self, number: int) -> None:
        update = _update(number)
        _, source, day = update.key
        value = encode_row(DAILY_SUMMARY, merge(None, update))
        self._key_ends = f'","{source}","'.encode()
        user, stamp = update.key[0].encode(), update.stamp.event_id.encode()
        first, rest = value.split(user)
        between, rest = rest.split(day.encode())
        before, after = rest.split(stamp)
        self._parts = first, between, before, after

    def row(self, partition: int, user: bytes, day: bytes, event_id: bytes) -> Outgoing:
        first, between, before, after = self._parts
        key = b'["%b%b%b"]' % (user, self._key_ends, day)
        value = b"".join((first, user, between, day, before, event_id, after))
        return Outgoing(DAILY_SUMMARY.topic, partition, key, value, _HEADERS)


def _update(number: int) -> RowUpdate:
    """Return what a delivery of the load changes; every number has another user."""
    delivery = received(number, 1_782_900_000_000)
    fields = {name: getattr(delivery, name) for name in WebhookReceived.__struct_fields__}
    event = WebhookAdmitted(
        **fields,
        user_id=delivery.reference,
        partition=0,
        offset=1_000_000 + number,
        admitted_at_ms=delivery.received_at_ms,
    )
    result = TERRA.normalize(event)
    assert isinstance(result, Normalized)
    update = result.updates[0]
    assert isinstance(update, RowUpdate)
    return update


def _rows(partition: int, partitions: int, rows: int) -> Iterator[Outgoing]:
    """Yield rows day by day, for all users, as they occur in production."""
    draw = random.Random(f"rows of {partition}")  # noqa: S311, the same every time
    templates = [_Template(USERS // _TEMPLATES * number) for number in range(_TEMPLATES)]
    users = [name.encode() for name in islice(users_of(partition, partitions), -(-rows // DAYS))]
    for number in range(rows):
        day, user = divmod(number, len(users))
        event_id = draw.randbytes(_ID_BYTES).hex().encode()
        template = templates[number % _TEMPLATES]
        yield template.row(partition, users[user], _day(day), event_id)


@lru_cache(maxsize=4)
def _day(number: int) -> bytes:
    return (_FIRST_DAY + timedelta(number)).isoformat().encode()


def _claims(partition: int, claims: int) -> Iterator[Outgoing]:
    kept_ms, now_ms = retention_of(ADMISSIONS), time.time_ns() // 1_000_000
    ids = claimed_ids(partition)
    for first in range(0, claims, _CLAIMS_A_RECORD):
        event_ids = list(islice(ids, min(_CLAIMS_A_RECORD, claims - first)))
        # At least an hour before they expire, so that none expires during the benchmark.
        at_ms = now_ms - (kept_ms - 3_600_000) * (claims - first) // claims
        offsets = list(range(first, first + len(event_ids)))
        record = WebhooksClaimed(event_ids, offsets, [at_ms] * len(event_ids), at_ms)
        yield Outgoing(ADMISSIONS, partition, None, encode(record))


async def _main(bootstrap: str, rows: int, claims: int, of: int, numbers: list[int]) -> None:
    appender = Appender(cluster=Cluster(bootstrap), client_id="bench-size")
    try:
        for partition in numbers:
            for what, records in (
                ("rows", _rows(partition, of, rows)),
                ("claims", _claims(partition, claims)),
            ):
                written = 0
                while batch := list(islice(records, _AT_ONCE if what == "rows" else 200)):
                    await appender.append(batch)
                    written += len(batch)
                    report(partition=partition, **{what: written})
        report(written=len(numbers))
    finally:
        await appender.stop()


if __name__ == "__main__":
    _bootstrap, *_counts = sys.argv[1:]
    _of, *_numbers = map(int, _counts[2:])
    uvloop.run(_main(_bootstrap, int(_counts[0]), int(_counts[1]), _of, _numbers))
