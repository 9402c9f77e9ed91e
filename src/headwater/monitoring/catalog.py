"""All metrics that a process counts itself, with their meanings.

`docs/metrics.md` lists them, and those that a gateway reads from Kafka and Postgres. Names follow
Prometheus: base units, and `_total` for counters, which is added when they are rendered.
"""

from typing import Final

from headwater.monitoring.metrics import Counter, Gauge, Histogram, Metric

# -- every process

BUILD_INFO: Final = Gauge(
    "headwater_build_info",
    "Always 1; the labels are the kind of the process and its release.",
    ("process", "version"),
)
READY: Final = Gauge("headwater_ready", "Whether the process is ready, as /health/ready reports.")
EVENT_LOOP_LATE: Final = Histogram(
    "headwater_event_loop_late_seconds", "How late the event loop ran a timer, ten times a second."
)
EVENT_LOOP_BLOCKED: Final = Counter(
    "headwater_event_loop_blocked",
    "How often the event loop was blocked for a quarter of a second or longer.",
)
#: Stages of a record: see docs/metrics.md.
STAGE_SECONDS: Final = Histogram(
    "headwater_stage_seconds",
    "Seconds that records waited, or that a batch took; waits are those of its oldest record.",
    ("stage",),
)
HTTP_PROBLEMS: Final = Counter(
    "headwater_http_problems",
    "Problem documents that the gateway answered, by code; too_many_requests is a limit.",
    ("code",),
)
DEAD_LETTERS: Final = Counter(
    "headwater_dead_letters", "Dead letters that the process has made.", ("stage", "reason")
)

# -- partitions and stores of a worker

PARTITIONS: Final = Gauge(
    "headwater_partitions", "Partitions that are assigned to the worker.", ("phase",)
)
TAKEOVERS: Final = Counter(
    "headwater_partition_takeovers", "Partitions that the worker has acquired."
)
STORE_BYTES: Final = Gauge(
    "headwater_store_bytes", "Size of the local stores on disk.", ("partition",)
)
STORE_MEMORY: Final = Gauge(
    "headwater_store_memory_bytes", "Memory of the caches and write buffers of all local stores."
)
STORE_FAILURES: Final = Counter(
    "headwater_store_failures", "Local stores that could not be read or written, and were deleted."
)
DISK_FREE: Final = Gauge(
    "headwater_disk_free_bytes", "Free space of the disk with the local stores."
)
DISK_SIZE: Final = Gauge("headwater_disk_size_bytes", "Size of the disk with the local stores.")

# -- the pipeline

PIPELINE_RECORDS: Final = Counter(
    "headwater_pipeline_records", "Records that were processed, by topic.", ("topic",)
)
OUTCOMES: Final = Counter(
    "headwater_delivery_outcomes",
    "Outcomes of deliveries: processed, skipped, parked or dead.",
    ("status",),
)

# -- workflows

RUNS_STARTED: Final = Counter(
    "headwater_workflow_runs_started", "Runs that have started.", ("workflow",)
)
RUNS_ENDED: Final = Counter(
    "headwater_workflow_runs_ended",
    "Runs that have ended: completed, errored or terminated.",
    ("workflow", "status"),
)
STEPS: Final = Counter(
    "headwater_workflow_steps",
    "Steps and tasks that have ended: completed or failed.",
    ("workflow", "status"),
)
ATTEMPTS_FAILED: Final = Counter(
    "headwater_workflow_attempts_failed",
    "Attempts of steps and tasks that failed, whether they are retried or not.",
    ("workflow",),
)
STEP_SECONDS: Final = Histogram(
    "headwater_workflow_step_seconds",
    "Seconds from when the code reached a step until it completed, including retries.",
    ("workflow",),
)
RUN_FAILURES: Final = Counter(
    "headwater_workflow_run_failures",
    "Errored runs by failure: a limit or another failure of Headwater's own, or `author`.",
    ("failure",),
)
COMMANDS_REJECTED: Final = Counter(
    "headwater_workflow_commands_rejected", "Commands that were rejected, by code.", ("code",)
)
COMMANDS_WAITING: Final = Gauge(
    "headwater_workflow_commands_waiting",
    "Commands that were read and not decided yet.",
    ("partition",),
)
COMMANDS_WAITING_BYTES: Final = Gauge(
    "headwater_workflow_commands_waiting_bytes",
    "Bytes of the commands that were read since none waited.",
    ("partition",),
)
HOST_MESSAGES_WAITING: Final = Gauge(
    "headwater_workflow_host_messages_waiting", "Messages of code hosts that were not handled yet."
)
INSTANCES_IN_MEMORY: Final = Gauge(
    "headwater_workflow_instances_in_memory",
    "Instances that are in memory; resting ones are on disk.",
    ("partition",),
)
INSTANCES_WITHOUT_CODE: Final = Gauge(
    "headwater_workflow_instances_without_code",
    "Instances that cannot continue because no code host of the worker has their workflow.",
    ("workflow",),
)
INSTANCES_QUARANTINED: Final = Gauge(
    "headwater_workflow_instances_quarantined",
    "Instances that the worker cannot decide anything for.",
)
ERRORS_CONTAINED: Final = Counter(
    "headwater_workflow_errors_contained",
    "Errors inside the worker; each affected only one command or run.",
    ("kind",),
)
TIMERS_LATE: Final = Gauge(
    "headwater_workflow_timers_late_seconds",
    "How long the earliest due timer has waited; 0 if none is due.",
    ("partition",),
)
CHECKPOINTS: Final = Counter(
    "headwater_workflow_checkpoints", "Checkpoints: written or failed.", ("result",)
)
CHECKPOINT_AGE: Final = Gauge(
    "headwater_workflow_checkpoint_age_seconds",
    "Age of the latest checkpoint of a partition, or of its takeover, if records follow it.",
    ("partition",),
)
CODE_HOSTS: Final = Gauge(
    "headwater_code_hosts", "Code hosts: loaded, or starting.", ("app", "state")
)
CODE_HOST_EXITS: Final = Counter(
    "headwater_code_host_exits", "Code hosts that exited, and are restarted.", ("app",)
)
STEP_THREADS_HELD: Final = Gauge(
    "headwater_step_threads_held",
    "Threads that callbacks of abandoned steps still occupy.",
    ("app",),
)

