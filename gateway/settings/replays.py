"""Settings of replays: limits of the check before an activation, and redaction of exports."""

from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings

from headwater.processors.runs.redaction import REDACTED_FIELDS, patterns_of

_MIB: Final = 1024 * 1024


class ReplaySettings(BaseSettings):
    """Limits of the replays before an activation, and redaction of exported histories."""

    replay_runs: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="Open runs that are replayed against a deployment before it is activated, the "
        "last updated ones of each of its workflows. The report names the number of others.",
    )
    replay_ended_runs: int = Field(
        default=10,
        ge=0,
        le=1_000,
        description="Ended runs of each workflow that are replayed as well, the latest ones.",
    )
    replay_mib: int = Field(
        default=64,
        ge=1,
        le=1_024,
        description="MiB of history that are read for one check; runs beyond are not replayed.",
    )
    replay_s: int = Field(
        default=30,
        ge=1,
        le=600,
        description="Seconds that the replays of one check may take, while the request waits.",
    )
    load_check_s: int = Field(
        default=20,
        ge=0,
        le=600,
        description="Seconds that a check waits for workers to load a deployment; workers that "
        "have not answered by then are named. 0 does not request it.",
    )
    redacted_fields: str = Field(
        default=REDACTED_FIELDS,
        description="Patterns for names of fields whose values are replaced in exported histories, "
        "separated by commas; * stands for any characters.",
    )

    @property
    def redacted(self) -> tuple[str, ...]:
        """Patterns of `redacted_fields`."""
        return patterns_of(self.redacted_fields)

    @property
    def replay_bytes(self) -> int:
        """Bytes of history that are read for one check."""
        return self.replay_mib * _MIB
