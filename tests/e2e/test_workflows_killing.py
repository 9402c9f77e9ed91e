"""Goal: whoever dies, and whenever, every instance ends right and no step is begun after its end.

Method: a real broker, a real Postgres, workers and a projector as processes; two hundred instances
of many shapes are created over the topics while one part is killed at moments drawn from a seed.
Then the history is folded and compared with what each shape must come to, with the trail that
callbacks left, with what steps entered into Postgres, and with the rows of the projection. What
graphs have done is what the naive model does with the same results.
"""

import asyncio
import itertools
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.processors.slots.queue import SlotsRun
from headwater.schemas.history import RunStarted, SendEvent, StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.ownership.deadlines import SESSION_S
from tests.e2e.graph_app import OUTPUTS
from tests.e2e.workflow_app import ENTRIES, ITERATIONS
from tests.e2e.workflow_books import BookSystem
from tests.e2e.workflow_system import Mark, Sender, Story, opened
from tests.fakes.followed_graphs import followed

INSTANCES = 200
KILLS = int(os.environ.get("TEST_KILLS", "3"))
_ROUNDS = itertools.count(1)


@dataclass(frozen=True)
class Shape:
    """What an instance must come to, and with which steps; `made` are those that it creates."""

    output: Callable[[str], object]
    steps: Callable[[str], set[str]]
    events: int = 0
    made: Callable[[str], list[str]] = lambda _: []


def _keys(*keys: str) -> Callable[[str], set[str]]:
    return lambda _: set(keys)


def _graph(output: object, events: int) -> Shape:
    """A graph, which has no steps; of one that fails the name of its error."""
    comes_to = (RunStatus.ERRORED, output) if isinstance(output, str) else output
    return Shape(lambda _: comes_to, _keys(), events)


SHAPES = {
    "ten": Shape(lambda _: 45, _keys(*(f"s{n}" for n in range(10)))),
    "joined": Shape(
        lambda _: [51, 121, 211, 301],
        _keys(*(f"all/{name}/{step}" for name in "abcd" for step in ("before", "after"))),
    ),
    "limited": Shape(lambda _: 3, _keys("s0", "s1", "s2")),
    "stubborn": Shape(lambda _: 10, _keys(*(f"s{n}" for n in range(5)))),
    "looping": Shape(lambda _: ITERATIONS, _keys(*(f"count/~{n}/add" for n in range(ITERATIONS)))),
    "waiting": Shape(lambda name: [[name, 1], [name, 2]], _keys("before", "between", "after"), 2),
    "parent": Shape(
        lambda _: [8, "ChildWorkflowError"],
        _keys("before", "after"),
        made=lambda name: [f"child/{name}-c"],
    ),
    "child": Shape(lambda _: 8, _keys("first", "second")),
    "creator": Shape(
        lambda name: f"{name}-x", _keys("create", "more"), made=lambda name: [f"created/{name}-x"]
    ),
    "created": Shape(
        lambda name: [3, {"from": name.removesuffix("-x")}, {"more": name.removesuffix("-x")}],
        _keys("between"),
    ),
    "undone": Shape(lambda _: (RunStatus.ERRORED, "LookupError"), _keys("a", "b", "c")),
    "publisher": Shape(lambda _: None, _keys(*(f"p{n}" for n in range(5)))),
    "bookkeeper": Shape(lambda _: {"entries": ENTRIES}, _keys(*(f"e{n}" for n in range(ENTRIES)))),
    "racing": Shape(lambda _: ["fast", "fast"], _keys("who/fast/win")),
} | {name: _graph(output, int(name == "g_mended")) for name, output in OUTPUTS.items()}
ROOTS = [name for name in SHAPES if name not in ("child", "created")]


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[BookSystem]:
    directory = scratch / "workflows-killed"
    directory.mkdir()
    with opened(BookSystem(directory, "tests.e2e.graph_app")) as system:
        yield system


@pytest.fixture(autouse=True)
def nobody_left(system: BookSystem) -> Iterator[None]:
    yield
    for name in system.workers:
        system.stop(name)
    system.postgres.start()


Disturb = Callable[[Story], Awaitable[None]]


