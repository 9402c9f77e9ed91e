"""A process that owns a partition: the production owner and host, and what is on its way in it.

A batch goes from the owner to the log record by record, and only then do its effects go on: to the
host, to the outbox, to whoever asked. Each of these ways is a queue, and the process can be gone at
any place of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.processors.replay.state import CodeRun
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.state import RunStatus
from headwater.schemas.codec import decode, encode
from headwater.schemas.history import (
    NO_CAUSE,
    CommandSent,
    HistoryAppended,
    PartitionClaimed,
    Post,
    instance_key,
)
from headwater.schemas.snapshots import SnapshotTaken
from headwater.streams.code_host.host import Host
from headwater.streams.engine.effects import Answer, Batch, Effect, Queued
from headwater.streams.engine.host_protocol import (
    Activate,
    Advanced,
    FromHost,
    HandlerDone,
    Message,
    Resolved,
    ToHost,
)
from headwater.streams.engine.live_instances import FORMAT, wake_at_ms
from headwater.streams.engine.refusal_notices import back_to_sender
from headwater.streams.engine.restore import CHECKPOINT, Taken, take_over
from headwater.streams.replay.loop import WorkflowLoop
from tests.simulation.corpus import SHAPES
from tests.simulation.engine_log import Partition, Violation
from tests.simulation.shapes import Place

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_TO_HOST: Final = msgspec.msgpack.Decoder(ToHost)
_FROM_HOST: Final = msgspec.msgpack.Decoder(FromHost)
_NAMES: Final = frozenset(name for each in SHAPES.values() for name in each.bodies)
#: Batches that may be on their way at once.
FLIGHTS_MAX: Final = 3


@dataclass
class Flight:
    """A batch on its way."""

    number: int
    keys: set[str]
    records: deque[bytes]
    effects: deque[Effect | bytes]
    size: int


class Process:
    """An owner and its host."""

    def __init__(self, world: "World", partition: Partition) -> None:
        self.world = world
        self.partition = partition
        self.skew_ms = world.draw_skew()
        self.dead = False
        #: Whether another has claimed the partition, which this one may not know yet.
        self.superseded = False
        self.flights: deque[Flight] = deque()
        self.said: deque[bytes] = deque()
        self.told: deque[ToHost] = deque()
        self.outbox: deque[Queued] = deque()
        #: Commands that no outbox holds, and the offsets of commands to reply to.
        self.backs: deque[CommandSent] = deque()
        self.replies: deque[int] = deque()
        self.sent: deque[tuple[str, int]] = deque()
        #: The checkpoint that waits until all before it is replied to.
        self.mark: SnapshotTaken | None = None
        self._now_said: list[FromHost] = []
        self._acknowledged = 0
        self._next = self._claim()
        self.epoch = self._next - 1
        taken = self._take_over()
        self.outcomes = taken.outcomes
        self.read = min(partition.replied, taken.claims.cause + 1)
        self.owner = world.rules.owner(
            partition.number,
            taken.claims,
            taken.instances,
            taken.wakes,
            workflows=_NAMES,
            number_activations=lambda: next(world.numbers),
            draw_seed=lambda: f"seed-{next(world.numbers)}",
        )
        self._boot_host()

    def _take_over(self) -> Taken:
        taking = take_over(
            self.partition, self.partition.number, self.epoch, self.partition.replied
        )
        try:
            taking.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a log in memory is read without waiting")

    def _claim(self) -> int:
        claim = HistoryAppended(
            workflow="",
            instance_id="",
            run_number=0,
            sequence=0,
            epoch=-1,
            cause=NO_CAUSE,
            at_ms=self.now_ms(),
            events=(PartitionClaimed("owner"),),
        )
        return self.partition.append(encode(claim)) + 1

    def _boot_host(self) -> None:
        workflows = {
            each.name: each for shape in self.world.shapes for each in shape.workflows(self)
        }
        self.host = Host(workflows, emit=self._emit(), now_ms=self.now_ms)

    def _emit(self) -> Callable[[FromHost], None]:
        said = self._now_said = []
        return said.append

    def now_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    # -- what the process does

    def can_turn(self) -> bool:
        due_ms = self.owner.next_due_ms()
        return len(self.flights) < FLIGHTS_MAX and bool(
            self.said
            or self.sent
            or self.read < len(self.partition.commands)
            or self.owner.has_work()
            or (due_ms is not None and due_ms <= self.now_ms())
        )

    def turn(self, commands: int, frames: int, limit: int | None) -> str:
        """Takes some of what came, decides, and stages what follows."""
        owner, now_ms = self.owner, self.now_ms()
        end = min(self.read + commands, len(self.partition.commands))
        while self.read < end:
            offset, self.read = self.read, self.read + 1
            self._receive(offset, decode(self.partition.commands[offset], CommandSent))
        count = min(frames, len(self.said))
        heard = [_FROM_HOST.decode(self.said.popleft()) for _ in range(count)]
        owner.hear(heard, now_ms)
        owner.wake(now_ms)
        while self.sent:
            owner.posts_sent(*self.sent.popleft(), now_ms)
        owner.dispatch(now_ms, limit)
        self._stage(owner.take())
        asked = ", ".join(_shown(each) for each in heard)
        return f"turn to command {self.read}, {asked}"

    def _receive(self, offset: int, sent: CommandSent) -> None:
        known = self.outcomes.pop(offset, None)
        if known is None or not self.world.rules.answers_again:
            self.owner.receive(offset, sent, self.now_ms())
            return
        hand = self.owner.instances.find(instance_key(sent.workflow, sent.instance_id))
        rejection = Rejection(known.code, known.message)
        back = back_to_sender(sent, rejection, hand.run if hand else None, self.now_ms())
        if known.code and back is not None:
            self.backs.append(back)
        self.replies.append(offset)

    def _stage(self, batch: Batch) -> None:
        if not batch:
            return
        keys = {instance_key(each.workflow, each.instance_id) for each in batch.records}
        effects = [_encoded(each) for each in batch.effects]
        records = deque(encode(record) for record in batch.records)
        self.flights.append(Flight(batch.number, keys, records, deque(effects), len(records)))

    def to_land(self) -> Flight | None:
        return next((each for each in self.flights if each.records), None)

    def land(self) -> str:
        """The next record of the earliest batch lands; the last one ends the append."""
        flight = self.to_land()
        assert flight is not None
        offset = self.partition.append(flight.records.popleft())
        between = self.partition.history[self._next : offset]
        self._next = offset + 1
        if any(isinstance(each.events[0], PartitionClaimed) for each in between):
            self.superseded = True
            if self.world.rules.checks_epoch:
                self.world.crash(self, "has lost its epoch")
                return f"{offset} is void"
        if not flight.records:
            self._acknowledged = flight.number
        if not flight.records and flight is self.flights[-1]:
            self._check_memory(flight.keys)
        events = self.partition.history[offset].events
        return f"{offset}: {', '.join(_shown(event) for event in events)}"

    def _check_memory(self, keys: Iterable[str]) -> None:
        """The owner's memory is the fold of what counts."""
        staged = self.owner.has_work(ready=False)
        if staged or self.partition.reader.claims.epoch != self.epoch:
            return
        for key in keys:
            hand = self.owner.instances.find(key)
            mine, theirs = hand.run if hand else None, self.partition.reader.states.get(key)
            if not _same(mine, theirs):
                raise Violation(f"{key}: expected {theirs}, found the owner remembering {mine}")

    def evict(self) -> str:
        """What rests is kept as bytes."""
        before_ms = self.now_ms() - self.world.random.choice([0, 1_000, 60_000])
        return f"{self.owner.evict(before_ms, self._acknowledged)} instances"

    def checkpoint(self) -> str:
        """States are written down, when nothing is on its way; the checkpoint follows them."""
        if self.flights or self.owner.has_staged():
            return "not now"
        dirty, self.owner.dirty = self.owner.dirty, set()
        for key in dirty:
            state = self.owner.instances.state(key)
            self.partition.write(key.encode(), self._snapshot(wake_at_ms(state), state))
        self.mark = self._snapshot(-1, b"")
        return f"{sorted(dirty)} at {self._next}"

    def _snapshot(self, at_ms: int, state: bytes) -> SnapshotTaken:
        return SnapshotTaken(
            format=FORMAT,
            epoch=self.epoch,
            position=self._next,
            cause=self.owner.claims.cause,
            wake_at_ms=at_ms,
            state=state,
        )

    def can_mark(self) -> bool:
        return self.mark is not None and self.partition.replied > self.mark.cause

    def write_mark(self) -> str:
        assert self.mark is not None
        self.partition.write(CHECKPOINT, self.mark)
        position, self.mark = self.mark.position, None
        return str(position)

    def can_reply(self) -> bool:
        waits = self.backs and self.world.rules.commits_after_backs
        return bool(self.replies) and not waits

    def reply(self) -> str:
        """Replies are sent, and the offset up to which they are is committed."""
        offset = self.replies.popleft()
        self.partition.replied = max(self.partition.replied, offset + 1)
        return f"to {offset}"

    def send_back(self) -> str:
        back = self.backs.popleft()
        self.world.send(back)
        return f"{type(back.command).__name__} to {back.instance_id}"

    def can_release(self) -> bool:
        if not self.flights:
            return False
        return not self.flights[0].records or self.world.rules.releases_early

    def release(self, count: int | None = None) -> str:
        """What follows from the earliest batch goes on; with a count, only a part of it."""
        flight = self.flights[0]
        effects = flight.effects if count is None else [*flight.effects][:count]
        for effect in effects:
            match effect:
                case Answer():
                    self.replies.append(effect.cause)
                case CommandSent():
                    self.backs.append(effect)
                case Queued():
                    self.outbox.append(effect)
                case _:
                    self._release(effect if isinstance(effect, bytes) else _ENCODE(effect))
        if flight.records:  # Only without the rule: they land later.
            flight.effects.clear()
            self.flights.rotate(-1)
        else:
            self.flights.popleft()
        return f"{len(effects)} effects"

    def _release(self, data: bytes) -> None:
        message = _TO_HOST.decode(data)
        match message:
            case Activate():
                key = instance_key(message.workflow, message.instance_id)
                sequence = max((each.sequence for each in message.entries.values()), default=-1)
                self._check_told(key, message.run_number, sequence, message)
            case Resolved() | Advanced() | HandlerDone():
                hand = self.owner.activation(message.activation)
                if hand is not None:
                    self._check_told(hand.key, hand.run.run_number, message.sequence, message)
            case _:
                pass
        self.told.append(message)

    def _check_told(self, key: str, run_number: int, sequence: int, message: ToHost) -> None:
        """The host is told of nothing that is not in the log."""
        run = self.partition.reader.states.get(key)
        missing = run is None or run.run_number < run_number
        if missing or (run and run.run_number == run_number and run.sequence <= sequence):
            raise Violation(f"{key}: the host is told what the log does not say: {message}")

    def tell(self, count: int) -> str:
        """The host hears what was released."""
        heard = [self.told.popleft() for _ in range(min(count, len(self.told)))]
        loop = self.world.loop
        outside = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            self.host.hear(heard)
        finally:
            asyncio._set_running_loop(outside)
        self.settle()
        return ", ".join(_shown(each) for each in heard)

    def settle(self) -> None:
        """Lets callbacks go on, and gathers what the host has to say."""
        self.world.loop.run_ready()
        self.gather()

    def gather(self) -> None:
        said = [*self._now_said, *self.host.still_running()]
        self._now_said.clear()
        if not self.dead:
            self.said.extend(_ENCODE(each) for each in said)

    def post(self, count: int | None = None) -> str:
        """Sends the posts of an instance; with a count, only some, and dies."""
        queued = self.outbox[0]
        for post in queued.posts[:count]:
            self._check_post(queued.key, post)
            if post.command is not None:
                self.world.send(
                    CommandSent(
                        command_id=f"{queued.key}#{post.number}",
                        workflow=post.workflow or "",
                        instance_id=post.instance_id or "",
                        sent_at_ms=self.now_ms(),
                        reply_to=-1,
                        command=post.command,
                    )
                )
        if count is None:
            self.outbox.popleft()
            self.sent.append((queued.key, queued.posts[-1].number))
        return f"{queued.key} {[post.number for post in queued.posts[:count]]}"

    def _check_post(self, key: str, post: Post) -> None:
        recorded = self.partition.reader.posts.get((key, post.number))
        if recorded != post:
            raise Violation(f"{key} sends {post}, of which the log says {recorded}")

    # -- how it ends

    def die(self) -> list[bytes]:
        """Everything in memory is gone; gives what may still land."""
        self.dead = True
        self.host.stop()
        self.settle()
        return [record for flight in self.flights for record in flight.records]

    def lose_host(self, reason: str, turn: int | None) -> None:
        """The host is gone, and with it what was on its way to it."""
        self.host.stop()
        self.settle()
        self.told.clear()
        self._boot_host()
        self.owner.host_gone(reason, self.now_ms(), turn=turn)

    # -- the port of callbacks

    def begin(self, place: Place) -> None:
        self.world.calls += 1
        if self._is_owner() and place in self.partition.reader.done:
            raise self.world.broken(f"{place} is called again although it is done")

    def begin_undo(self, place: Place) -> None:
        if self._is_owner() and place in self.partition.reader.undone:
            raise self.world.broken(f"{place} is rolled back again although it is done")

    def _is_owner(self) -> bool:
        return self.partition.reader.claims.epoch == self.epoch

    async def pass_time(self) -> None:
        await self.world.pass_time(self)

    async def hang(self) -> None:
        await self.world.loop.create_future()

    def end(self, place: Place) -> int:
        if self.dead:
            return 0
        self.world.ended[place] += 1
        return self.world.ended[place]

    def drawn(self, place: Place, value: object) -> None:
        known = [self.world.drawn.setdefault(place, value)]
        if place[:3] in self.partition.reader.retried and not place.key.startswith("now"):
            before = place._replace(run_number=place.run_number - 1)
            known.append(self.world.drawn.get(before, value))
        if known != [value] * len(known):
            raise self.world.broken(f"{place} was {known}, is now {value}")


def _same(mine: CodeRun | None, theirs: CodeRun | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    if theirs.ended and theirs.status is not RunStatus.ERRORED:
        # Of a run that is over for good, an owner may have kept only what a restart needs.
        bare = {"entries": {}, "open": {}, "mailbox": []}
        mine, theirs = (msgspec.structs.replace(each, **bare) for each in (mine, theirs))
    return mine == theirs and list(mine.open) == list(theirs.open)


def _encoded(effect: Effect) -> Effect | bytes:
    return _ENCODE(effect) if isinstance(effect, Message) else effect


def _shown(message: object) -> str:
    asked = getattr(message, "asked", message)
    step = getattr(asked, "step", None)
    key = getattr(step or asked, "key", "") or getattr(asked, "keys", "")
    number = getattr(message, "activation", "")
    return f"{type(asked).__name__} {number}{'/' if number and key else ''}{key}".rstrip()


#: The loop on which callbacks run: it has no timers, and comes to rest.
CallbackLoop = WorkflowLoop
