"""The law: evictions at moments at which nothing moves change nothing, not even when what happens.

Method: programs and what is done to them from outside are drawn from seeds, and played once as they
are and twice with crashes; then everything that can be seen of them is the same.
"""

import asyncio
from random import Random
from typing import Any

import pytest

from headwater import WorkflowTest
from headwater.schemas.failures import CommandRefusedError
from tests.fakes.drawn_programs import Node, Program, drawn, drawn_collapse
from tests.workflows.running import Instance

#: What is done to an instance, and how often; the second when something was done before.
COMMANDS = {"pause": 0.15, "cancel": 0.15, "terminate": 0.05, "retry": 0.3, "restart": 0.1}

#: Ticks of a program in a second, many more than any needs.
TICKS_MAX = 2_000
#: Programs that once failed.
FAILED_ONCE = (14_167,)

Commands = list[tuple[int, str, int]]


def programs_of(seed: int) -> tuple[list[Node], Commands]:
    """Programs that run one after the other, and at which second what is done meanwhile."""
    draw = Random(seed)
    nodes = []
    for n in range(draw.randint(1, 3)):
        numbers = list(range(100 * n + 99, 100 * n, -1))
        least = 99 - draw.choice([6, 18])
        collapses = draw.random() < 0.3
        nodes.append(
            drawn_collapse(draw, numbers)
            if collapses
            else drawn(draw, draw.randint(1, 5), numbers, least)
        )
    commands = [
        (draw.randint(0, 25), f"e{draw.randint(0, 2)}", draw.randint(0, 99)) for _ in "12345"
    ]
    for command, often in COMMANDS.items():
        # A run that is begun anew has another seed in a world that has drawn more ids.
        if draw.random() < often and (command != "restart" or "chance" not in repr(nodes)):
            at = draw.randint(0, 40)
            commands.append((at, command, 0))
            if command == "pause":
                commands.append((at + draw.randint(1, 8), "resume", 0))
    return nodes, sorted(commands)


async def do(instance: Instance, command: str, payload: int) -> str:
    """Does it, and says whether it was refused."""
    try:
        if command.startswith("e"):
            await instance.send_event(command, payload)
        else:
            await getattr(instance, command)()
    except CommandRefusedError as refused:
        return refused.code
    return ""


async def seen(test: WorkflowTest, instance: Instance) -> dict[str, Any]:
    """All that can be seen of an instance."""
    status = await instance.status()
    result: dict[str, Any] = {"status": status}
    for number in range(status.run_number + 1):
        history = await instance.history(number)
        lines = [
            # How many entries are kept depends on what was trimmed meanwhile, which nobody sees.
            (line.level, line.message.partition("; kept:")[0], line.data, line.created_at)
            for line in history.logs
        ]
        result |= {f"steps {number}": history.steps, f"lines {number}": lines}
        result[f"events {number}"] = [(e.payload, e.consumed_by_step_key) for e in history.events]
    return result | {"published": [(item.key, item.value) for item in test.published("t")]}


async def played(seed: int, crashes: float) -> dict[str, Any]:
    """What is seen of a program in the end; it crashes as often as it is told."""
    nodes, commands = programs_of(seed)
    program, chance = Program(*nodes), Random(f"crashes of {seed}")
    async with WorkflowTest(program.workflows(), seed=seed) as test:
        instance = await test.create("root", id="r")
        await test.run_until_idle()
        refused = []
        for second in range(90):
            while commands and commands[0][0] <= second:
                _, command, payload = commands.pop(0)
                refused.append(await do(instance, command, payload))
                await test.run_until_idle()
            if chance.random() < crashes:
                await test.crash()
                await test.run_until_idle()
            await test.advance("1 second")
            if not commands and (await instance.status()).ended:
                break
        result = await seen(test, instance)
        return result | {"refused": refused, "called": sorted(program.called)}


async def stepped(seed: int) -> None:
    """Play a program a step at a time, with a crash after each, and check that it moves on.

    What is due at the same time may run in another order after a crash, so a program that decides
    by that may end otherwise. But no attempt runs again, and a run at rest waits or has ended.
    """
    nodes, commands = programs_of(seed)
    program = Program(*nodes)
    async with WorkflowTest(program.workflows(), seed=seed) as test:
        instance = await test.create("root", id="r")
        begins_again = any(command in ("retry", "restart") for _, command, _ in commands)
        for second in range(60):
            while commands and commands[0][0] <= second:
                _, command, payload = commands.pop(0)
                await do(instance, command, payload)
            for _ in range(TICKS_MAX):
                if not await test.tick(max_steps=1):
                    break
                await test.crash()
            else:
                pytest.fail(f"seed {seed} does not move on: {nodes}")
            status = await instance.status()
            assert status.status != "active", f"seed {seed}: {nodes}"
            if not commands and status.ended:
                break
            test.now_ms += 1_000
        called = [call for call in program.called if call[1]]
        assert begins_again or len(called) == len({*called}), f"seed {seed}: {nodes}"


def check(seed: int) -> None:
    """Plays a program with and without crashes."""
    plain = asyncio.run(played(seed, 0))
    for crashes in (1, 0.3):
        crashed = asyncio.run(played(seed, crashes))
        for what in plain.keys() | crashed.keys():
            assert crashed.get(what) == plain.get(what), f"seed {seed}, {what}: {programs_of(seed)}"


@pytest.mark.parametrize("block", range(10))
def test_a_program_that_is_evicted_does_what_it_does_undisturbed(block: int):
    for seed in range(block, 120, 10):
        check(seed)


@pytest.mark.parametrize("block", range(4))
def test_a_program_that_is_evicted_after_each_step_moves_on_and_repeats_no_attempt(block: int):
    for seed in range(block, 60, 4):
        asyncio.run(stepped(seed))


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_programs_that_failed_once_do_when_evicted_what_they_do_undisturbed(seed: int):
    check(seed)
    asyncio.run(stepped(seed))


@pytest.mark.soak
def test_thousands_of_programs_do_when_evicted_what_they_do_undisturbed():
    for seed in range(20_000):
        check(seed)
        asyncio.run(stepped(seed))
