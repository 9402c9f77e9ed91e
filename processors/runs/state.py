"""State of an instance of any kind: its life cycle, and the idempotency keys that it stores.

States are changed in place, only by appliers: a state belongs to one owner, and copying it for
every event would make a step as expensive as its history is long.
"""

from typing import Final

import msgspec

from headwater.processors.hooks import HOOK_CALL
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import MAILBOX_MAX
from headwater.processors.trace_context import TraceContext, run_context
from headwater.schemas.failures import (
    EVENT_ALREADY_RECEIVED,
    IDEMPOTENCY_CONFLICT,
    INSTANCE_CREATED_BEFORE,
)
from headwater.schemas.history import (
    Artifact,
    CancelRequested,
    Child,
    EntryCompleted,
    EntryErrored,
    EventReceived,
    Failure,
    FanInActivated,
    Json,
    Label,
    Limits,
    Once,
    Parent,
    Post,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    TasksDispatched,
    TokenCompleted,
)
from headwater.schemas.statuses import ENDED, EntryKind, EntryStatus, RunStatus

_ACTIVE, _WAITING, _PAUSED = RunStatus.ACTIVE, RunStatus.WAITING, RunStatus.PAUSED

#: In this status, this event leads to that status. Any other transition cannot happen: `decide`
#: rejects it, and an applier that meets it in a history raises InvariantViolation. Events without
#: a row leave the status as it is, and none of them follows the end of a run. Code that has passed
#: its last step boundary may end while the run is paused.
TRANSITIONS: Final[dict[type, dict[RunStatus, RunStatus]]] = {
    RunStarted: dict.fromkeys(RunStatus, _ACTIVE),
    SlotAsked: {_ACTIVE: _WAITING},
    SlotGranted: {_WAITING: _ACTIVE, _PAUSED: _PAUSED},
    RunSuspended: {_ACTIVE: _WAITING},
    RunPaused: {_ACTIVE: _PAUSED, _WAITING: _PAUSED},
    RunResumed: {_PAUSED: _ACTIVE},
    # A paused run is resumed first.
    CancelRequested: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    RollbackStarted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    RunTerminated: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.TERMINATED),
    RunCompleted: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.COMPLETE),
    RunErrored: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.ERRORED),
    # Only when no attempt is left: a failed attempt that is retried resolves nothing.
    StepFailed: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    StepsRetried: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    StepCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryErrored: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    TasksDispatched: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    # Of a paused graph nothing completes or fails: this is only simulated.
    TokenCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    FanInActivated: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
}


# -- state


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
        keys: Idempotency keys of events, the oldest first (see `remember`).
        calls: Idempotency keys of calls of its hooks.
        limits: Limits of its code; None for the defaults.
        slot: Slot of its workflow's concurrency limit, if any (see `processors.runs.slots`).
        depth: Instances around it: 0 unless a parent waits for its end.
        trace: W3C trace context that it continues; empty if it begins a trace of its own.
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
    depth: int = 0
    calls: dict[str, StoredKey] = {}
    trace: str = ""

    @property
    def context(self) -> TraceContext:
        """Return the trace context of the run, which its steps and messages continue."""
        identity = (self.workflow, self.instance_id, self.run_number, self.seed)
        return run_context(*identity, self.trace)

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
        trimmed: Iterations of a loop before this one are dropped (`processors.code.state.trim`).
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


# -- idempotency keys

REMEMBERED_MS: Final = 86_400_000
REMEMBERED_MAX: Final = MAILBOX_MAX


def created_before(run: Run, once: Once | None) -> Rejection | None:
    """Return the response to a creation with a key that created the instance already, else None."""
    if once is None or run.once is None or run.once.key != once.key:
        return None
    if run.once.digest != once.digest:
        return _conflict(once, f"the creation of {run.instance_id}")
    return Rejection(
        INSTANCE_CREATED_BEFORE, f"{run.instance_id} was created by this request before"
    )


def received_before(run: Run, once: Once | None) -> Rejection | None:
    """Return the response to an event with a key that is stored in the instance, else None."""
    known = _keys_like(once.key, run).get(once.key) if once else None
    if once is None or known is None:
        return None
    if known.digest != once.digest:
        return _conflict(once, f"an event to {run.instance_id}")
    return Rejection(EVENT_ALREADY_RECEIVED, f"an event of key {_chosen(once)} was received before")


def _conflict(once: Once, what: str) -> Rejection:
    return Rejection(
        IDEMPOTENCY_CONFLICT,
        f"expected what was sent before with the idempotency key {_chosen(once)}, for {what}, "
        "found something else; use a new key for each thing that is to be done once",
    )


def _chosen(once: Once) -> str:
    """Return the key as its client chose it, without the prefix that scopes it to the client."""
    return once.key.rpartition(" ")[2]


def remember(run: Run, event: EventReceived, at_ms: int) -> None:
    """Store the key of an event, and drop keys that are too old or too many.

    The instance itself stores its keys, in its history and its state, so that two gateways, a
    client that retries, and a new owner after a crash all get the same result. The key of the
    creation is stored as long as the instance; keys of events for at least a day, at most as many
    as a mailbox holds. A client that sends more within a day and then repeats the first creates a
    new event. Calls of hooks are stored as long as the run: a link in an e-mail may be opened
    again at any time, and must not resume another wait. The run creates hooks by steps, so they
    are not many.
    """
    if event.once is None:
        return
    keys = _keys_like(event.once.key, run)
    keys[event.once.key] = StoredKey(event.once.digest, at_ms)
    if keys is run.calls:
        return
    while len(keys) > REMEMBERED_MAX or _oldest_ms(keys) <= at_ms - REMEMBERED_MS:
        del keys[next(iter(keys))]


def _keys_like(key: str, run: Run) -> dict[str, StoredKey]:
    return run.calls if key.startswith(HOOK_CALL) else run.keys


def _oldest_ms(keys: dict[str, StoredKey]) -> int:
    return next(iter(keys.values())).at_ms
