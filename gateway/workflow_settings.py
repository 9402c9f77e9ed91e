"""The settings of workflows: what they may not exceed, how long they are kept, and their ticks."""

from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.gateway.loopback import is_loopback
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    DEPLOYED_HOSTS_MAX,
    EVENT_TYPE_TOP,
    INSTANCE_ID_MAX,
    INSTANCE_ID_TOP,
    LOG_CATEGORY_TOP,
    RUN_BYTES_MAX,
    THREADS_MAX,
    VALUE_BYTES_TOP,
    WORKFLOW_NAME_MAX,
)
from headwater.processors.runs.retention import Retention, read_retention
from headwater.schemas.history import Limits

#: Characters of a key, at least.
_KEY_MIN: Final = 8


class WorkflowSettings(BaseSettings):
    """Limits of workflows, the retention of their instances, and who ticks their workers."""

    max_steps: int = Field(
        default=1_024,
        ge=1,
        le=1_000_000,
        description="How many entries a run may have; sleeps and forgotten iterations do not count."
        " Every one is kept in memory, and read again at a replay.",
    )
    cleanup_s: int = Field(
        default=30,
        ge=0,
        le=86_400,
        description="How many seconds the code of a run that is cancelled may clean up, before it "
        "is cut off, rolled back and terminated.",
    )
    max_run_bytes: int = Field(
        default=RUN_BYTES_MAX,
        ge=1024 * 1024,
        le=1024 * 1024 * 1024,
        description="How many bytes the state of a run may have: its results, its errors, its "
        "mailbox, and what it is about to send. The mailbox may have half of it.",
    )
    max_workflow_name: int = Field(
        default=DEFAULT_LIMITS.max_workflow_name,
        ge=32,
        le=WORKFLOW_NAME_MAX,
        description="Characters that the name of a workflow may have.",
    )
    max_instance_id: int = Field(
        default=DEFAULT_LIMITS.max_instance_id,
        ge=INSTANCE_ID_MAX,
        le=INSTANCE_ID_TOP,
        description="Characters that the id of an instance may have; Headwater makes some of 100.",
    )
    max_event_type: int = Field(
        default=DEFAULT_LIMITS.max_event_type,
        ge=16,
        le=EVENT_TYPE_TOP,
        description="Characters that the type of an event may have.",
    )
    max_step_name: int = Field(
        default=DEFAULT_LIMITS.max_step_name,
        ge=64,
        le=1_024,
        description="Characters that the name of a step, or of any other entry, may have. This and "
        "what follows of results, log lines and sleeps hold for runs that begin from then on.",
    )
    max_params_bytes: int = Field(
        default=DEFAULT_LIMITS.max_params_bytes,
        ge=16 * 1024,
        le=VALUE_BYTES_TOP,
        description="Bytes of JSON that an instance may be created with.",
    )
    max_event_bytes: int = Field(
        default=DEFAULT_LIMITS.max_event_bytes,
        ge=16 * 1024,
        le=VALUE_BYTES_TOP,
        description="Bytes of JSON that the payload of an event may have.",
    )
    max_result_bytes: int = Field(
        default=DEFAULT_LIMITS.max_result_bytes,
        ge=16 * 1024,
        le=VALUE_BYTES_TOP,
        description="Bytes of JSON that the result of a step may have, the output of a workflow, "
        "and the state of a loop.",
    )
    max_log_message: int = Field(
        default=DEFAULT_LIMITS.max_log_message,
        ge=256,
        le=16 * 1024,
        description="Characters that the message of a log line may have.",
    )
    max_log_category: int = Field(
        default=DEFAULT_LIMITS.max_log_category,
        ge=16,
        le=LOG_CATEGORY_TOP,
        description="Characters that the category of a log line may have.",
    )
    max_log_data_bytes: int = Field(
        default=DEFAULT_LIMITS.max_log_data_bytes,
        ge=16 * 1024,
        le=VALUE_BYTES_TOP,
        description="Bytes of JSON that the data of a log line may have.",
    )
    max_sleep_days: int = Field(
        default=DEFAULT_LIMITS.max_sleep_days,
        ge=1,
        le=36_500,
        description="Days that a sleep may last.",
    )
    step_threads: int = Field(
        default=THREADS_MAX,
        ge=1,
        le=1_000,
        description="Threads that the host of an app has for callbacks that are not async; when "
        "all are held by callbacks that were given up, the host is started again.",
    )
    deployment_hosts: int = Field(
        default=DEPLOYED_HOSTS_MAX,
        ge=1,
        le=1_000,
        description="Processes that a workflow worker has at once for code of deployments, beside "
        "that of the active one; work of others waits.",
    )
    worker_metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on loopback where a workflow worker answers GET /metrics; 0 has none.",
    )
    max_clock_skew_s: int = Field(
        default=10,
        ge=1,
        description="Seconds by which the clock of a workflow worker may differ from Kafka's; "
        "beyond that Kafka's time counts there until it is right.",
    )
    retention: str = Field(
        default="",
        description="How long instances are kept once they have ended, such as order=90 days, 30 "
        "days: each for a workflow, one for all others; empty keeps all for ever. "
        "`headwater instances prune` removes what is past it.",
    )

    tick_url: str = Field(
        default="",
        description="Where workers with --tick listen, for example http://127.0.0.1:8090, several "
        "separated by commas: each takes one that is free; empty disables the route that drives "
        "them.",
    )
    tick_key: SecretStr = Field(
        default=SecretStr(""),
        description="Key of those who may tick, as Authorization: Bearer or x-api-key; without "
        "one nobody may.",
    )

    @field_validator("retention")
    @classmethod
    def _of_durations(cls, value: str) -> str:
        try:
            read_retention(value)
        except ValueError as why:
            raise PydanticCustomError("not_retention", "") from why
        return value

    @field_validator("tick_url")
    @classmethod
    def _only_here(cls, value: str) -> str:
        urls = [url.strip().rstrip("/") for url in value.split(",")] if value else []
        for place in map(urlsplit, urls):
            if not (place.scheme == "http" and is_loopback(place.hostname or "")):
                raise PydanticCustomError("not_here", "")
        return ",".join(urls)

    @field_validator("tick_key")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value()) < _KEY_MIN:
            raise PydanticCustomError("string_too_short", "", {"min_length": _KEY_MIN})
        return value

    @property
    def tick_urls(self) -> tuple[str, ...]:
        """Where workers with --tick listen."""
        return tuple(self.tick_url.split(",")) if self.tick_url else ()

    @property
    def limits(self) -> Limits:
        """What names and values of workflows may not exceed."""
        return Limits(*(getattr(self, name) for name in Limits.__struct_fields__))

    @property
    def kept(self) -> Retention:
        """How long instances are kept once they have ended."""
        return read_retention(self.retention)
