"""A process that owns a partition: the production driver, owner and hosts, and what is on its way.

A batch goes from the driver to the log record by record, and only then does the driver release what
follows: to hosts, to the outbox, to whoever waits for it. Each of these ways is a queue, and the
process can be gone at any place of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec
from typing_extensions import override

from headwater.processors.code.host_messages import (
    Activate,
    Advanced,
    FromHost,
    HandlerDone,
    Resolved,
)
from headwater.processors.code.state import CodeRun
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.claims import claim_of
from headwater.processors.runs.host_messages import AttemptStarted, CallTasks, HostMessage
from headwater.processors.runs.state import Run
from headwater.processors.slots.engine import SlotsEngine
from headwater.schemas.codec import decode, encode
from headwater.schemas.history import CommandSent, PartitionClaimed, Post, instance_key
from headwater.schemas.records import SnapshotTaken
from headwater.schemas.statuses import RunStatus
from headwater.streams.code_host.host import Host, ToHost
from headwater.streams.engine.code import Code
from headwater.streams.engine.effects import Effect, Queued, command_of
from headwater.streams.engine.instance_store import HistoryMark, StoredState
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.restore import CHECKPOINT, Restored, restore_partition
from headwater.streams.engine.turns import Flight
from headwater.streams.engine.turns import Partition as DrivenPartition
from tests.simulation.corpus import SHAPES
from tests.simulation.engine_log import Partition
from tests.simulation.engine_releases import Deployed
from tests.simulation.graph_corpus import GRAPH_SHAPES, tasks
from tests.simulation.graph_laws import same_graph_runs
from tests.simulation.shapes import Place, Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_TO_HOST: Final = msgspec.msgpack.Decoder(ToHost)
_FROM_HOST: Final = msgspec.msgpack.Decoder(FromHost)
_SHAPES: Final = (*SHAPES.values(), *GRAPH_SHAPES.values())
KINDS: Final = {name: kind for shape in _SHAPES for name, kind in shape.kinds().items()}
#: The hosts of a process, and which of them has a workflow.
_HOSTS: Final = range(2)
_HOST_OF: Final = {name: crc32(name.encode()) % len(_HOSTS) for name in KINDS}


@dataclass
class Append:
    """The batch of a turn on its way."""

    flight: Flight
    keys: set[str]
    records: deque[bytes]
    #: The offset of its first record that has landed.
    first: int = -1


class SimulatedHost:
    """A host of a process, and what is on its way to it and from it."""

    def __init__(self, process: "Process", number: int) -> None:
        self.number = number
        self.said: list[FromHost] = []
        self.sent: deque[bytes] = deque()
        self.to_host: deque[ToHost] = deque()
        workflows = {
            workflow.name: workflow
            for shape in process.world.shapes
            for workflow in shape.workflows(process)
            if number not in _HOSTS or _HOST_OF[workflow.name] == number
        }
        self.host = Host(
            workflows,
            emit=self.said.append,
            now_ms=process.now_ms,
            tasks={task.name: task for task in tasks(process)},
        )

    def gather(self) -> None:
        """What it says is on its way."""
        said = [*self.said, *self.host.still_running()]
        self.said.clear()
        self.sent.extend(_ENCODE(item) for item in said)


class Process:
    """An owner and its hosts."""

    def __init__(self, world: "World", partition: Partition) -> None:
        self.world = world
        self.partition = partition
        self.skew_ms = world.draw_skew()
        self.dead = False
        #: Whether another has claimed the partition, which this one may not know yet.
        self.superseded = False
        self.appends: deque[Append] = deque()
        self.outbox: deque[Queued] = deque()
        #: Commands that no outbox holds, and the offsets of commands to reply to.
        self.notices: deque[CommandSent] = deque()
        self.replies: deque[int] = deque()
        #: Snapshots on their way, and the checkpoint that waits until all before is replied to.
        self.unwritten: list[tuple[bytes, SnapshotTaken]] = []
        self.mark: HistoryMark | None = None
        #: Attempts that the host has said are under way, and since when.
        self.begun: dict[AttemptStarted, int] = {}
        self.place = partition.disk.take()
        #: As they are when it starts, and stay.
        self.limits = dict(world.limits)
        self._next = self._claim()
        self.epoch = self._next - 1
        restored = self._take_over()
        self.read = min(partition.replied, restored.claims.cause + 1)
        self.driver = world.rules.driver(len(world.partitions))
        self.deployed = deployed = Deployed(self, world.releases)
        kinds = deployed.of_apps(KINDS)
        hosts = {name: _HOST_OF[name] for name in kinds}
        self.owner = world.rules.owner(
            partition.number,
            restored.claims,
            restored.instances,
            code=Code(
                kinds,
                concurrency=self.limits,
                hosts=hosts,
                deployments=deployed.deployments,
                deployed_host=deployed.number,
            ),
            number_activations=lambda host: self.driver.number_activation(partition.number, host),
            draw_seed=lambda: f"seed-{next(world.numbers)}",
        )
        self.driven = DrivenPartition(
            partition.number,
            self.owner,
            self.epoch,
            restored.outcomes,
            start=restored.start,
            position=self._next,
            replied=self.read,
            now_ms=restored.at_ms,
        )
        self.driver.add_partition(self.driven)
        self.of_apps = [self._boot(number) for number in _HOSTS]

    def _take_over(self) -> Restored:
        engines = {**self.world.engines, SlotsEngine.kind: SlotsEngine(self.limits)}
        partition, instances = self.partition, _Instances(engines, self.place)
        taking = restore_partition(
            partition, instances, partition.number, self.epoch, partition.replied, live_max=0
        )
        try:
            taking.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a log in memory is read without waiting")

    def _claim(self) -> int:
        claim = claim_of("owner", KINDS, self.now_ms())
        return self.partition.append(encode(claim)) + 1

    def _boot(self, number: int) -> SimulatedHost:
        self.driver.host_started(number)
        return SimulatedHost(self, number)

    @property
    def hosts(self) -> list[SimulatedHost]:
        return [*self.of_apps, *self.deployed.hosts.values()]

    def boot(self, number: int) -> str:
        """The host of a deployment begins; what it was given before is given to it again."""
        self.driver.host_lost("it was not there yet", -1, host=number)
        self.deployed.hosts[number] = self._boot(number)
        return str(number)

    def follow(self) -> str:
        """Learns what was deployed."""
        if self.deployed.catch_up():
            self.owner.code_changed()
        return ""

    def now_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    # -- what the process does

    def can_turn(self) -> bool:
        due_ms = self.owner.next_due_ms()
        return self.driver.may_turn() and bool(
            any(host.sent for host in self.hosts)
            or self.driver.has_input()
            or self.read < len(self.partition.commands)
            or self.owner.has_work(ready=False)
            or self.owner.urgency(self.deployed.closed)
            or (due_ms is not None and due_ms <= self.now_ms())
        )

    def turn(self, commands: int, frames: int, limit: int | None) -> str:
        """Gives the driver some of what came, and begins the append of what it stages."""
        now_ms = self.now_ms()
        end = min(self.read + commands, len(self.partition.commands))
        if self.read < end:
            self.follow()
        while self.read < end:
            offset, self.read = self.read, self.read + 1
            sent = decode(self.partition.commands[offset], CommandSent)
            self.driven.commands.append((offset, sent))
        if self.read == len(self.partition.commands):
            self.driven.reached_ms = now_ms
        received = []
        for host in self.hosts:
            count = min(frames, len(host.sent))
            received += [_FROM_HOST.decode(host.sent.popleft()) for _ in range(count)]
        self.driver.host_sent(received)
        turn = self.driver.turn(now_ms, limit, closed=self.deployed.closed)
        if turn.incidents:
            raise Violation(f"an error was contained: {turn.incidents}")
        for flight in turn.flights:
            self._begin_append(flight)
        self._take_released()
        self._check_seen(received, self.driven.now_ms)
        shown = ", ".join(_shown(item) for item in received)
        return f"turn to command {self.read}, {shown}"

    def _check_seen(self, received: list[FromHost], now_ms: int) -> None:
        """A first attempt that has been under way for a second is in the history."""
        begun = {item: now_ms for item in received if isinstance(item, AttemptStarted)}
        self.begun = begun | self.begun
        for started, at_ms in list(self.begun.items()):
            live = self.owner._activations.find(started.activation)
            key = started.step.key
            if live is None or live.attempts.get(key) != started:
                del self.begun[started]
                continue
            if not _is_shown(live.run, started) and self.driven.reached_ms > at_ms + 1_000:
                raise Violation(f"{live.key}: {key} is under way for a second and nobody sees it")

    def _begin_append(self, flight: Flight) -> None:
        batch = flight.batch
        keys = {instance_key(record.workflow, record.instance_id) for record in batch.records}
        # What is sent later has to be what is true now.
        batch.effects[:] = [_as_it_is(effect) for effect in batch.effects]
        records = deque(encode(record) for record in batch.records)
        self.appends.append(Append(flight, keys, records))

    def to_land(self) -> Append | None:
        return next((append for append in self.appends if append.records), None)

    def land(self) -> str:
        """The next record of the earliest batch lands; the last one ends the append."""
        append = self.to_land()
        assert append is not None
        data = append.records.popleft()
        if self.skew_ms <= 0:
            self.partition.check_in_time(data)
        offset = self.partition.append(data)
        between = self.partition.history[self._next : offset]
        if append.first < 0:
            append.first = offset
        elif between:
            # Places are counted from the first: whoever finds others between gives up.
            self.world.crash(self, "finds another's record between its own")
            return f"{offset} is not behind the record before"
        self._next = offset + 1
        if any(isinstance(item.events[0], PartitionClaimed) for item in between):
            self.superseded = True
            if self.world.rules.checks_epoch:
                self.world.crash(self, "has lost its epoch")
                return f"{offset} is void"
        if not append.records and append is self.appends[-1]:
            self._check_memory(append.keys)
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
        driven = self.driven
        return f"{self.owner.evict(before_ms, driven.acknowledged, driven.position)} instances"

    def checkpoint(self) -> str:
        """States are written down, when nothing is on its way; the checkpoint follows them."""
        if self.appends or self.owner.has_staged() or self.mark is not None:
            return "not now"
        self.mark = mark = HistoryMark(self.driven.position, self.epoch, self.owner.claims.cause)
        instances = self.owner.instances
        changed = instances.take_snapshots(list(instances.take_keys()), mark.position)
        self.unwritten = [(key.encode(), _snapshot(mark, item)) for key, item in changed.items()]
        # A process may be gone when only some of them are written.
        for _ in range(self.world.disks.randint(0, len(self.unwritten))):
            self.partition.write(*self.unwritten.pop(0))
        return f"{sorted(changed)} at {mark.position}"

    def can_mark(self) -> bool:
        return self.mark is not None and self.partition.replied > self.mark.cause

    def write_mark(self) -> str:
        assert self.mark is not None
        mark, self.mark = self.mark, None
        for item in self.unwritten:
            self.partition.write(*item)
        self.partition.write(CHECKPOINT, _snapshot(mark, StoredState("", 0, -1, 0, b"")))
        self.place.set_mark(mark)
        return str(mark.position)

    def can_reply(self) -> bool:
        waits = self.notices and self.world.rules.commits_after_notices
        return bool(self.replies) and not waits

    def reply(self) -> str:
        """Replies are sent, and the offset up to which they are is committed."""
        offset = self.replies.popleft()
        self.partition.replied = max(self.partition.replied, offset + 1)
        return f"to {offset}"

    def send_notice(self) -> str:
        notice = self.notices.popleft()
        self.world.send(notice)
        return f"{type(notice.command).__name__} to {notice.instance_id}"

    def can_release(self) -> bool:
        return any(not append.records for append in self.appends)

    def release(self, count: int | None = None) -> str:
        """An append returns, not always the earliest; with a count, only a part of it goes on."""
        landed = [append for append in self.appends if not append.records]
        append = self.world.random.choice(landed)
        self.appends.remove(append)
        self.driver.appended(append.flight, append.first)
        return f"{self._take_released(count)} of {append.flight.batch.number}"

    def _take_released(self, count: int | None = None) -> str:
        released = self.driver.take_released()
        went: list[Callable[[], None]] = [
            partial(self._tell, host, item)
            for host in self.hosts
            for item in released.to_hosts.get(host.number, ())
        ]
        for answers in released.answers:
            self.notices.extend(answers.notices)
            went.append(partial(self.replies.append, answers.through))
        went += [partial(self.outbox.append, queued) for _, queued in released.posts]
        for entry in went[:count]:
            entry()
        return f"{len(went[:count])} effects"

    def _tell(self, host: SimulatedHost, message: HostMessage) -> None:
        match message:
            case Activate():
                key = instance_key(message.workflow, message.instance_id)
                sequence = max((entry.sequence for entry in message.entries.values()), default=-1)
                self._check_told(key, message.run_number, sequence, message)
                self.deployed.check_told(host, message, self.partition.reader.states.get(key))
            case CallTasks():
                self._check_called(message)
            case Resolved() | Advanced() | HandlerDone():
                live = self.owner._activations.find(message.activation)
                if live is not None:
                    self._check_told(live.key, live.run.run_number, message.sequence, message)
            case _:
                pass
        host.to_host.append(_TO_HOST.decode(_ENCODE(message)))

    def _check_told(self, key: str, run_number: int, sequence: int, message: HostMessage) -> None:
        """The host is told of nothing that is not in the log."""
        run = self.partition.reader.states.get(key)
        missing = run is None or run.run_number < run_number
        if missing or (run and run.run_number == run_number and run.sequence <= sequence):
            raise Violation(f"{key}: the host is told what the log does not say: {message}")

    def _check_called(self, message: CallTasks) -> None:
        """Attempts that a host is to begin are in the log, unless that knows already of their end.

        Whoever is superseded may call what is over: only its results count for nothing.
        """
        key = instance_key(message.workflow, message.instance_id)
        run = self.partition.reader.states.get(key)
        if not isinstance(run, GraphRun) or run.run_number < message.run_number:
            raise Violation(f"{key}: the host is told what the log does not say: {message}")
        for call in message.calls if run.run_number == message.run_number else ():
            token = run.tokens.get(int(call.reached.key))
            if int(call.reached.key) >= run.created or (
                token is not None and token.attempts + 1 < call.attempt
            ):
                raise Violation(f"{key}: the host is told what the log does not say: {call}")

    def tell(self, host: SimulatedHost, draw: Random) -> str:
        """A host hears some of what was released."""
        count = draw.randint(1, 5)
        received = [host.to_host.popleft() for _ in range(min(count, len(host.to_host)))]
        loop = self.world.loop
        outside = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            host.host.handle(received)
        finally:
            asyncio._set_running_loop(outside)
        self.settle()
        return ", ".join(_shown(item) for item in received)

    def settle(self) -> None:
        """Lets callbacks go on, and gathers what hosts have to say."""
        self.world.loop.run_ready()
        for host in [] if self.dead else self.hosts:
            host.gather()

    def post(self, count: int | None = None) -> str:
        """Sends the posts of an instance; with a count, only some, and dies."""
        queued = self.outbox[0]
        for post in queued.posts[:count]:
            self._check_post(queued.key, post)
            if post.command is not None:
                self.world.send(command_of(queued.key, post, self.now_ms()))
        if count is None:
            self.outbox.popleft()
            through = queued.posts[-1].number
            self.driver.posts_sent(self.partition.number, queued.key, through)
        return f"{queued.key} {[post.number for post in queued.posts[:count]]}"

    def _check_post(self, key: str, post: Post) -> None:
        recorded = self.partition.reader.posts.get((key, post.number))
        if recorded != post and (key, post) not in self.partition.reader.forgotten:
            raise Violation(f"{key} sends {post}, of which the log says {recorded}")

    # -- how it ends

    def die(self) -> list[bytes]:
        """Everything in memory is gone; gives what may still land."""
        self.dead = True
        self.place.release(self.world.disks)
        for host in self.hosts:
            host.host.stop()
        self.settle()
        return [record for append in self.appends for record in append.records]

    def lose_host(self, host: SimulatedHost, reason: str, turn: int | None) -> None:
        """A host is gone, and with it what was on its way to it."""
        host.host.stop()
        self.settle()
        self.driver.host_sent(_FROM_HOST.decode(item) for item in host.sent)
        self.driver.host_lost(reason, turn, host=host.number)
        hosts = self.of_apps if host.number in _HOSTS else self.deployed.hosts
        hosts[host.number] = self._boot(host.number)

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


class _Instances(LiveInstances):
    """Instances of which none may have to be quarantined: every history can be applied."""

    @override
    def quarantine(self, key: str, reason: str, error: BaseException | None = None) -> None:
        raise Violation(f"{key}: {reason}") from error


def _snapshot(mark: HistoryMark, stored: StoredState) -> SnapshotTaken:
    return SnapshotTaken(
        kind=stored.kind,
        format=stored.format,
        compressed=False,
        epoch=mark.epoch,
        position=mark.position,
        cause=mark.cause,
        wake_at_ms=stored.wake_at_ms,
        state=stored.state,
    )


def _is_shown(run: Run, started: AttemptStarted) -> bool:
    """Whether people can see an attempt that is under way."""
    key = started.step.key
    if isinstance(run, GraphRun):
        token = run.tokens.get(int(key))
        return token is None or token.attempts > 0 or token.status is TokenStatus.EXECUTING
    assert isinstance(run, CodeRun)
    return key in run.entries or started.rollback or run.rollback is not None


def _same(mine: Run | None, theirs: Run | None) -> bool:
    if isinstance(mine, GraphRun) and isinstance(theirs, GraphRun):
        return same_graph_runs(mine, theirs)
    if not isinstance(mine, CodeRun) or not isinstance(theirs, CodeRun):
        return mine == theirs
    if theirs.ended and theirs.status is not RunStatus.ERRORED:
        # Of a run that is over for good, an owner may have kept only what a restart needs.
        bare = {"entries": {}, "open": {}, "left": {}, "mailbox": []}
        mine, theirs = (msgspec.structs.replace(item, **bare) for item in (mine, theirs))
    return mine == theirs and list(mine.open) == list(theirs.open)


def _as_it_is(effect: Effect) -> Effect:
    return _TO_HOST.decode(_ENCODE(effect)) if isinstance(effect, HostMessage) else effect


def _shown(message: object) -> str:
    requested = getattr(message, "request", message)
    step = getattr(requested, "step", None)
    key = getattr(step or requested, "key", "") or getattr(requested, "keys", "")
    number = getattr(message, "activation", "")
    return f"{type(requested).__name__} {number}{'/' if number and key else ''}{key}".rstrip()
