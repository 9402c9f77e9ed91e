"""The state of an instance, as far as it does not depend on how its workflow is written.

States are changed in place, by appliers alone: a state belongs to one owner, and to copy one for
each event would make a step cost as much as its history is long.
"""

from typing import Final

import msgspec

from headwater.schemas.history import (
    Artifact,
    Child,
    Failure,
    Json,
    Label,
    Limits,
    Once,
    Parent,
    Post,
)
from headwater.schemas.statuses import ENDED, EntryKind, EntryStatus, RunStatus

__all__ = ["BEGINNING", "UNRESOLVED", "Entry", "Received", "Remembered", "Run", "Slot"]


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the mailbox that nobody has consumed."""

    event_id: str
    type: str
    payload: Json
    sent_at_ms: int


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was asked for under an idempotency key, and when it was done."""

    digest: str
    at_ms: int


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The slot that a run has of its workflow's limit of concurrency, or waits for.

    Shape:  the instance that counts the slots, the key of the limit if it has one, and whether the
            slot was granted.
    """

    slots: str
    key: Json | None = None
    granted: bool = False


class Run(msgspec.Struct, kw_only=True, array_like=True):
    """An instance in its current run.

    Shape:  kind names its engine; sequence is the number of the next event, `posted` that of the
            next post; `unsent` is the outbox; `received` the highest post number taken from each
            instance that sends events here; `once` the key under which the instance was created,
            and `keys` those of events, the oldest first (see `processors.runs.once`); `limits` what
            its code is held to, None for the usual; slot that of its workflow's limit of
            concurrency, if there is one (see `processors.runs.slots`).
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
    received: dict[str, int] = {}
    kind: str = ""
    definition: Artifact | None = None
    deployment: Artifact | None = None
    labels: tuple[Label, ...] = ()
    once: Once | None = None
    keys: dict[str, Remembered] = {}
    limits: Limits | None = None
    slot: Slot | None = None

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.status in ENDED

    @property
    def waits_for_slot(self) -> bool:
        """Whether the run begins only when it has its slot."""
        return self.slot is not None and not self.slot.granted

    @property
    def stands_still(self) -> bool:
        """Whether neither its code nor time moves it: it is paused, or waits for its slot."""
        return self.status is RunStatus.PAUSED or self.waits_for_slot

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing of it is to be kept once it rests."""
        return False


#: The sequence of an entry without a result. What a retry has kept has one below it.
UNRESOLVED: Final = -1
#: What has seen no event yet: before all sequences, those of what a retry has kept, too.
BEGINNING: Final = -(2**53)


class Entry(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """An entry.

    Shape:  ordinal counts entries in the order in which they were first reached; sequence is that
            of the event that resolved it, by which results are given; that of a loop which is open
            is of its latest commit. wake_at_ms is the end of a
            sleep, the deadline of a wait or of a child, or the time of a step's next attempt.
            created_at_ms is when the code first came to it, last_attempt_at_ms when the latest
            attempt of a step began, and completed_at_ms when it ended, however.
            max_attempts 0 is any number. `iteration` and `commits` (state by iteration) belong to a
            loop, which replays from its latest commit and rolls back from its earliest; what lies
            before its iteration `trimmed` is forgotten (see `processors.replay.trimming`).
            The code need not come to one that is `excused`: a retry has kept it behind what that
            does again, or the run was told that its code comes to it no more.
    """

    name: str
    kind: EntryKind
    status: EntryStatus
    ordinal: int
    created_at_ms: int
    updated_at_ms: int
    last_attempt_at_ms: int | None = None
    completed_at_ms: int | None = None
    sequence: int = UNRESOLVED
    attempts: int = 0
    max_attempts: int = 1
    timeout_ms: int = 0
    result: Json | None = None
    failure: Failure | None = None
    wake_at_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    limit: int | None = None
    child: Child | None = None
    iteration: int = 0
    commits: dict[int, Json] = {}
    rollback: bool = False
    rolled_back: bool = False
    rollback_attempts: int = 0
    rollback_at_ms: int = 0
    trimmed: int = 0
    excused: bool = False
