"""What deciding takes and gives: a command with its facts; events, or a refusal."""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas import failures
from headwater.schemas.history import Json, RunEvent


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What is known of a command, beside the run that it is for.

    Shape:  the seed is used if a run begins, and the document is the definition that it begins on;
            None for that of its workflow's name.
    """

    workflow: str
    instance_id: str
    sent_at_ms: int
    now_ms: int
    seed: str = ""
    document: Json | None = None

    @property
    def reached_ms(self) -> int:
        """What time it is for the run: that of its sender, unless that is ahead of ours."""
        return min(self.sent_at_ms, self.now_ms)


class Rejection(msgspec.Struct, frozen=True):
    """A refusal: nothing has changed. Codes that the API knows are written as it writes them."""

    code: str
    message: str


Decision: TypeAlias = list[RunEvent] | Rejection

#: The refusal of what comes too late to be of interest.
STALE: Final = Rejection(failures.STALE, "what this is about is over")
