"""What a workflow worker runs and uses: its code, services, intervals and limits."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from headwater.monitoring.monitor import Monitor
from headwater.processors.evaluations import Evaluator
from headwater.processors.runs.limits import RUN_BYTES_MAX, THREADS_MAX
from headwater.streams.engine.steps_with_sql import StepDatabase
from headwater.streams.kafka.broker_clock import SKEW_MAX_MS
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.host_process import HostOptions
from headwater.streams.workflows.runnable_code import DeployedGraphs

#: Number of history records after which a checkpoint is due: restoring reads no more than these.
CHECKPOINT_RECORDS: Final = 20_000
#: Seconds after which a checkpoint is due if anything has changed.
CHECKPOINT_S: Final = 60.0
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


class WorkerCode(NamedTuple):
    """The code that a worker runs.

    Attributes:
        apps: Its apps, as `package.module` or `package.module:attribute`.
        kinds: Kinds of the workflows that need no code, by name.
        builtin: Options of the host of the built-in app; by default it has schedules only.
        graphs: Deployed graphs to follow.
        deployed: Deployed code to follow.
        ticked: Whether it runs only in ticks.
        reload: Whether a change of an app's files restarts its host.
    """

    apps: Sequence[str] = ()
    kinds: Mapping[str, str] = MappingProxyType({})
    builtin: HostOptions = HostOptions()
    graphs: DeployedGraphs | None = None
    deployed: DeployedCode | None = None
    ticked: bool = False
    reload: bool = False


class WorkerServices(NamedTuple):
    """What a worker uses.

    Attributes:
        clock: Returns Unix milliseconds.
        draw_seed: Returns a seed for the random numbers of a run.
        database: Database of the SQL of steps.
        stores: Keep resting instances on disk; by default they are in memory.
        evaluator: Evaluates expressions.
        joined: Returns when it is known what other processes read.
        monitor: Reports readiness and gauges to monitors.
    """

    clock: Callable[[], int]
    draw_seed: Callable[[], str]
    database: StepDatabase | None = None
    stores: StateStores | None = None
    evaluator: Evaluator | None = None
    joined: Callable[[], Awaitable[None]] | None = None
    monitor: Monitor | None = None
