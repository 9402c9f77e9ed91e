"""State of an instance, as far as it does not depend on the kind of its workflow.

States are changed in place, only by appliers: a state belongs to one owner, and copying it for
every event would make a step as expensive as its history is long.
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

__all__ = ["BEGINNING", "UNRESOLVED", "Entry", "Received", "Run", "Slot", "StoredKey"]


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the mailbox that is not consumed yet."""

    event_id: str
    type: str
    payload: Json
    sent_at_ms: int


class StoredKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Digest of a request under an idempotency key, and the time of its execution."""

    digest: str
    at_ms: int


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The slot that a run has or waits for, under its workflow's concurrency limit.

    Attributes:
        slots: Instance that counts the slots.
        key: Key of the limit, if it has one.
        granted: Whether the slot was granted.
    """

    slots: str
    key: Json | None = None
    granted: bool = False


class Run(msgspec.Struct, kw_only=True, array_like=True):
    """An instance in its current run.

    Attributes:
        kind: Name of its engine.
        sequence: Sequence of the next event.
        posted: Number of the next post.
        unsent: The outbox.
        received: Highest post number received from every instance that sends events here.
        once: Idempotency key under which the instance was created.
        keys: Idempotency keys of events, the oldest first (see `processors.runs.once`).
        limits: Limits of its code; None for the defaults.
        slot: Slot of its workflow's concurrency limit, if any (see `processors.runs.slots`).
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
    keys: dict[str, StoredKey] = {}
    limits: Limits | None = None
    slot: Slot | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.status in ENDED

    @property
    def waits_for_slot(self) -> bool:
        """Whether the run starts only when its slot is granted."""
        return self.slot is not None and not self.slot.granted

    @property
    def is_halted(self) -> bool:
        """Whether neither its code nor timers change it: it is paused, or waits for its slot."""
        return self.status is RunStatus.PAUSED or self.waits_for_slot

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing of it has to be kept when it becomes idle."""
        return False


#: Sequence of an entry without a result. Entries kept by a retry have lower ones.
UNRESOLVED: Final = -1
#: Sequence before all others, including those of entries kept by a retry.
BEGINNING: Final = -(2**53)


class Entry(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """An entry.

    Attributes:
        ordinal: Position in the order in which entries were first reached.
        sequence: Sequence of the event that resolved it, which orders results during replay; for
            an open loop, that of its latest commit.
        wake_at_ms: End of a sleep, deadline of a wait or child, or time of a step's next attempt.
        created_at_ms: When the code first reached it.
        last_attempt_at_ms: When the latest attempt of a step started.
        completed_at_ms: When it ended, successfully or not.
        max_attempts: 0 for any number.
        iteration: Current iteration of a loop.
        commits: State of a loop by iteration. It replays from the latest and rolls back from the
            earliest.
        trimmed: Iterations of a loop before this one are dropped (`processors.replay.trimming`).
        excused: Whether the code need not reach it again: a retry kept it although it came after
            an entry that is executed again, or a log line stated that the code skips it.
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
