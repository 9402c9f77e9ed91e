"""Settings of workflows: limits, retention, ticks, and which process executes runs."""

from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.gateway.settings.exposure import is_loopback
from headwater.processors.cron import Cron, cron_problem
from headwater.processors.runs.durations import Retention, milliseconds, read_retention
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    EVENT_TYPE_TOP,
    INSTANCE_ID_MAX,
    INSTANCE_ID_TOP,
    LOG_CATEGORY_TOP,
    RUN_BYTES_MAX,
    THREADS_MAX,
    VALUE_BYTES_TOP,
    WORKFLOW_NAME_MAX,
)
from headwater.schemas.history import Limits

#: The World of app hosts while workers execute their runs.
EXPECTED_WORLD: Final = "headwater/world-remote"

#: Attempts of a notification, besides the first, and the longest pause between two.
_PAUSES_MAX: Final = 20
_PAUSE_MAX_MS: Final = 7 * 24 * 60 * 60 * 1_000


class OwnershipSettings(BaseSettings):
    """Which process executes runs, and how violations are reported."""

    remote_mode: bool = Field(
        default=True,
        description="Whether workers execute all runs: a callback of a queue to the gateway, as to "
        "an app host, is then unexpected.",
    )
    strict_ownership: bool = Field(
        default=True,
        description="Whether unexpected callbacks, and another World than expected, are a failure "
        "rather than a warning.",
    )
    target_world: str = Field(
        default=EXPECTED_WORLD,
        min_length=1,
        max_length=200,
        description="The World that app hosts are configured with, by its name.",
    )


# -- settings


class WorkflowSettings(BaseSettings):
    """Limits of workflows, retention of their instances, and ticks of their workers."""

    max_steps: int = Field(
        default=1_024,
        ge=1,
        le=1_000_000,
        description="Entries that a run may have; sleeps and trimmed iterations do not count."
        " All are kept in memory, and read again at a replay.",
    )
    cleanup_s: int = Field(
        default=30,
        ge=0,
        le=86_400,
        description="Seconds that the code of a canceled run may clean up, before it is stopped, "
        "rolled back and terminated.",
    )
    max_run_bytes: int = Field(
        default=RUN_BYTES_MAX,
        ge=1024 * 1024,
        le=1024 * 1024 * 1024,
        description="Bytes that the state of a run may have: its results, errors, mailbox and "
        "outgoing messages. The mailbox may have half of it.",
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
        description="Characters that the name of a step, or of any other entry, may have. This "
        "and the limits of results, log lines and sleeps apply to runs that begin later.",
    )
    max_params_bytes: int = Field(
        default=DEFAULT_LIMITS.max_params_bytes,
        ge=16 * 1024,
        le=VALUE_BYTES_TOP,
        description="Bytes of JSON that the params of an instance may have.",
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
    max_tokens: int = Field(
        default=DEFAULT_LIMITS.max_tokens,
        ge=1,
        le=10_000_000,
        description="Tokens that a run of a graph may create, retries included. Those that have "
        "not ended are kept in memory.",
    )
    max_depth: int = Field(
        default=DEFAULT_LIMITS.max_depth,
        ge=1,
        le=1_000,
        description="Instances that may be nested in one another, the outermost included: graphs "
        "and code that wait for the end of a child.",
    )
    max_rounds: int = Field(
        default=DEFAULT_LIMITS.max_rounds,
        ge=1,
        le=10_000_000,
        description="How often a token of a graph and its ancestors may visit one node. The "
        "branches of a fork do not add up.",
    )
    step_threads: int = Field(
        default=THREADS_MAX,
        ge=1,
        le=1_000,
        description="Threads of an app's host for callbacks that are not async; the host is "
        "restarted when abandoned callbacks occupy all of them.",
    )
    max_clock_skew_s: int = Field(
        default=10,
        ge=1,
        description="Seconds by which the clock of a workflow worker may differ from Kafka's; "
        "beyond that Kafka's time is used there until the clock is right.",
    )
    retention: str = Field(
        default="",
        description="How long ended instances are kept, such as order=90 days, 30 days: by "
        "workflow, and one duration for all others; empty keeps them indefinitely. "
        "`headwater instances prune` deletes those past it.",
    )

    verify_cron: str = Field(
        default="0 2 * * *",
        description="When tables in Postgres are compared with Kafka, as a cron expression in "
        "UTC; empty for never. `headwater doctor` shows the result.",
    )
    endpoint_retries: str = Field(
        default="5 seconds, 5 minutes, 30 minutes, 2 hours, 5 hours, 10 hours, 10 hours",
        description="Pauses between attempts to send a notification, separated by commas; after "
        "the last attempt it has failed.",
    )
    tick_url: str = Field(
        default="",
        description="URL where workers with --tick listen, for example http://127.0.0.1:8090; "
        "several are separated by commas, and each worker uses a free one; empty disables the "
        "route that sends ticks.",
    )

    @field_validator("retention")
    @classmethod
    def _of_durations(cls, value: str) -> str:
        try:
            read_retention(value)
        except ValueError as error:
            raise PydanticCustomError("not_retention", "") from error
        return value

    @field_validator("endpoint_retries")
    @classmethod
    def _of_pauses(cls, value: str) -> str:
        try:
            pauses = _pauses_ms(value)
        except ValueError as error:
            raise PydanticCustomError("not_pauses", "") from error
        if not 0 < len(pauses) <= _PAUSES_MAX or max(pauses) > _PAUSE_MAX_MS:
            raise PydanticCustomError("not_pauses", "")
        return value

    @field_validator("verify_cron")
    @classmethod
    def _of_times(cls, value: str) -> str:
        if value and cron_problem(Cron(value, "UTC")):
            raise PydanticCustomError("not_cron", "")
        return value

    @field_validator("tick_url")
    @classmethod
    def _only_here(cls, value: str) -> str:
        urls = [url.strip().rstrip("/") for url in value.split(",")] if value else []
        for url in map(urlsplit, urls):
            if not (url.scheme == "http" and is_loopback(url.hostname or "")):
                raise PydanticCustomError("not_here", "")
        return ",".join(urls)

    @property
    def tick_urls(self) -> tuple[str, ...]:
        """URLs where workers with --tick listen."""
        return tuple(self.tick_url.split(",")) if self.tick_url else ()

    @property
    def limits(self) -> Limits:
        """Limits of workflows that their runs keep."""
        return Limits(*(getattr(self, name) for name in Limits.__struct_fields__))

    @property
    def endpoint_retries_ms(self) -> tuple[int, ...]:
        """Pauses between attempts to send a notification, in milliseconds."""
        return _pauses_ms(self.endpoint_retries)

    @property
    def kept(self) -> Retention:
        """How long ended instances are kept."""
        return read_retention(self.retention)


def _pauses_ms(text: str) -> tuple[int, ...]:
    """Parse durations that are separated by commas, in milliseconds.

    Raises:
        ValueError: One is not a duration.
    """
    return tuple(milliseconds(part.strip()) for part in text.split(",") if part.strip())