async def under_load(system: BookSystem, disturb: Disturb) -> Story:
    """Creates instances while the system is disturbed, and compares everything in the end."""
    label = f"r{next(_ROUNDS)}"
    roots = [(ROOTS[n % len(ROOTS)], f"{label}-{n}") for n in range(INSTANCES)]
    expected = [f"{shape}/{name}" for shape, name in roots]
    expected += [made for shape, name in roots for made in SHAPES[shape].made(name)]
    system.begin(label)
    async with system.reading() as story, system.client() as client:
        await client.ready()
        await client.send("child", "taken", StartRun("7"))
        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(_begin(client, *root)) for root in roots]
            await disturb(story)
        assert all(item.done() for item in sending)
        await system.until(
            story, lambda: all(map(story.ended, expected)), f"the ends of {label}", 180
        )
        # What is under way behind the ends, such as PostsSent, may still come.
        commands = await system.commands()
        await system.until(story, lambda: _decided(story, commands), "the outcomes of all commands")
        # Those that were asked for again, by an owner who was superseded, are given back last.
        await system.until(story, lambda: not _held(story), "all slots to be free again")
        check(story, expected, commands)
        check_trail(system.marks(), story, expected)
        await _check_published(system, roots)
        system.check_entries(story)
        await system.check_rows(story)
    return story


async def _begin(client: Sender, shape: str, name: str) -> None:
    reply = await client.send(shape, name, StartRun("7"))
    assert reply.code in ("", "INSTANCE_ID_ALREADY_EXISTS"), reply
    for number in range(1, SHAPES[shape].events + 1):
        payload = f'["{name}",{number}]'
        reply = await client.send(shape, name, SendEvent(f"{name}#{number}", "go", payload))
        assert not reply.code, reply


def _decided(story: Story, commands: dict[int, list[int]]) -> bool:
    return all(
        story.claims[partition].cause >= offsets[-1]
        for partition, offsets in commands.items()
        if offsets
    )


def check(story: Story, expected: list[str], commands: dict[int, list[int]]) -> None:
    story.check(commands)
    check_slots(story)
    for key in story.by_instance:
        if key.startswith("g_"):
            followed(story.records(key))
    wrong = {key: story.output(key) for key in expected if story.output(key) != output_of(key)}
    assert not wrong
    completed = defaultdict(set)
    for instance, run, key in story.completions():
        assert run == 0
        completed[instance].add(key)
    assert {key: completed[key] for key in expected} == {key: steps_of(key) for key in expected}
    begun = Counter(
        reported.key
        for reported in story.told
        if reported.counts and isinstance(reported.record.events[0], RunStarted)
    )
    assert {key: begun[key] for key in expected} == dict.fromkeys(expected, 1)


def check_slots(story: Story) -> None:
    """No more runs had a slot at once than there are."""
    assert story.slots_held, "some had to wait"
    assert max(story.slots_held.values()) == 2


def _held(story: Story) -> list[int]:
    """The tickets of runs that have a slot or wait for one."""
    return [
        ticket
        for runs in story.runs.values()
        for run in runs.values()
        if isinstance(run, SlotsRun)
        for ticket in run.tickets
    ]


def check_trail(marks: list[Mark], story: Story, expected: Collection[str]) -> None:
    """Every completed step was begun, and none after its completion was in the log."""
    ours = set(expected)
    done = {position: at_ms for position, at_ms in story.done_at().items() if position[0] in ours}
    begun = {(mark.instance, mark.run, mark.key) for mark in marks}
    assert set(done) <= begun, f"never begun: {set(done) - begun}"
    late = [
        (mark, done[position])
        for mark in marks
        if (position := (mark.instance, mark.run, mark.key)) in done
        # The broker's clock has whole milliseconds.
        and mark.at_ns // 1_000_000 > done[position]
    ]
    assert not late, f"begun after the completion was in the log: {late}"


async def _check_published(system: BookSystem, roots: list[tuple[str, str]]) -> None:
    """Every record that a step published is there, once."""
    names = {name for _, name in roots}
    expected = {(name, repr(n)) for shape, name in roots for n in range(5) if shape == "publisher"}
    expected |= {
        (name, repr({"created": f"{name}-x"})) for shape, name in roots if shape == "creator"
    }
    result: list[tuple[bytes, str, Any]] = []
    # A record waits for seconds where Kafka was away, and its run does not wait for it.
    async with asyncio.timeout(120):
        while len(result) < len(expected):
            result = [item for item in await system.published() if item[1] in names]
    assert sorted((name, repr(value)) for _, name, value in result) == sorted(expected)
    assert len({number for number, _, _ in result}) == len(expected)


def owners(story: Story) -> set[int]:
    """The workers that have the latest claims, by process id."""
    return {int(claim.owner.rpartition("-")[2]) for claim in story.claims.values()}


def output_of(key: str) -> object:
    shape, _, name = key.partition("/")
    return SHAPES[shape].output(name)


def steps_of(key: str) -> set[str]:
    shape, _, name = key.partition("/")
    return SHAPES[shape].steps(name)


