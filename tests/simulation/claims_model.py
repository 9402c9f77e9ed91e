"""One partition, its owners and its readers, with everything that can go wrong drawn from one seed.

What counts is decided by the production fold, `processors.runs.claims.Claims`. Played are Kafka
(lists; producers whose batches are delayed, delivered again or lost, and go on after their process
is gone) and the owners' protocol as ADR 0006 has it. Each rule of the protocol can be left out, to
see that the model notices.

The world checks while it runs: every record that counts fits what counted before it, an owner
releases nothing that does not count, and its memory is the fold of the log up to where it stands.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.schemas.history import (
    NO_CAUSE,
    CommandRejected,
    EventReceived,
    HistoryAppended,
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
    claims: Callable[[], Claims] = Claims


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
            else:
                self._apply(record, record.sequence + number, event)
        if record.cause != NO_CAUSE:
            if record.cause in self.outcomes:
                raise Violation(f"command {record.cause} has a second outcome at {offset}")
            if record.cause != len(self.outcomes):
                raise Violation(f"command {record.cause} has an outcome, one before it has none")
            self.outcomes[record.cause] = (offset, code)

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
        return Reader(replace(self.claims), dict(self.instances), dict(self.outcomes))

    def seen(self) -> tuple[object, ...]:
        """What two readers have to agree on."""
        claims = (self.claims.epoch, self.claims.cause, self.claims.owner)
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
        #: Outcomes whose reply is still to be sent, by command.
        self.to_reply: dict[int, tuple[int, str]] = {}


class World:
    """Kafka and its owners."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.random = random.Random(seed)
        self.rules = rules or Rules()
        self.trace: list[str] = []
        self.commands: list[tuple[str, str]] = []
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
        self.rebalances = draw() * 0.2

    def run(self, steps: int) -> None:
        """So many steps with faults, then as many without as it takes to come to rest."""
        for _ in range(steps):
            self.step(faults=True)
        self.assigned = {self.random.choice(self.owners).name}
        self.trace.append(f"faults stop, {self.assigned} stays")
        for _ in range(DRAIN_STEPS):
            if self.at_rest():
                break
            self.step(faults=False)
        else:
            raise Violation(f"no rest after {DRAIN_STEPS} steps")
        self.check_readers()

    def step(self, *, faults: bool) -> None:
        draw = self.random.random()
        if len(self.commands) < self.commands_max and draw < 0.1:
            self.commands.append((self.random.choice(INSTANCES), self.random.choice(KINDS)))
        elif draw < 0.5:
            self.deliver(faults=faults)
        elif faults and self.random.random() < self.rebalances:
            self.assigned ^= {self.random.choice(self.owners).name}
            self.trace.append(f"assigned {sorted(self.assigned)}")
        else:
            owner = self.random.choice(self.owners)
            if faults and self.random.random() < self.crashes:
                self.abandon(owner, "crashes")
            else:
                self.act(owner)

    def at_rest(self) -> bool:
        """Every command has its outcome and its reply, and nothing is under way."""
        return (
            len(self.commands) == self.commands_max
            and len(self.observer.outcomes) == len(self.commands)
            and len(self.replies) == len(self.commands)
            and not any(producer.wire for producer in self.producers())
        )

    def producers(self) -> list[Producer]:
        return [owner.producer for owner in self.owners] + self.ghosts

    # -- Kafka

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
            self.counts.append(self.observer.read(len(self.history), record))
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
            elif owner.to_reply and self.random.random() < 0.5:
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
            for cause in range(self.committed, durable.claims.cause + 1):
                owner.to_reply[cause] = durable.outcomes[cause]

    def check_memory(self, owner: Owner, end: int) -> None:
        """Its memory is the fold of the log up to where it stands."""
        assert owner.durable is not None
        if owner.durable.seen() != self.prefixes[end]:
            raise Violation(f"{owner.name} remembers what the log up to {end} does not say")

    def reply(self, owner: Owner) -> None:
        """Replies to some commands, the oldest first, and perhaps commits that it has."""
        for cause in sorted(owner.to_reply)[: self.random.randint(1, 3)]:
            self.replies.setdefault(cause, []).append(owner.to_reply.pop(cause))
            # A commit of one who is no member any more may be taken or not; he may be behind.
            if self.random.random() < 0.5:
                self.committed = cause + 1

    def decide(self, owner: Owner) -> None:
        """Decides on some commands, or on nothing but the time, and appends what that leads to."""
        ahead = owner.ahead
        assert ahead is not None
        if len(owner.flights) >= FLIGHTS_MAX:
            return
        records = []
        for _ in range(self.random.randint(1, 3)):
            record = self.decision(owner, ahead)
            if record is not None:
                records.append(record)
                ahead.apply(-1, record)
        if records:
            owner.flights.append(owner.producer.send(records))

    def decision(self, owner: Owner, ahead: Reader) -> HistoryAppended | None:
        if self.random.random() < 0.2:
            return self.by_itself(owner, ahead)
        if owner.position >= len(self.commands):
            return None
        cause, (name, kind) = owner.position, self.commands[owner.position]
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
        return a_record(name, run, sequence, owner.epoch, cause, event)

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
        for cause, outcome in reader.outcomes.items():
            if set(self.replies[cause]) != {outcome}:
                raise Violation(f"command {cause}: {outcome}, but told {self.replies[cause]}")


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
