"""One partition, its owners and its readers, with everything that can go wrong drawn from one seed.

What counts is decided by the production fold, `processors.runs.claims.Claims`. Played are Kafka
(lists; producers whose batches are delayed, delivered again or lost, and go on after their process
is gone; leaders that lack the last commands) and the owners' protocol as ADR 0006 has it. Each rule
of the protocol can be left out, to see that the model notices.

The world checks while it runs: every record that counts fits what counted before it, an owner
releases nothing that does not count, and its memory is the fold of the log up to where it stands.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.schemas.history import (
    NO_CAUSE,
    NO_LEADER_EPOCH,
    CommandRejected,
    EventReceived,
    HistoryAppended,
    LeaderEpochNoted,
    LogEvent,
    LogWritten,
    PartitionClaimed,
    RunCompleted,
    RunStarted,
    RunTerminated,
)

NAMES = ("a", "b", "c")
INSTANCES = ("i", "j")
KINDS = ("start", "event", "event", "end", "restart")
FLIGHTS_MAX = 2
#: How many steps the world may take to come to rest when faults have stopped.
DRAIN_STEPS = 3_000


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass(frozen=True)
class Rules:
    """The rules of ADR 0006; a world with one of them left out is expected to fail."""

    checks_gaps: bool = True
    reads_to_own_claim: bool = True
    begins_after_cause: bool = True
    knows_its_claim_by_offset: bool = True
    stays_stopped: bool = True
    producers_refuse_holes: bool = True
    sends_replies_again: bool = True
    notes_leaders: bool = True
    compares_commands: bool = True
    watches_leaders: bool = True
    claims: Callable[[], Claims] = Claims


@dataclass(frozen=True)
class Sent:
    """A command, and the epoch of the leader that appended it."""

    number: int
    leader: int
    instance: str
    kind: str


@dataclass(frozen=True)
class Instance:
    run_number: int
    sequence: int
    running: bool


@dataclass
class Reader:
    """Any reader of the partition: owner, projector, or somebody who began at a snapshot."""

    claims: Claims
    instances: dict[str, Instance] = field(default_factory=dict)
    #: Offset and code of the outcome of each command.
    outcomes: dict[int, tuple[int, str]] = field(default_factory=dict)
    #: The lowest offset from which on commands were lost.
    lost_from: float = math.inf

    def read(self, offset: int, record: HistoryAppended) -> bool:
        """Folds a record in; says whether it counts."""
        counts = self.claims.admit(offset, record)
        if counts:
            self.apply(offset, record)
        return counts

    def apply(self, offset: int, record: HistoryAppended) -> None:
        code = ""
        for number, event in enumerate(record.events):
            if isinstance(event, CommandRejected):
                code = event.code
            elif isinstance(event, LeaderEpochNoted):
                self._lose(event)
            else:
                self._apply(record, record.sequence + number, event)
        if record.cause != NO_CAUSE:
            if record.cause in self.outcomes:
                raise Violation(f"command {record.cause} has a second outcome at {offset}")
            if record.cause != len(self.outcomes):
                raise Violation(f"command {record.cause} has an outcome, one before it has none")
            self.outcomes[record.cause] = (offset, code)

    def _lose(self, noted: LeaderEpochNoted) -> None:
        if noted.lost_from >= 0:
            self.outcomes = {
                o: reported for o, reported in self.outcomes.items() if o < noted.lost_from
            }
            self.lost_from = min(self.lost_from, noted.lost_from)

    def _apply(self, record: HistoryAppended, sequence: int, event: LogEvent) -> None:
        before = self.instances.get(record.instance_id, Instance(-1, 0, running=False))
        if isinstance(event, RunStarted):
            expected = (before.run_number + 1, 0)
            if before.running:
                raise Violation(f"{record.instance_id} starts while it is running")
        else:
            expected = (before.run_number, before.sequence)
            if not before.running:
                raise Violation(f"{record.instance_id}: {event} after its end")
        if (record.run_number, sequence) != expected:
            raise Violation(f"{record.instance_id}: expected {expected}, found sequence {sequence}")
        running = not isinstance(event, RunTerminated | RunCompleted)
        self.instances[record.instance_id] = Instance(record.run_number, sequence + 1, running)

    def copy(self) -> "Reader":
        copied = dict(self.instances), dict(self.outcomes)
        return Reader(replace(self.claims), *copied, self.lost_from)

    def seen(self) -> tuple[object, ...]:
        """What two readers have to agree on."""
        held = self.claims
        claims = (held.epoch, held.cause, held.owner, held.leader_epoch)
        return (*claims, tuple(sorted(self.instances.items(), key=str)), tuple(self.outcomes))


@dataclass(eq=False)
class Batch:
    producer: "Producer"
    number: int
    records: list[HistoryAppended]
    first: int | None = None


@dataclass(eq=False)
class Producer:
    """An idempotent producer: in order, and each batch once, however often it is delivered."""

    wire: deque[Batch] = field(default_factory=deque)
    sent: int = 0
    #: The number of the batch that the broker takes next.
    wanted: int = 0

    def send(self, records: list[HistoryAppended]) -> Batch:
        batch = Batch(self, self.sent, records)
        self.sent += 1
        self.wire.append(batch)
        return batch


class Owner:
    """A process that may own the partition: everything here is gone when it crashes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.producer = Producer()
        self.claim: Batch | None = None
        self.position = 0
        self.reset()

    def reset(self) -> None:
        """Drops what it knows of the partition; what it has sent stays under way."""
        self.phase = "idle"
        self.epoch = self.next = UNCLAIMED
        self.read_to = 0
        self.end = 0
        #: What is acknowledged and counts, and what is decided on top of it.
        self.durable: Reader | None = None
        self.ahead: Reader | None = None
        self.flights: deque[Batch] = deque()
        self.acknowledged: deque[Batch] = deque()
        #: Outcomes whose reply is still to be sent, by command; and of commands that were decided
        #: before, which are read again to know who sent them.
        self.to_reply: dict[int, tuple[int, str]] = {}
        self.to_reply_again: dict[int, tuple[int, str]] = {}
        #: The leader of the command before its position, the one that the log knows of, and what
        #: the log is still to be told of that.
        self.leader = self.noted = NO_LEADER_EPOCH
        self.notes: list[HistoryAppended] = []


