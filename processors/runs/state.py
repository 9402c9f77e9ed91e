"""The state of an instance, as far as it does not depend on how its workflow is written.

States are changed in place, by appliers alone: a state belongs to one owner, and to copy one for
each event would make a step cost as much as its history is long.
"""

import msgspec

from headwater.schemas.history import Failure, Json, Parent, Post
from headwater.schemas.statuses import ENDED, RunStatus

__all__ = ["ENDED", "Received", "Run", "RunStatus"]


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the mailbox that nobody has consumed."""

    event_id: str
    type: str
    payload: Json
    sent_at_ms: int


class Run(msgspec.Struct, kw_only=True, array_like=True):
    """An instance in its current run.

    Shape:  sequence is the number of the next event; `posted` that of the next post; `unsent` the
            outbox; `heard` the highest post number taken from each instance that sends events here.
    """

    workflow: str
    instance_id: str
    run_number: int
    sequence: int
    status: RunStatus
    params: Json
    seed: str
    parent: Parent | None
    created_at_ms: int
    started_at_ms: int
    updated_at_ms: int
    output: Json | None = None
    failure: Failure | None = None
    mailbox: list[Received] = []
    unsent: list[Post] = []
    posted: int = 0
    heard: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.status in ENDED
