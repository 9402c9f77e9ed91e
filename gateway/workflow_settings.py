"""The settings of workflows: what they may not exceed, and how long their instances are kept."""

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.processors.runs.limits import RUN_BYTES_MAX
from headwater.processors.runs.retention import Retention, read_retention


class WorkflowSettings(BaseSettings):
    """Limits of workflows, and the retention of their instances."""

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
    max_clock_ahead_s: int = Field(
        default=10,
        ge=1,
        description="Seconds by which the clock of a workflow worker may be ahead of Kafka's; "
        "beyond that no timer, schedule or timeout comes due there until it is right.",
    )
    retention: str = Field(
        default="",
        description="How long instances are kept once they have ended, such as order=90 days, 30 "
        "days: each for a workflow, one for all others; empty keeps all for ever. "
        "`headwater instances prune` removes what is past it.",
    )

    @field_validator("retention")
    @classmethod
    def _of_durations(cls, value: str) -> str:
        try:
            read_retention(value)
        except ValueError as why:
            raise PydanticCustomError("not_retention", "") from why
        return value

    @property
    def kept(self) -> Retention:
        """How long instances are kept once they have ended."""
        return read_retention(self.retention)
