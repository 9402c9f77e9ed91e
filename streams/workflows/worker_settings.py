"""What may be chosen of a workflow worker: how often it keeps house, and what it stays within."""

from typing import Final

import msgspec

from headwater.processors.runs.limits import RUN_BYTES_MAX, THREADS_MAX
from headwater.streams.kafka.broker_clock import SKEW_MAX_MS
from headwater.streams.workflows.checkpoints import CHECKPOINT_RECORDS, CHECKPOINT_S

#: How long an instance rests before only its bytes are kept.
IDLE_MS: Final = 5_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a worker keeps house.

    Units:  records of history, seconds, milliseconds of rest.
    """

    housekeeping_s: float = 1.0

    checkpoint_records: int = CHECKPOINT_RECORDS
    checkpoint_s: float = CHECKPOINT_S
    idle_ms: int = IDLE_MS


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does not go beyond.

    Attributes:
        run_bytes_max: How large the state of a run may become.
        skew_max_ms: By how much the worker's clock may differ from Kafka's before that counts.
        threads_max: Threads of a host for callbacks that are not async.
        passed: Environment variables that apps see besides those that they always see.
    """

    run_bytes_max: int = RUN_BYTES_MAX
    skew_max_ms: int = SKEW_MAX_MS
    threads_max: int = THREADS_MAX
    passed: tuple[str, ...] = ()
