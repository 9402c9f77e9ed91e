"""Settings of a workflow worker: intervals of its periodic work, and limits."""

from typing import Final

import msgspec

from headwater.processors.runs.limits import RUN_BYTES_MAX, THREADS_MAX
from headwater.streams.kafka.broker_clock import SKEW_MAX_MS
from headwater.streams.workflows.checkpoints import CHECKPOINT_RECORDS, CHECKPOINT_S

#: How long an instance rests before it is moved to the store, in milliseconds.
IDLE_MS: Final = 5_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of a worker's periodic work.

    Attributes:
        housekeeping_s: Seconds between rounds of the work.
        checkpoint_records: Records of history after which a checkpoint is due.
        checkpoint_s: Seconds after which a checkpoint is due.
        idle_ms: Milliseconds of rest after which an instance is evicted.
    """

    housekeeping_s: float = 1.0

    checkpoint_records: int = CHECKPOINT_RECORDS
    checkpoint_s: float = CHECKPOINT_S
    idle_ms: int = IDLE_MS


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a worker.

    Attributes:
        run_bytes_max: Largest size of the state of a run, in bytes.
        skew_max_ms: Largest tolerated difference from Kafka's clock, in milliseconds.
        threads_max: Threads of a host for callbacks that are not async.
        passed: Environment variables that apps see in addition to those that they always see.
    """

    run_bytes_max: int = RUN_BYTES_MAX
    skew_max_ms: int = SKEW_MAX_MS
    threads_max: int = THREADS_MAX
    passed: tuple[str, ...] = ()
