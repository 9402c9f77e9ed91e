"""A partition's two logs in memory, and the reader who checks the laws on what counts in them."""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from headwater.processors.auditor.histories import HistoryFold, HistoryState
from headwater.processors.code.state import CONTAINERS, CodeRun, Entry
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.limits import SYSTEM
from headwater.processors.runs.state import Run
from headwater.schemas.codec import decode
from headwater.schemas.history import (
    NO_CAUSE,
    CancelRequested,
    CommandRejected,
    CommandSent,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    HistoryAppended,
    InstanceDeleted,
    LogEvent,
    LogWritten,
    Post,
    PostsQueued,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    SendEvent,
    StepCompleted,
    StepFailed,
    StepStarted,
    instance_key,
)
from headwater.schemas.records import SnapshotTaken
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from headwater.streams.engine.restore import CHECKPOINT
from tests.fakes.engines import fold
from tests.simulation.engine_disk import Disk
from tests.simulation.graph_laws import GraphLaws
from tests.simulation.job_laws import check_lease_in_time
from tests.simulation.shapes import Place, Violation

_ENDS = (RunCompleted, RunErrored, RunTerminated)
#: Records that are read at a time.
_READ = 10
#: These take no sequence.
_UNNUMBERED = (PostsSent, CommandRejected)