class World:
    """Kafka and its owners."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.random = random.Random(seed)
        self.rules = rules or Rules()
        self.trace: list[str] = []
        self.commands: list[Sent] = []
        self.leader = self.sent = 0
        #: Offset and code of the outcome of each command that was decided, by its number.
        self.decided: dict[int, tuple[int, str]] = {}
        self.history: list[HistoryAppended] = []
        self.replies: dict[int, list[tuple[int, str]]] = {}
        self.committed = 0
        self.observer = Reader(self.rules.claims())
        self.counts: list[bool] = []
        #: What a reader of so many records has to see.
        self.prefixes = [self.observer.seen()]
        self.owners = [Owner(name) for name in NAMES[: self.random.randint(2, 3)]]
        #: Who believes to have the partition assigned. Kafka means one; a message may be late.
        self.assigned = {self.owners[0].name}
        self.ghosts: list[Producer] = []
        self.commands_max = self.random.randint(2, 12)
        draw = self.random.random
        self.crashes, self.losses, self.retries = draw() * 0.1, draw() * 0.2, draw() * 0.4
        self.rebalances, self.elections = draw() * 0.2, draw() * 0.1

    def run(self, steps: int) -> None:
        """So many steps with faults, then as many without as it takes to come to rest."""
        for _ in range(steps):
            self.step(faults=True)
        stays = self.random.choice(self.owners)
        self.assigned = {stays.name}
        self.trace.append(f"faults stop, {stays.name} stays")
        superseded = stays.phase == "owning" and stays.epoch != self.observer.claims.epoch
        if superseded and stays.position >= len(self.commands):
            # No command will tell it that another had the partition, which it got back from that.
            stays.reset()
        for _ in range(DRAIN_STEPS):
            if self.at_rest():
                break
            self.step(faults=False)
        else:
            raise Violation(f"no rest after {DRAIN_STEPS} steps")
        self.check_readers()

    def step(self, *, faults: bool) -> None:
        draw = self.random.random()
        if self.sent < self.commands_max and draw < 0.1:
            name, kind = self.random.choice(INSTANCES), self.random.choice(KINDS)
            self.commands.append(Sent(self.sent, self.leader, name, kind))
            self.sent += 1
        elif draw < 0.5:
            self.deliver(faults=faults)
        elif faults and self.random.random() < self.rebalances:
            self.assigned ^= {self.random.choice(self.owners).name}
            self.trace.append(f"assigned {sorted(self.assigned)}")
        elif faults and self.random.random() < self.elections:
            self.elect()
        else:
            owner = self.random.choice(self.owners)
            if faults and self.random.random() < self.crashes:
                self.abandon(owner, "crashes")
            else:
                self.act(owner)

    def at_rest(self) -> bool:
        """Every command that is left has its outcome and reply, and nothing is under way."""
        left = {sent.number for sent in self.commands}
        return (
            self.sent == self.commands_max
            and left <= self.decided.keys()
            and left <= self.replies.keys()
            and not any(producer.wire for producer in self.producers())
        )

    def producers(self) -> list[Producer]:
        return [owner.producer for owner in self.owners] + self.ghosts

    # -- Kafka

    def elect(self) -> None:
        """Commands get another leader, which may lack the last of them."""
        self.leader += self.random.randint(1, 2)
        left = self.random.randint(0, len(self.commands))
        if self.random.random() < 0.5:
            del self.commands[left:]
        self.trace.append(f"leader {self.leader} has {len(self.commands)} commands")

    def end_of(self, leader: int) -> int:
        """Where the epoch of a leader ends, or the last one before it."""
        return sum(sent.leader <= leader for sent in self.commands)

    def deliver(self, *, faults: bool) -> None:
        """The next batch of a producer gets to the broker, or gets lost, or its answer does."""
        busy = [producer for producer in self.producers() if producer.wire]
        if not busy:
            return
        producer = self.random.choice(busy)
        batch = producer.wire[0]
        owner = next((o for o in self.owners if o.producer is producer), None)
        lost = faults and self.random.random() < self.losses
        hole = self.rules.producers_refuse_holes and batch.number > producer.wanted
        if lost or hole:
            producer.wire.popleft()
            self.trace.append(f"batch {batch.number} of {owner.name if owner else '?'} is lost")
            if owner is not None:
                self.abandon(owner, "is told of an error")
            return
        if batch.first is None:
            batch.first = self.append(batch.records)
            producer.wanted = batch.number + 1
        if faults and self.random.random() < self.retries:
            return  # The answer gets lost; the batch is sent again and found to be there.
        producer.wire.popleft()
        if owner is not None and (batch is owner.claim or batch in owner.flights):
            owner.acknowledged.append(batch)

    def append(self, records: list[HistoryAppended]) -> int:
        first = len(self.history)
        for record in records:
            counts = self.observer.read(len(self.history), record)
            if counts and record.cause != NO_CAUSE:
                if record.at_ms in self.decided:
                    raise Violation(f"command number {record.at_ms} has a second outcome")
                self.decided[record.at_ms] = self.observer.outcomes[record.cause]
            self.counts.append(counts)
            self.history.append(record)
            self.prefixes.append(self.observer.seen())
        return first

    # -- owners

    def abandon(self, owner: Owner, why: str) -> None:
        """A process ends, or starts over with a new producer; the old one's batches live on."""
        self.trace.append(f"{owner.name} {why}")
        self.ghosts.append(owner.producer)
        owner.producer, owner.claim = Producer(), None
        owner.reset()

    def act(self, owner: Owner) -> None:
        """One step of an owner: what comes first is as likely to be interrupted as what is last."""
        if owner.acknowledged:
            self.acknowledge(owner, owner.acknowledged.popleft())
        elif owner.phase == "reading":
            self.read(owner)
        elif owner.phase == "idle" and owner.name in self.assigned and owner.claim is None:
            owner.end = len(self.history)
            claim = a_record("", -1, 0, UNCLAIMED, NO_CAUSE, PartitionClaimed(owner.name))
            owner.claim = owner.producer.send([claim])
        elif owner.phase == "owning":
            if owner.name not in self.assigned and self.random.random() < 0.5:
                owner.reset()
            elif (owner.to_reply or owner.to_reply_again) and self.random.random() < 0.5:
                self.reply(owner)
            else:
                self.decide(owner)

    def acknowledge(self, owner: Owner, batch: Batch) -> None:
        first = batch.first
        assert first is not None
        if batch is owner.claim:
            owner.reset()
            owner.claim, owner.phase, owner.epoch, owner.next = None, "reading", first, first + 1
            owner.durable = Reader(self.rules.claims())
            owner.end = first + 1 if self.rules.reads_to_own_claim else min(owner.end, first)
            self.trace.append(f"{owner.name} has claimed at {first}")
            return
        if not owner.flights or batch is not owner.flights[0]:
            return
        owner.flights.popleft()
        if self.rules.checks_gaps and self.superseded(owner, first):
            self.trace.append(f"{owner.name} has lost epoch {owner.epoch}")
            if self.rules.stays_stopped:
                owner.reset()
            owner.next = first + len(batch.records)
            return
        self.release(owner, first, batch.records)

    def superseded(self, owner: Owner, first: int) -> bool:
        for record in self.history[owner.next : first]:
            claim = record.events[0]
            if isinstance(claim, PartitionClaimed):
                mine = claim.owner == owner.name and not self.rules.knows_its_claim_by_offset
                if not mine:
                    return True
        return False

    def release(self, owner: Owner, first: int, records: list[HistoryAppended]) -> None:
        """An owner acts on records: they must count, for everybody and for ever."""
        durable = owner.durable
        assert durable is not None
        for offset, record in enumerate(records, first):
            if not self.counts[offset]:
                raise Violation(f"{owner.name} acts on offset {offset}, which does not count")
            durable.read(offset, record)
            if record.cause != NO_CAUSE:
                owner.to_reply[record.cause] = durable.outcomes[record.cause]
        owner.next = first + len(records)
        self.check_memory(owner, owner.next)

    def read(self, owner: Owner) -> None:
        durable = owner.durable
        assert durable is not None
        stop = min(owner.end, owner.read_to + self.random.randint(1, 9))
        for offset in range(owner.read_to, stop):
            durable.read(offset, self.history[offset])
        owner.read_to = stop
        if stop < owner.end:
            return
        if not self.rules.reads_to_own_claim:
            durable.read(owner.epoch, self.history[owner.epoch])
        self.check_memory(owner, owner.epoch + 1)
        owner.phase, owner.ahead = "owning", durable.copy()
        if self.rules.begins_after_cause:
            owner.position = durable.claims.cause + 1
        else:
            owner.position = max(owner.position, self.committed)
        if self.rules.sends_replies_again:
            for cause in range(min(self.committed, durable.lost_from), durable.claims.cause + 1):
                owner.to_reply_again[cause] = durable.outcomes[cause]
        owner.leader = owner.noted = durable.claims.leader_epoch
        if self.rules.compares_commands and owner.noted != NO_LEADER_EPOCH:
            self.compare(owner, owner.ahead)

    def compare(self, owner: Owner, ahead: Reader) -> None:
        """Whether Kafka still has all commands that have outcomes."""
        end = self.end_of(owner.noted)
        if end <= ahead.claims.cause:
            self.trace.append(f"{owner.name} has lost commands from {end} on")
            self.note(owner, ahead, LeaderEpochNoted(owner.noted, end))
            owner.position = end
            again = owner.to_reply_again.items()
            owner.to_reply_again = {cause: reported for cause, reported in again if cause < end}

    def note(self, owner: Owner, ahead: Reader, noted: LeaderEpochNoted) -> None:
        record = a_record("", -1, 0, owner.epoch, NO_CAUSE, noted)
        ahead.apply(-1, record)
        owner.notes.append(record)

    def lose(self, owner: Owner, why: str) -> None:
        """It takes the partition over again."""
        self.trace.append(f"{owner.name} {why}")
        owner.reset()

    def check_memory(self, owner: Owner, end: int) -> None:
        """Its memory is the fold of the log up to where it stands."""
        assert owner.durable is not None
        if owner.durable.seen() != self.prefixes[end]:
            raise Violation(f"{owner.name} remembers what the log up to {end} does not say")

    def reply(self, owner: Owner) -> None:
        """Replies to some commands, the oldest first, and perhaps commits that it has."""
        again = owner.to_reply_again
        for cause in sorted(again or owner.to_reply)[: self.random.randint(1, 3)]:
            if again:
                read = self.commands[cause] if cause < len(self.commands) else None
                if read is None or read.leader > owner.noted:
                    self.lose(owner, "finds another command where one has its outcome")
                    return
                number, reported = read.number, again.pop(cause)
            else:
                reported = owner.to_reply.pop(cause)
                number = self.history[reported[0]].at_ms
            self.replies.setdefault(number, []).append(reported)
            # A commit of one who is no member any more may be taken or not; he may be behind.
            if self.random.random() < 0.5:
                self.committed = cause + 1

    def decide(self, owner: Owner) -> None:
        """Decides on some commands, or on nothing but the time, and appends what that leads to."""
        ahead = owner.ahead
        assert ahead is not None
        if len(owner.flights) >= FLIGHTS_MAX:
            return
        records: list[HistoryAppended] = []
        for _ in range(self.random.randint(1, 3)):
            record = self.decision(owner, ahead)
            if owner.phase != "owning":
                return
            records += owner.notes
            owner.notes = []
            if record is not None:
                records.append(record)
                ahead.apply(-1, record)
        if records:
            owner.flights.append(owner.producer.send(records))

    def decision(self, owner: Owner, ahead: Reader) -> HistoryAppended | None:
        if self.random.random() < 0.2:
            return self.by_itself(owner, ahead)
        sent = self.next_command(owner, ahead)
        if sent is None:
            return None
        cause, name, kind = owner.position, sent.instance, sent.kind
        owner.position += 1
        now = ahead.instances.get(name)
        run, sequence = (now.run_number, now.sequence) if now else (-1, 0)
        event: LogEvent = CommandRejected("refused", kind)
        match kind:
            case "start" if now is None:
                event, run, sequence = RunStarted("{}", ""), 0, 0
            case "restart" if now is not None and not now.running:
                event, run, sequence = RunStarted("{}", ""), run + 1, 0
            case "event" if now is not None and now.running:
                event = EventReceived(str(cause), "", "", 0)
            case "end" if now is not None and now.running:
                event = RunTerminated("")
        record = a_record(name, run, sequence, owner.epoch, cause, event)
        return msgspec.structs.replace(record, at_ms=sent.number)

    def next_command(self, owner: Owner, ahead: Reader) -> Sent | None:
        """The command at the position of an owner, if that follows those that it has read."""
        left = len(self.commands)
        sent = self.commands[owner.position] if owner.position < left else None
        leader = owner.leader if sent is None else sent.leader
        cut = owner.position > left
        if self.rules.watches_leaders and owner.leader != NO_LEADER_EPOCH:
            cut = self.end_of(owner.leader) < owner.position
        if cut:
            self.lose(owner, "finds that what it has read is lost")
            return None
        if sent is not None and leader > owner.noted and self.rules.notes_leaders:
            self.note(owner, ahead, LeaderEpochNoted(leader))
            owner.noted = leader
        owner.leader = leader
        return sent

    def by_itself(self, owner: Owner, ahead: Reader) -> HistoryAppended | None:
        """A step or a timer: something that no command caused."""
        running = [pair for pair in ahead.instances.items() if pair[1].running]
        if not running:
            return None
        name, now = self.random.choice(running)
        events: list[LogEvent] = [LogWritten("info", "step", owner.name)]
        if self.random.random() < 0.2:
            events.append(RunCompleted("null"))
        return a_record(name, now.run_number, now.sequence, owner.epoch, NO_CAUSE, *events)

    # -- at the end

    def check_readers(self) -> None:
        """Whoever reads from the start, or goes on from anywhere, comes to the same."""
        middle = self.random.randint(0, len(self.history))
        reader = Reader(self.rules.claims())
        for offset, record in enumerate(self.history):
            if offset == middle:
                if reader.seen() != self.prefixes[middle]:
                    raise Violation(f"two readers differ at {middle}")
                reader = reader.copy()
            if reader.read(offset, record) != self.counts[offset]:
                raise Violation(f"two readers differ about {offset}")
        if reader.seen() != self.prefixes[-1]:
            raise Violation("two readers differ at the end")
        for number, reported in self.replies.items():
            if set(reported) != {self.decided[number]}:
                raise Violation(f"command {number}: {self.decided[number]}, but told {reported}")


def a_record(
    instance: str, run: int, sequence: int, epoch: int, cause: int, *events: LogEvent
) -> HistoryAppended:
    return HistoryAppended(
        workflow="w" if instance else "",
        instance_id=instance,
        run_number=run,
        sequence=sequence,
        epoch=epoch,
        cause=cause,
        at_ms=0,
        events=events,
    )