async def _kills(seed: int, how: Callable[[random.Random], None], kills: int = KILLS) -> None:
    draw = random.Random(seed)
    for _ in range(kills):
        await asyncio.sleep(draw.uniform(0.1, 1.5))
        how(draw)


def test_killing_workers_costs_and_repeats_nothing(system: BookSystem, seed: int):
    # One of them notes a snapshot after every record.
    impatience: dict[str, dict[str, str]] = {"one": {}, "two": {"checkpoint_records": "1"}}

    def kill(draw: random.Random) -> None:
        name = draw.choice(["one", "two"])
        system.kill(name)
        system.start(name, **impatience[name])

    for name, result in impatience.items():
        system.start(name, **result)
    asyncio.run(under_load(system, lambda _: _kills(seed, kill)))


def test_killing_the_host_alone_costs_and_repeats_nothing(system: BookSystem, seed: int):
    def kill(draw: random.Random) -> None:
        system.kill_host(draw.choice(["one", "two"]))

    system.start("one")
    system.start("two")

    async def disturb(story: Story) -> None:
        # A host that dies while it imports its app for the first time is an app that is wrong.
        both = {part.pid for part in system.workers.values()}
        await system.until(story, lambda: owners(story) == both, "both workers to own partitions")
        await _kills(seed, kill)

    asyncio.run(under_load(system, disturb))


@pytest.mark.soak
def test_killing_the_broker_costs_and_repeats_nothing(system: BookSystem, seed: int):
    def kill(_: random.Random) -> None:
        system.broker.kill()
        system.broker.start()

    system.start("one")
    system.start("two")
    asyncio.run(under_load(system, lambda _: _kills(seed, kill, KILLS - 1)))


@pytest.mark.soak
def test_killing_postgres_costs_and_repeats_nothing(system: BookSystem, seed: int):
    def kill(draw: random.Random) -> None:
        system.postgres.kill()
        if draw.random() < 0.5:
            system.kill("two")
            system.start("two")
        system.postgres.start()

    async def disturb(story: Story) -> None:
        def ended() -> Counter[str]:
            keys = [key.split("/") for key in story.runs if story.ended(key)]
            return Counter(shape for shape, name in keys if system.concerns(name))

        system.postgres.kill()
        await system.until(story, lambda: ended().total() >= INSTANCES // 2, "those without SQL")
        assert not ended()["bookkeeper"]
        # Whoever takes a partition over now has to wait for Postgres with all that is in it.
        system.start("two")
        await system.until(story, lambda: system.parts["two"].pid in owners(story), "its claims")
        system.postgres.start()
        await _kills(seed, kill, KILLS - 1)

    system.start("one")
    asyncio.run(_owned_by(system, "one"))
    asyncio.run(under_load(system, disturb))


async def _owned_by(system: BookSystem, name: str) -> None:
    """Waits until a worker has all partitions, in the log and in Postgres."""
    async with system.reading() as story:

        def owned() -> bool:
            epochs = {number: claims.epoch for number, claims in story.claims.items()}
            return owners(story) == {system.parts[name].pid} and system.claims() == epochs

        await system.until(story, owned, f"{name} to own all partitions")


@pytest.mark.soak
def test_a_suspended_worker_counts_for_nothing(system: BookSystem, seed: int):
    draw = random.Random(seed)

    async def suspend(story: Story) -> None:
        zombie = system.parts["one"]

        await system.until(story, lambda: zombie.pid in owners(story), "it to own a partition")
        await asyncio.sleep(draw.uniform(0, 0.5))
        zombie.send_signal(signal.SIGSTOP)
        asleep_s = SESSION_S + draw.uniform(1, 3)
        # Who takes the place of a projector waits for its session to end, too.
        projector = _kills(seed, lambda _: system.kill_projector(), 1)
        await asyncio.gather(asyncio.sleep(asleep_s), projector)
        zombie.send_signal(signal.SIGCONT)

    system.start("one")
    system.start("two")
    asyncio.run(under_load(system, suspend))


@pytest.mark.soak
def test_workers_that_join_and_leave_cost_and_repeat_nothing(system: BookSystem, seed: int):
    # The last one: the group remembers those who were killed and have no name for ten seconds.
    numbers = itertools.count(1)

    def disturb(draw: random.Random) -> None:
        others = [name for name in system.workers if name != "one"]
        if others and draw.random() < 0.5:
            draw.choice([system.kill, system.stop])(others[0])
        else:
            system.start(f"other{next(numbers)}", member=False)

    async def disturbed(_: Story) -> None:
        projector = _kills(seed, lambda _: system.kill_projector(), 1)
        await asyncio.gather(projector, _kills(seed, disturb, KILLS + 2))

    system.start("one", member=False)
    asyncio.run(under_load(system, disturbed))
