"""What deciding gives: events, or a refusal."""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas import failures
from headwater.schemas.history import RunEvent


class Rejection(msgspec.Struct, frozen=True):
    """A refusal: nothing has changed. Codes that the API knows are written as it writes them."""

    code: str
    message: str


Decision: TypeAlias = list[RunEvent] | Rejection

#: The refusal of what comes too late to be of interest.
STALE: Final = Rejection(failures.STALE, "what this is about is over")
