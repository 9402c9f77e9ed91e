"""A world: partitions, the processes that own them, clients, and all that can go wrong.

What is played and what is of production says `engine.py`.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.state import Run
from headwater.schemas.codec import encode
from headwater.schemas.history import (
    CancelRun,
    Command,
    CommandSent,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
    instance_key,
)
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.values import encode as json_of
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.owner import Owner
from headwater.streams.kafka.records import partition_of
from headwater.streams.replay.loop import WorkflowLoop
from tests.fakes.drawn_graphs import EVENTS, INPUT
from tests.fakes.engines import ENGINES
from tests.simulation.engine_laws import check_replays, held_by_hosts, left_standing, undelivered
from tests.simulation.engine_log import Partition
from tests.simulation.engine_process import KINDS, Process
from tests.simulation.engine_releases import Releases
from tests.simulation.graph_corpus import graphs
from tests.simulation.graph_laws import agrees_with_the_model
from tests.simulation.graph_workers import Workers
from tests.simulation.job_laws import workers_were_told_the_truth
from tests.simulation.shapes import Place, Shape, Violation
from tests.simulation.slot_laws import Guests, SlotLaws, no_slot_is_left

if TYPE_CHECKING:
    from headwater.processors.runs.slots import Concurrency
    from tests.simulation.engine_switches import Switches

START_MS: Final = 1_767_225_600_000
#: What a world may take to come to rest when faults have stopped; most need less than 500.
DRAIN_STEPS: Final = 30_000
#: All jumps of the clock together must stay far below `corpus.LONG`.
JUMPS_MAX: Final = 20
JUMP_MAX_MS: Final = 86_400_000
TURNS_LOST_MAX: Final = 2
#: Retries of a graph that has failed when faults have stopped.
MENDED_MAX: Final = 2


@dataclass(frozen=True)
class Rules:
    """Rules of driver, owner and log; a world with one of them left out is expected to fail."""

    checks_epoch: bool = True
    commits_after_notices: bool = True
    claims: Callable[[], Claims] = Claims
    owner: Callable[..., Owner] = Owner
    driver: Callable[[int], Driver] = Driver


@dataclass
class Root:
    """An instance that a client starts, and what it still sends it."""

    shape: Shape
    variant: int
    script: list[tuple[str, object]] = field(default_factory=list)
    #: Whether an operator has ended or restarted it, so that it may end otherwise.
    ended_early: bool = False
    #: How often it was retried since the faults have stopped.
    mended: int = 0

    @property
    def instance_id(self) -> str:
        return f"i{self.variant}"


class World:
    """Some partitions, their owners, and the clients of a few instances."""

    def __init__(
        self,
        seed: int | str,
        roots: list[Root],
        rules: Rules | None = None,
        partitions: int = 3,
        *,
        released: bool = False,
        switches: "type[Switches] | None" = None,
    ) -> None:
        self.random = random.Random(seed)
        self.disks = random.Random(f"disks of {seed}")
        self.rules = rules or Rules()
        self.roots = roots
        self.shapes = [root.shape for root in roots]
        self.now_ms = START_MS
        self.numbers = itertools.count(1)
        #: Callbacks run here: it has no timers, and comes to rest.
        self.loop = WorkflowLoop(lambda place, text: None)
        self.trace: list[tuple[object, ...]] = []
        self.faulty = False
        self.rates: dict[str, float] = {}
        self.seen: Counter[str] = Counter()
        self.calls = 0
        self.ended: Counter[Place] = Counter()
        self.drawn: dict[Place, object] = {}
        self.violation: Violation | None = None
        #: Callbacks that take time: when they are through, whose they are, and what ends them.
        self.sleepers: list[tuple[int, Process, asyncio.Future[None]]] = []
        made = [graph for root in roots if root.shape.graphs for graph in graphs(root.variant)]
        self.engines = {**ENGINES, GraphEngine.kind: GraphEngine(made)}
        #: An operator who ends children of graphs; without one, all other worlds stay as they were.
        self.meddler = random.Random(f"meddler of {seed}") if made else None
        #: Draws of its own, so that all other worlds stay as they were.
        self.canceller = random.Random(f"canceller of {seed}")
        self.workers = Workers(self, seed)
        self.partitions = [Partition(n, self.rules.claims) for n in range(partitions)]
        made_of = switches or (Releases if released else None)
        self.releases = made_of and made_of(self, seed, KINDS)
        self._limit(seed)
        self.owners: dict[int, Process] = {}
        #: Events that a program may send once more.
        self.again: list[tuple[Root, SendEvent]] = []
        self.zombies: list[Process] = []
        for number, root in enumerate(roots):
            self._begin(root, number, signal=random.Random(f"signals of {seed}").random() < 0.3)

    def _limit(self, seed: int | str) -> None:
        """Limits of concurrency, the laws of them, and clients of those who wait."""
        #: As whoever takes a partition over next knows them.
        self.limits: dict[str, Concurrency | None] = {
            name: shape.limits.get(name) for shape in self.shapes for name in shape.kinds()
        }
        self.slots = SlotLaws(self)
        limited = any(shape.limits for shape in self.shapes)
        self.guests = Guests(self, seed, "guest") if limited else None
        for partition in self.partitions if limited else ():
            partition.reader.laws.append(self.slots.read)

    def _begin(self, root: Root, number: int, *, signal: bool) -> None:
        """A client starts a root, or a program does by an event, which it may send again."""
        provided = {"variant": root.variant} | (INPUT if root.shape.graphs else {})
        params = json_of(provided, "params")
        if not signal:
            self.tell(root, StartRun(params))
            return
        event_id = f"~rules/{number}#1"
        first = SendEvent(event_id, "signal", "1", Sender("~rules", str(number), 0, 1), params)
        self.again.append((root, first))
        self.tell(root, first)

    # -- what the processes ask of the world

    def send(self, sent: CommandSent) -> None:
        key = instance_key(sent.workflow, sent.instance_id).encode()
        partition = self.partitions[partition_of(key, len(self.partitions))]
        times = 2 if self._strikes("twice") else 1
        partition.commands += [encode(sent)] * (times if sent.reply_to < 0 else 1)

    def tell(self, root: Root, command: Command, instance_id: str | None = None) -> None:
        """A client sends a command."""
        self.command(root.shape.name, instance_id or root.instance_id, command)

    def command(self, workflow: str, instance_id: str, command: Command) -> CommandSent:
        sent = CommandSent(
            command_id=f"cmd-{next(self.numbers)}",
            workflow=workflow,
            instance_id=instance_id,
            sent_at_ms=self.now_ms,
            reply_to=0,
            command=command,
        )
        self.send(sent)
        return sent

    def draw_skew(self) -> int:
        return self.random.randint(-3_000, 3_000) if self._strikes("skew") else 0

    async def pass_time(self, process: Process) -> None:
        """Takes the time of a callback: none, some seconds, or more than its timeout."""
        kind = self.random.random()
        if kind < 0.4:
            return
        slow = self.faulty and kind > 0.97
        delay_ms = 900_000 if slow else self.random.randint(0, 8_000)
        future: asyncio.Future[None] = self.loop.create_future()
        self.sleepers.append((self.now_ms + delay_ms, process, future))
        await future

    def broken(self, what: str) -> BaseException:
        """Takes note of a violation in authors' code, where raising alone may be caught."""
        self.violation = self.violation or Violation(what)
        return self.violation

    # -- what happens

    def step(self) -> bool:
        """One thing that can happen does; False when nothing can without time."""
        if self.faulty:
            self._fault()
        possible = self._possible()
        if not possible:
            return False
        name, action = self.random.choice(possible)
        self.trace.append((name,))
        self.trace[-1] = (name, action())
        if self._strikes("torn"):
            self._tear(name)
        if self.violation is not None:
            raise self.violation
        return True

    def _possible(self) -> list[tuple[str, Callable[[], object]]]:
        result: list[tuple[str, Callable[[], object]]] = []
        for partition in self.partitions:
            if partition.number not in self.owners:
                result.append((f"{partition.number} claim", lambda p=partition: self.claim(p)))
            if partition.strays:
                result.append((f"{partition.number} stray", lambda p=partition: self._stray(p)))
        for process in (*self.owners.values(), *self.zombies):
            result += self._possible_of(process)
        if self.meddler is not None and self.workers.can_act():
            result.append(("a worker", self.workers.act))
        due = [sleeper for sleeper in self.sleepers if sleeper[0] <= self.now_ms]
        if due:
            result.append(("callback", lambda: self._wake(self.random.choice(due))))
        return result

    def _possible_of(self, process: Process) -> list[tuple[str, Callable[[], object]]]:
        draw = self.random
        name = f"{process.partition.number}{'z' if process in self.zombies else ''} "
        result: list[tuple[str, Callable[[], object]]] = []
        if process.can_turn():
            frames = draw.randint(0, 5) if self.faulty else 1_000
            limit = draw.choice([None, 1]) if self.faulty else None
            few = 0 if self.faulty else 1
            result.append(
                (name + "turn", lambda: process.turn(draw.randint(few, 4), frames, limit))
            )
        if process.to_land():
            result.append((name + "lands", process.land))
        if process.can_release():
            result.append((name + "releases", process.release))
        result += [(name + what, act) for what, act in process.deployed.possible()]
        for host in process.hosts:
            if host.to_host:
                tell = partial(process.tell, host, draw)
                result.append((f"{name}tells {host.number}", tell))
        if process.outbox:
            result.append((name + "posts", process.post))
        if process.notices:
            result.append((name + "sends a notice", process.send_notice))
        if process.can_reply():
            result.append((name + "replies", process.reply))
        if process.can_mark():
            result.append((name + "checkpoint", process.write_mark))
        return result

    def claim(self, partition: Partition) -> str:
        process = self.owners[partition.number] = Process(self, partition)
        return f"epoch {process.epoch}"

    def _stray(self, partition: Partition) -> str:
        self.seen["strays"] += 1
        return f"at {partition.append(partition.strays.pop(0))}"

    def _wake(self, sleeper: tuple[int, Process, asyncio.Future[None]]) -> str:
        self.sleepers.remove(sleeper)
        _, process, future = sleeper
        if not future.done():
            future.set_result(None)
        process.settle()
        return f"of {process.partition.number}"

    # -- faults

    def _strikes(self, fault: str) -> bool:
        strikes = self.faulty and self.random.random() < self.rates.get(fault, 0)
        self.seen[fault] += strikes
        return strikes

    def _fault(self) -> None:
        for fault in _FAULTS:
            if self._strikes(fault):
                getattr(self, f"_do_{fault}")()
        if self.canceller.random() < self.rates.get("cancel", 0.0003):
            self._cancel(self.canceller)
        if self.meddler is not None and self.meddler.random() < 0.002:
            self._end_a_child(self.meddler)
        if self.meddler is not None and self.meddler.random() < 0.02:
            self._send_events(self.meddler, self.meddler.randint(1, 2))
        if self.guests is not None:
            self.guests.act()
        if self.releases is not None:
            self.releases.act()

    def _tear(self, name: str) -> None:
        """The process that has just done something does a part of what follows, and crashes."""
        process = self.owners.get(int(name[0])) if name[0].isdigit() else None
        if process is not None:
            if process.can_release():
                process.release(self.random.randint(0, 3))
            if process.outbox and self.random.random() < 0.5:
                process.post(self.random.randint(0, 2))
            self.crash(process, "crashes in the midst")

    def _some_owner(self) -> Process | None:
        return self.random.choice(list(self.owners.values())) if self.owners else None

    def _do_crash(self) -> None:
        process = self._some_owner()
        if process is not None:
            self.crash(process, "crashes")

    def crash(self, process: Process, why: str) -> None:
        self.trace.append((f"{process.partition.number} {why}",))
        left = process.die()
        self.sleepers = [sleeper for sleeper in self.sleepers if sleeper[1] is not process]
        if left and self.random.random() < 0.5:
            process.partition.strays += left[: self.random.randint(1, len(left))]
        if process in self.zombies:
            self.zombies.remove(process)
        elif self.owners.get(process.partition.number) is process:
            del self.owners[process.partition.number]

    def _do_supersede(self) -> None:
        process = self._some_owner()
        if process is not None and len(self.zombies) < 2:
            self.zombies.append(process)
            name = f"{process.partition.number} is superseded"
            self.trace.append((name, self.claim(process.partition)))

    def _do_bury(self) -> None:
        if self.zombies:
            self.crash(self.random.choice(self.zombies), "zombie goes")

    def _do_host(self) -> None:
        process = self._some_owner()
        if process is not None:
            turn = None
            host = self.random.choice(process.hosts)
            active = [
                activation
                for activation in process.owner.activations()
                if activation in host.host._runs
            ]
            if active and self.seen["turns lost"] < TURNS_LOST_MAX and self.random.random() < 0.3:
                turn = self.random.choice(active)
                self.seen["turns lost"] += 1
            name = f"{process.partition.number} loses host {host.number}, in turn {turn}"
            self.trace.append((name,))
            process.lose_host(host, "the host was lost", turn)
            self.sleepers = [sleeper for sleeper in self.sleepers if not sleeper[2].done()]

    def _do_reread(self) -> None:
        process = self._some_owner()
        if process is not None:
            process.read = self.random.randint(0, process.read)
            self.trace.append((f"{process.partition.number} reads again from {process.read}",))

    def _do_evict(self) -> None:
        process = self._some_owner()
        if process is not None:
            self.trace.append((f"{process.partition.number} evicts", process.evict()))

    def _do_checkpoint(self) -> None:
        process = self._some_owner()
        if process is not None:
            self.trace.append((f"{process.partition.number} snapshots", process.checkpoint()))

    def _do_jump(self) -> None:
        if self.seen["jump"] <= JUMPS_MAX:
            self.now_ms += self.random.choice([1, 1_000, 60_000, 3_600_000, JUMP_MAX_MS])
            self.trace.append(("the clock jumps to", self.now_ms))

    def _do_tick(self) -> None:
        self.advance(JUMP_MAX_MS)

    def _do_signal(self) -> None:
        for root, event in self.again:
            self.trace.append(("a program sends again", event.event_id))
            self.tell(root, event)

    def _do_script(self) -> None:
        root = self.random.choice(self.roots)
        if root.script:
            kind, payload = root.script.pop(0)
            self.trace.append((f"a client sends {kind} to", root.shape.name))
            event_id = f"evt-{next(self.numbers)}"
            self.tell(root, SendEvent(event_id, kind, json_of(payload, "payload")))

    def _do_haste(self) -> None:
        """A client sends something, and time goes on before anybody can have read it."""
        self._do_script()
        self.now_ms += 1
        self.advance(JUMP_MAX_MS)

    def _do_operator(self) -> None:
        root = self.random.choice(self.roots)
        commands: list[Command] = [PauseRun(), PauseRun(), ResumeRun()]
        if root.shape.restarts:
            commands += [RestartRun(), RetryRun()]
        if self.random.random() < 0.02:
            commands = [TerminateRun("an operator")]
            root.ended_early = True
        command = self.random.choice(commands)
        self.trace.append((f"an operator: {type(command).__name__}", root.shape.name))
        self.tell(root, command)

    def _cancel(self, draw: random.Random) -> None:
        """An operator cancels a run, a child perhaps."""
        runs = [run for run in self.runs().values() if not run.ended]
        if runs:
            run = draw.choice(runs)
            self.seen["cancelled"] += 1
            self.trace.append(("an operator cancels", run.workflow, run.instance_id))
            for root in self.roots:
                root.ended_early = True
            self.command(run.workflow, run.instance_id, CancelRun("an operator"))

    def _end_a_child(self, draw: random.Random) -> None:
        """An operator ends a child that a graph or code waits for."""
        children = [run for run in self.runs().values() if run.parent and not run.ended]
        if children:
            child = draw.choice(children)
            self.seen["ended child"] += 1
            self.trace.append(("an operator ends", child.workflow, child.instance_id))
            for root in self.roots:
                root.ended_early = True
            self.command(child.workflow, child.instance_id, TerminateRun("an operator"))

    def _send_events(self, draw: random.Random, most: int) -> bool:
        """A client sends graphs events that some of their nodes wait for, or soon will."""
        graphs = [run for run in self.runs().values() if isinstance(run, GraphRun)]
        waiting = [
            (run, event_type)
            for run in graphs
            if not run.ended
            for number, event_type in run.waits.items()
            if event_type is not None and number not in run.held
        ]
        if self.faulty and graphs and draw.random() < 0.3:
            waiting.append((draw.choice(graphs), draw.choice(EVENTS)))
        chosen = draw.sample(waiting, min(most, len(waiting)))
        for run, event_type in chosen:
            self.seen["events"] += 1
            self.trace.append(("a client sends", event_type, "to", run.workflow, run.instance_id))
            event = SendEvent(f"evt-{next(self.numbers)}", event_type, '{"at":"event"}')
            self.command(run.workflow, run.instance_id, event)
        return bool(chosen)

    def _do_mend(self) -> None:
        """An operator retries what has failed, sometimes from some step."""
        for root in self.roots:
            run = self._run_of(root)
            if root.shape.restarts and run is not None and run.status is RunStatus.ERRORED:
                key = self.random.choice([None, *getattr(run, "entries", ())])
                self.trace.append(("an operator retries", root.shape.name, key))
                self.tell(root, RetryRun(self.random.choice([None, key])))

    # -- time, and the end

    def next_due_ms(self) -> int | None:
        times = [due_ms for due_ms, _, future in self.sleepers if not future.done()]
        for process in (*self.owners.values(), *self.zombies):
            due_ms = process.owner.next_due_ms()
            if due_ms is not None:
                times.append(due_ms - process.skew_ms)
        return min((time for time in times if time > self.now_ms), default=None)

    def advance(self, farthest_ms: int | None = None) -> bool:
        """Moves the clock to what is due next, if that is not too far away."""
        due_ms = self.next_due_ms()
        if due_ms is None or (farthest_ms is not None and due_ms - self.now_ms > farthest_ms):
            return False
        self.now_ms = due_ms
        self.trace.append(("the clock is at", due_ms - START_MS))
        return True

    def run(self, faults: int, rates: Mapping[str, float] | None = None) -> None:
        """So many steps with faults, if any, and then to the end without."""
        if faults:
            self.faulty = True
            self.rates = {
                name: self.random.choice(rates) for name, rates in {**_FAULTS, **_CHANCES}.items()
            } | dict(rates or {})
            for _ in range(faults):
                if not self.step() and not self.advance(JUMP_MAX_MS):
                    self._do_script()
            self.faulty = False
        for process in list(self.zombies):
            self.crash(process, "zombie goes")
        self._drain()
        check_replays(self)

    def close(self) -> None:
        """Ends what is under way."""
        for process in (*self.owners.values(), *self.zombies):
            process.die()

    def _drain(self) -> None:
        for _ in range(DRAIN_STEPS):
            if self.step() or self._nudge():
                continue
            if not self.advance():
                break
        left = [key for key, run in self.runs().items() if not (run.ended or run.is_forgotten)]
        if left or self._possible():
            raise Violation(f"expected every run to end when faults stop, found {left}")
        undelivered(self)
        left_standing(self)
        no_slot_is_left(self)
        agrees_with_the_model(self)
        workers_were_told_the_truth(self)
        held_by_hosts(self)

    def _nudge(self) -> bool:
        """What clients owe: their events, and that nothing stays paused or broken."""
        if any(root.script for root in self.roots):
            for root in self.roots:
                while root.script:
                    kind, payload = root.script.pop(0)
                    event_id = f"evt-{next(self.numbers)}"
                    self.tell(root, SendEvent(event_id, kind, json_of(payload, "payload")))
            return True
        owed = [(root, command) for root in self.roots if (command := self._owed(root))]
        for root, command in owed:
            self.tell(root, command)
        if owed or (self.meddler is not None and self._events_owed(self.meddler)):
            return True
        return self.guests is not None and self.guests.nudge()

    def _events_owed(self, draw: random.Random) -> bool:
        """Events that graphs wait for come at last, but not all of those that may be late."""
        return (draw.random() < 0.4 or self._only_events_are_left()) and self._send_events(draw, 10)

    def _only_events_are_left(self) -> bool:
        due_ms = self.next_due_ms()
        return due_ms is None or due_ms - self.now_ms > JUMPS_MAX * JUMP_MAX_MS

    def _owed(self, root: Root) -> Command | None:
        run = self._run_of(root)
        if run is not None and run.status is RunStatus.PAUSED:
            return ResumeRun()
        if run is not None and run.status is RunStatus.ERRORED:
            if root.shape.graphs and root.shape.restarts and root.mended < MENDED_MAX:
                root.mended += 1
                return RetryRun()
            if root.shape.retries:
                return RetryRun()
        return None

    def _run_of(self, root: Root) -> Run | None:
        return self.runs().get(f"{root.shape.name}/{root.instance_id}")

    def runs(self) -> dict[str, Run]:
        return {
            key: run
            for partition in self.partitions
            for key, run in partition.reader.states.items()
        }

    def traced(self) -> str:
        return "\n".join(" ".join(map(str, line)) for line in self.trace)


#: Faults, and how likely one is at each step: one of these, drawn for each world.
_FAULTS: Final[dict[str, list[float]]] = {
    "crash": [0, 0.005, 0.03],
    "supersede": [0, 0.005, 0.02],
    "bury": [0.05],
    "host": [0, 0, 0.01, 0.03],
    "reread": [0, 0.02],
    "evict": [0, 0.02, 0.1],
    "checkpoint": [0, 0.05],
    "jump": [0, 0, 0.01],
    "tick": [0, 0.01, 0.1],
    "script": [0.02, 0.1],
    "haste": [0, 0.02],
    "signal": [0, 0.02],
    "operator": [0, 0, 0.01, 0.03],
    "mend": [0, 0.02, 0.1],
}
_CHANCES: Final[dict[str, list[float]]] = {
    "twice": [0, 0.2],
    "skew": [0, 1],
    "torn": [0, 0.002, 0.02],
}