# -- the projector

PROJECTED: Final = Counter(
    "headwater_projection_records", "Records that were applied.", ("projection",)
)
PROJECTION_REFUSED: Final = Counter(
    "headwater_projection_refused_records",
    "Records that could not be applied; they are in the table projection_errors.",
    ("projection",),
)
PROJECTION_LAG: Final = Gauge(
    "headwater_projection_lag_records", "Records that are not applied yet.", ("projection",)
)
PROJECTION_AGE: Final = Gauge(
    "headwater_projection_age_seconds",
    "How old the rows are: the age of the oldest record that is not applied; 0 if all are.",
    ("projection",),
)

# -- the auditor

AUDITOR_DELIVERIES: Final = Gauge(
    "headwater_auditor_deliveries",
    "Deliveries that the auditor has read: settled, waiting, parked, unproven or lost.",
    ("state",),
)
AUDITOR_FINDINGS: Final = Gauge(
    "headwater_auditor_findings", "Violations that the auditor sees now, by law.", ("law",)
)
AUDITOR_STEP_RESULTS: Final = Gauge(
    "headwater_auditor_step_results",
    "Results of steps and of tokens of graphs that the auditor has read.",
)
AUDITOR_ROWS: Final = Gauge(
    "headwater_auditor_rows", "Rows that the auditor has compared with the log."
)
AUDITOR_IGNORED: Final = Gauge(
    "headwater_auditor_ignored_records",
    "Records of former owners that the auditor has read; every reader ignores them.",
)
AUDITOR_CAUGHT_UP: Final = Gauge(
    "headwater_auditor_caught_up_timestamp_seconds",
    "When the auditor last verified everything that there was, in Unix seconds.",
)

# -- the whole system, from Kafka and Postgres, in every gateway

KAFKA_CONNECTED: Final = Gauge(
    "headwater_kafka_connected", "Whether the gateway is connected to Kafka."
)
CONCURRENCY_RUNS: Final = Gauge(
    "headwater_concurrency_runs",
    "Runs of workflows with a concurrency limit: running with a slot, or waiting.",
    ("workflow", "state"),
)
CONNECTIONS: Final = Gauge(
    "headwater_connections",
    "Active connections by provider and state: receiving, silent or failing.",
    ("provider", "state"),
)
CONNECTIONS_COUNTED: Final = Gauge(
    "headwater_connections_counted_timestamp_seconds",
    "When active connections were counted, in Unix seconds; 0 if they never were.",
)
LAG_RECORDS: Final = Gauge(
    "headwater_lag_records",
    "Records that a consumer group has not committed yet.",
    ("group", "topic", "partition"),
)
LAG_SECONDS: Final = Gauge(
    "headwater_lag_seconds",
    "Greatest possible age of the oldest record that a consumer group has not committed.",
    ("group", "topic", "partition"),
)
COMMITTED_OFFSET: Final = Gauge(
    "headwater_committed_offset",
    "First offset that a consumer group has not committed.",
    ("group", "topic", "partition"),
)
DEAD_LETTERS_OPEN: Final = Gauge(
    "headwater_dead_letters_open",
    "Dead letters that were neither reprocessed nor expired.",
    ("stage", "reason"),
)
WORKFLOW_INSTANCES: Final = Gauge(
    "headwater_workflow_instances", "Instances by workflow and status.", ("workflow", "status")
)

#: All metrics above.
METRICS: Final = tuple(value for value in globals().values() if isinstance(value, Metric))