@dataclass
class Reader:
    """Folds a partition as any reader does, and checks each record that counts."""

    claims: Claims
    states: dict[str, Run] = field(default_factory=dict)
    #: The records of each instance that count.
    counted: dict[str, list[HistoryAppended]] = field(default_factory=dict)
    posts: dict[tuple[str, int], Post] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    received: set[tuple[str, str]] = field(default_factory=set)
    #: Entries that can never be done, opened or rolled back again.
    done: set[Place] = field(default_factory=set)
    opened: set[Place] = field(default_factory=set)
    undone: set[Place] = field(default_factory=set)
    #: Runs that have kept what was done in the run before.
    retried: set[tuple[str, str, int]] = field(default_factory=set)
    #: Runs that are cancelled.
    cancelled: set[tuple[str, str, int]] = field(default_factory=set)
    #: The place of the last record that was given to be published.
    published: int = -1
    void: int = 0
    #: Laws beyond one partition: called with each record that counts, and the state behind it.
    laws: list[Callable[[HistoryAppended, Run], None]] = field(default_factory=list)
    #: What instances had sent that are deleted.
    forgotten: list[tuple[str, Post]] = field(default_factory=list)
    _graphs: dict[str, GraphLaws] = field(default_factory=dict)

    def read(self, offset: int, record: HistoryAppended) -> bool:
        if not self.claims.admit(offset, record):
            self.void += 1
            return False
        self._cause(record)
        key = instance_key(record.workflow, record.instance_id)
        if isinstance(record.events[0], InstanceDeleted):
            self._forget(key)
            return True
        before = self.states.get(key)
        if not all(isinstance(event, CommandRejected) for event in record.events):
            self.counted.setdefault(key, []).append(record)
            self._place(record, before)
        if before is not None:
            _keeps_what_is_done(before, record)
        for event in record.events:
            self._note(key, record, event)
            if isinstance(event, PostsQueued):
                self._ordered(offset, event)
        after = fold(before, record)
        if after is not None:
            self.states[key] = after
            self._gapless(record, after)
            if isinstance(after, GraphRun):
                self._graphs.setdefault(key, GraphLaws()).read(record, after)
            _is_at_work(key, after)
            for law in self.laws:
                law(record, after)
        return True

    def _forget(self, key: str) -> None:
        """An instance is deleted that was over; it may be created anew."""
        run = self.states.pop(key, None)
        if run is not None and (run.unsent or not (run.ended or run.is_forgotten)):
            raise Violation(f"{key} is deleted before it is over: {run}")
        self.counted.pop(key, None)
        for of, number in [post for post in self.posts if post[0] == key]:
            self.forgotten.append((key, self.posts.pop((of, number))))
        for places in (self.done, self.opened, self.undone):
            places -= {position for position in places if instance_key(*position[:2]) == key}
        for runs in (self.retried, self.cancelled):
            runs -= {run for run in runs if instance_key(*run[:2]) == key}

    def _cause(self, record: HistoryAppended) -> None:
        if record.cause == NO_CAUSE:
            return
        if record.cause != len(self.outcomes):
            raise Violation(
                f"expected the outcome of command {len(self.outcomes)}, found that of "
                f"{record.cause}: {record.events}"
            )
        first = record.events[0]
        self.outcomes[record.cause] = first.code if isinstance(first, CommandRejected) else ""

    def _place(self, record: HistoryAppended, before: Run | None) -> None:
        if isinstance(record.events[0], RunStarted):
            expected = (0 if before is None else before.run_number + 1, 0)
        else:
            expected = (-1, -1) if before is None else (before.run_number, before.sequence)
        if (record.run_number, record.sequence) != expected:
            raise Violation(f"expected run and sequence {expected}, found a gap: {record}")
        ended = before is not None and before.ended
        for event in record.events:
            note = isinstance(event, LogWritten) and event.category == SYSTEM
            if ended and not note and not isinstance(event, RunStarted | PostsSent):
                raise Violation(f"expected nothing after the end, found {event} in {record}")
            ended = isinstance(event, _ENDS) or (ended and not isinstance(event, RunStarted))

    @staticmethod
    def _gapless(record: HistoryAppended, after: Run) -> None:
        numbered = sum(not isinstance(event, _UNNUMBERED) for event in record.events)
        if numbered and after.sequence != record.sequence + numbered:
            raise Violation(f"expected sequence {after.sequence} after {record}")

    def _note(self, key: str, record: HistoryAppended, event: LogEvent) -> None:
        where = (record.workflow, record.instance_id, record.run_number)
        match event:
            case RunStarted(kept=tuple(kept)):
                self.retried.add(where)
                opened = {*kept, *(item.key for item in event.reopened)}
                self._keep(self.done, where, kept)
                self._keep(self.opened, where, opened)
            case StepCompleted():
                self._once(self.done, Place(*where, event.key), "completed")
            case StepFailed(retry_at_ms=None):
                self._once(self.done, Place(*where, event.key), "failed for good")
            case EntryOpened() | StepStarted():
                self._once(self.opened, Place(*where, event.key), "opened")
            case EntryRolledBack():
                self._once(self.undone, Place(*where, event.key), "rolled back")
            case EventReceived() if "#" in event.event_id:
                if (key, event.event_id) in self.received:
                    raise Violation(f"{key} has received {event.event_id} twice")
                self.received.add((key, event.event_id))
            case PostsQueued():
                self._queued(key, event)
            case LogWritten() if event.missed:
                raise Violation(f"{key} is told of changed code, which it has not: {event}")
            case _:
                self._note_end(where, event)

    def _note_end(self, where: tuple[str, str, int], event: LogEvent) -> None:
        """What is cancelled ends as that."""
        match event:
            case CancelRequested():
                if where in self.cancelled:
                    raise Violation(f"{where} is cancelled twice")
                self.cancelled.add(where)
            case RunCompleted() | RunErrored() if where in self.cancelled:
                raise Violation(f"{where} was cancelled, and ends by {event}")
            case _:
                pass

    @staticmethod
    def _keep(found: set[Place], where: tuple[str, str, int], keys: Iterable[str]) -> None:
        """What was done once and is kept by a retry is never done again in its run either."""
        workflow, instance_id, number = where
        for key in keys:
            if Place(workflow, instance_id, number - 1, key) in found:
                found.add(Place(*where, key))

    @staticmethod
    def _once(found: set[Place], place: Place, what: str) -> None:
        if place in found:
            raise Violation(f"{place} is {what} twice")
        found.add(place)

    def _queued(self, key: str, event: PostsQueued) -> None:
        for post in event.posts:
            if (key, post.number) in self.posts or (
                post.number > 0 and (key, post.number - 1) not in self.posts
            ):
                raise Violation(f"expected the posts of {key} to be numbered, found {post}")
            self.posts[key, post.number] = post

    def _ordered(self, offset: int, event: PostsQueued) -> None:
        """What is published has its place behind all that was before, whoever owned the log."""
        for post in event.posts:
            if post.topic is None:
                continue
            if not max(self.published, self.claims.epoch) <= post.order <= offset:
                raise Violation(
                    f"expected an order of {self.published}, {self.claims.epoch} or more and at "
                    f"most {offset}, found {post}"
                )
            self.published = post.order


