"""What is checked when a world has come to its end."""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.processors.code.host_messages import (
    Advance,
    BeginRollback,
    Cancel,
    Close,
    Fail,
    FromHost,
    Open,
    OpenCompleted,
    ToHost,
    activate,
)
from headwater.processors.code.state import CodeRun, trimmed
from headwater.processors.runs.host_messages import Requested
from headwater.processors.runs.limits import ENTRIES_MAX
from headwater.processors.runs.slots import SLOTS
from headwater.schemas.history import HistoryAppended, SendEvent, StartRun, instance_key
from headwater.schemas.statuses import OPEN, EntryStatus, RunStatus
from headwater.streams.code_host.host import Host
from headwater.streams.kafka.records import partition_of
from headwater.streams.replay.loop import WorkflowLoop
from tests.fakes.engines import fold
from tests.simulation.shapes import Place, Violation

if TYPE_CHECKING:
    from headwater.processors.runs.state import Run
    from tests.simulation.engine_world import World

#: Shapes whose failures leave nothing standing: their handlers succeed at last.
ROLLS_BACK: Final = {"left_behind"}
#: Prefixes of each instance's history from which it is replayed.
PREFIXES: Final = 2
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_TO_HOST: Final = msgspec.msgpack.Decoder(ToHost)


def ends(world: "World") -> dict[str, tuple[object, ...]]:
    """How all instances ended; of one that raced others only that it did."""
    result: dict[str, tuple[object, ...]] = {}
    for key, run in world.runs().items():
        failure = run.failure and (run.failure.name, run.failure.message)
        if run.kind == SLOTS:
            continue
        if run.workflow == "sleeper":
            result[key] = ("ended",)
        else:
            result[key] = (run.status.value, run.output, failure)
    return result


def undelivered(world: "World") -> None:
    """Each post has had its effect, or its refusal."""
    for partition in world.partitions:
        for (key, number), post in partition.reader.posts.items():
            if post.command is None:
                continue
            there = instance_key(post.workflow or "", post.instance_id or "")
            to = world.partitions[partition_of(there.encode(), len(world.partitions))].reader
            if isinstance(post.command, StartRun) and there not in to.states:
                raise Violation(f"{key} has created {there}, which is not there")
            if isinstance(post.command, SendEvent):
                event_id = post.command.event_id
                if event_id != f"{key}#{number}":
                    raise Violation(f"expected the event {key}#{number}, found {event_id}")
                if (there, event_id) not in to.received and not to.states[there].ended:
                    raise Violation(f"{there} has not received {event_id}")


def left_standing(world: "World") -> None:
    """Of a run that failed or was cancelled, each completed step with a handler is rolled back."""
    for key, run in world.runs().items():
        if not isinstance(run, CodeRun) or not _is_rolled_back(run):
            continue
        forgotten = trimmed(run.entries)
        for position, entry in run.entries.items():
            done = entry.rollback and entry.status is EntryStatus.COMPLETED
            if done and not entry.rolled_back and position not in forgotten:
                raise Violation(f"{key} has ended, and {position} is not rolled back")


def _is_rolled_back(run: CodeRun) -> bool:
    if run.status is RunStatus.TERMINATED:
        # One that is terminated at once has an error, too, if it was said why.
        return run.failure is not None and run.failure.name == "Cancelled"
    return run.status is RunStatus.ERRORED and run.workflow in ROLLS_BACK


def held_by_hosts(world: "World") -> None:
    """A host holds nothing that its owner has not given it."""
    for process in world.owners.values():
        for host in process.hosts:
            held = {*host.host._runs, *host.host._graphs} - set(process.owner.activations())
            if held:
                raise Violation(f"a host of {process.partition.number} holds {held} for nobody")


def check_replays(world: "World") -> None:
    """Replays of unchanged code are fixed points."""
    for partition in world.partitions:
        for key, records in partition.reader.counted.items():
            places = {len(records) - 1}
            places |= {world.random.randint(1, len(records)) for _ in range(PREFIXES - 1)}
            for position in sorted(places):
                _replay(key, records[: max(1, position)], world)


def _replay(key: str, records: list[HistoryAppended], world: "World") -> None:
    run: Run | None = None
    for record in records:
        run = fold(run, record)
    if not isinstance(run, CodeRun) or run.ended:
        return
    first, again = _Dry(run, world).asked(), _Dry(run, world).asked()
    if first != again:
        raise Violation(f"{key}: two replays of the same history differ: {first}, {again}")
    for message in first:
        if isinstance(message, Requested) and _recorded(run, message.request):
            raise Violation(f"{key}: a replay asks for what is recorded: {message.request}")


def _recorded(run: CodeRun, asked: object) -> bool:
    match asked:
        case Open() | OpenCompleted():
            return asked.key in run.entries
        case Close() | Fail():
            entry = run.entries.get(asked.key)
            return entry is not None and entry.status not in OPEN
        case Cancel():
            return asked.key in run.entries and asked.key not in run.open
        case Advance():
            # At its end a loop names a state that it may have recorded, to have the rest forgotten.
            loop = run.entries[asked.key]
            return asked.iteration <= loop.iteration and asked.trim_before <= loop.trimmed
        case BeginRollback():
            return run.rollback is not None
        case _:
            return False


class _Dry:
    """A host in which no callback comes to its end."""

    def __init__(self, run: CodeRun, world: "World") -> None:
        self._run = run
        self._world = world
        self._said: list[FromHost] = []
        workflows = {
            workflow.name: workflow for s in world.shapes for workflow in s.workflows(self)
        }
        self._host = Host(workflows, emit=self._said.append, now_ms=lambda: world.now_ms)

    def asked(self) -> list[FromHost]:
        loop = WorkflowLoop(lambda place, text: None)
        outside = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            self._host.handle([_TO_HOST.decode(_ENCODE(activate(1, self._run, ENTRIES_MAX)))])
            loop.run_ready()
            said = [*self._said, *self._host.still_running()]
            self._host.stop()
            loop.run_ready()
        finally:
            asyncio._set_running_loop(outside)
        return said

    def begin(self, place: Place) -> None:
        entry = self._run.entries.get(place.key)
        if entry is not None and entry.status not in OPEN:
            self._world.violation = Violation(f"a replay calls {place}, which is done")
            raise self._world.violation

    def begin_undo(self, place: Place) -> None:
        if self._run.entries[place.key].rolled_back:
            raise self._world.broken(f"a replay rolls back {place}, which is done")

    async def pass_time(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def hang(self) -> None:
        await asyncio.get_running_loop().create_future()

    def end(self, _: Place) -> int:
        return 0

    def drawn(self, place: Place, value: object) -> None:
        if self._world.drawn.setdefault(place, value) != value:
            raise self._world.broken(f"{place} differs on replay: {value}")
