"""Input and output of deciding: a command with its facts; events, or a rejection."""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas import failures
from headwater.schemas.history import Json, RunEvent


class Facts(msgspec.Struct, frozen=True, gc=False):
    """Facts about a command that are not part of the run.

    Attributes:
        seed: Seed of a run that starts.
        document: Definition that a run starts on; None for the one of its workflow's name.
    """

    workflow: str
    instance_id: str
    sent_at_ms: int
    now_ms: int
    seed: str = ""
    document: Json | None = None

    @property
    def reached_ms(self) -> int:
        """Return the sender's time, but no later than the local time."""
        return min(self.sent_at_ms, self.now_ms)


class Rejection(msgspec.Struct, frozen=True):
    """A rejection: nothing has changed. Codes that the API uses are spelled as in the API."""

    code: str
    message: str


Decision: TypeAlias = list[RunEvent] | Rejection

#: Rejection of input that arrives too late to matter.
STALE: Final = Rejection(failures.STALE, "it arrived too late to have an effect")