def _is_at_work(key: str, run: Run) -> None:
    """A run of which a step is under way does not wait."""
    if not isinstance(run, CodeRun):
        return
    for position, entry in run.entries.items():
        under_way = entry.kind is EntryKind.DO and entry.status is EntryStatus.PENDING
        if run.status is RunStatus.WAITING and under_way:
            raise Violation(f"{key} waits while {position} is under way")


def _keeps_what_is_done(before: Run, record: HistoryAppended) -> None:
    """A retry keeps each leaf that is completed, unless it is undone or an operator says so."""
    match record.events:
        case (RunStarted(kept=tuple(kept)), LogWritten(step_key=None)):
            assert isinstance(before, CodeRun)
            for key, entry in before.entries.items():
                if entry.status is not EntryStatus.COMPLETED or entry.kind in CONTAINERS:
                    continue
                if (key in kept) is entry.rolled_back:
                    raise Violation(f"{key}: expected what is done to be kept by {record}")
        case _:
            pass


def _would_end(sent: CommandSent, key: str, entry: Entry) -> bool:
    """Whether a command is an event that came in time for a wait."""
    return (
        isinstance(sent.command, SendEvent)
        and instance_key(sent.workflow, sent.instance_id) == key
        and sent.command.type in (entry.event_types or ())
        and sent.sent_at_ms <= (entry.wake_at_ms or 0)
    )


class Partition:
    """`workflow-history` and `workflow-commands`, one partition of each; an offset is an index."""

    def __init__(self, number: int, claims: Callable[[], Claims]) -> None:
        self.number = number
        self.history: list[HistoryAppended] = []
        self.commands: list[bytes] = []
        self.reader = Reader(claims())
        #: Records of dead processes that are still on the wire.
        self.strays: list[bytes] = []
        #: `workflow-snapshots`, compacted: the latest of each key, in the order of their offsets.
        self.snapshots: dict[bytes, SnapshotTaken] = {}
        #: The offset up to which commands are replied to.
        self.replied = 0
        self.disk = Disk()
        self.audited = HistoryFold(number, HistoryState())

    def append(self, data: bytes) -> int:
        """The record lands; gives its offset."""
        record = decode(data, HistoryAppended)
        self.history.append(record)
        offset = len(self.history) - 1
        self.reader.read(offset, record)
        self.audited.apply(offset, record)
        for law, subject, detail in self.audited.violations():
            raise Violation(f"the auditor finds {law} of {subject}: {detail}")
        return offset

    def check_in_time(self, data: bytes) -> None:
        """A wait ends without an event only if none had been sent: for a clock that is not fast."""
        record = decode(data, HistoryAppended)
        key = instance_key(record.workflow, record.instance_id)
        run = self.reader.states.get(key)
        if record.epoch != self.reader.claims.epoch:
            return
        if isinstance(run, GraphRun):
            unread = self.commands[len(self.reader.outcomes) :]
            check_lease_in_time(run, record, (decode(item, CommandSent) for item in unread))
        if not isinstance(run, CodeRun):
            return
        for event in record.events:
            entry = run.entries.get(event.key) if isinstance(event, EntryErrored) else None
            if entry is None or entry.kind is not EntryKind.WAIT:
                continue
            for unread in self.commands[len(self.reader.outcomes) :]:
                sent = decode(unread, CommandSent)
                if sent.reply_to >= 0 and _would_end(sent, key, entry):
                    raise Violation(f"{key}: {event.key} ended without {sent}, which had been sent")

    def write(self, key: bytes, snapshot: SnapshotTaken) -> None:
        """A snapshot lands; one that says nothing is a tombstone."""
        self.snapshots.pop(key, None)
        if snapshot.state or key == CHECKPOINT:
            self.snapshots[key] = snapshot

    # -- what a takeover reads

    async def read(
        self, _: int, start: int, end: int
    ) -> AsyncIterator[list[tuple[int, HistoryAppended]]]:
        for first in range(start, end, _READ):
            yield list(enumerate(self.history[first : min(first + _READ, end)], first))

    async def read_snapshots(self, _: int) -> AsyncIterator[tuple[bytes, SnapshotTaken | None]]:
        for snapshot in list(self.snapshots.items()):
            yield snapshot
