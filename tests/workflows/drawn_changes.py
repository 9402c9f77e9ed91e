"""Random programs of workflows, random changes of them, and runs of them in the harness."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from headwater import Break, Continue, Step, Workflow, WorkflowEvent, WorkflowTest, workflow
from headwater.processors.runs import history_files as files
from headwater.processors.runs.history_files import RunHistory
from headwater.schemas.replay_answers import ReplayedRun
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.compatibility import CheckedCode, check_run
from headwater.streams.harness.handles import TestInstance as Instance

#: A list of operations: a kind, a name, and the programs within it.
Program = list[tuple[Any, ...]]

_SIMPLE = ("do", "sleep", "wait", "now", "undo")
_NESTED = ("join", "race", "loop")


def draw(random: Random, depth: int = 2, prefix: str = "") -> Program:
    """A program of a few operations."""
    program: Program = []
    for number in range(random.randrange(1, 5)):
        name = f"{prefix}{number}"
        kind = random.choice(_SIMPLE + (_NESTED if depth else ()))
        if kind in _SIMPLE:
            program.append((kind, name))
        elif kind == "loop":
            program.append((kind, name, random.randrange(1, 5), draw(random, depth - 1, "l")))
        else:
            branches = [draw(random, depth - 1, letter) for letter in "ab"]
            program.append((kind, name, *branches))
    return program


def _lists(program: Program) -> Iterator[Program]:
    yield program
    for operation in program:
        for part in operation[2:]:
            if isinstance(part, list):
                yield from _lists(part)


def changed(random: Random, program: Program) -> Program:
    """A copy with one change: renamed, removed, moved, added, or of another kind."""
    copied = _copy(program)
    target = random.choice(list(_lists(copied)))
    at = random.randrange(len(target) + 1)
    change = random.choice(("rename", "remove", "move", "add", "kind"))
    if change == "add" or at == len(target):
        target.insert(at, (random.choice(_SIMPLE), "added"))
    elif change == "rename":
        target[at] = (target[at][0], "renamed", *target[at][2:])
    elif change == "remove":
        del target[at]
    elif change == "move":
        target.insert(random.randrange(len(target)), target.pop(at))
    else:
        target[at] = (random.choice(_SIMPLE), target[at][1])
    return copied


def _copy(program: Program) -> Program:
    return [
        tuple(_copy(part) if isinstance(part, list) else part for part in operation)
        for operation in program
    ]


class Drawn:
    """The program that the workflow `drawn` has now."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def workflow(self) -> Workflow:
        """The workflow, which plays the program of the moment."""

        @workflow("drawn")
        async def drawn(event: WorkflowEvent, step: Step) -> str:
            await play(self.program, await _checkpointed(step))
            return "over"

        return drawn


async def _checkpointed(step: Step) -> Step:
    await step.checkpoint("begin")
    return step


async def play(program: Program, step: Step) -> None:
    """Carry out a program."""
    for kind, name, *parts in program:
        match kind:
            case "do":
                await step.do(name, _returning(name))
            case "undo":
                await step.do(name, _returning(name), rollback=lambda _: None)
            case "sleep":
                await step.sleep(name, "1 minute")
            case "wait":
                await step.wait_for_event(name, type="go", timeout="300 days")
            case "now":
                await step.now()
            case "loop":
                await _loop(step, name, *parts)
            case "join":
                await step.join(name, **_branches(parts))
            case "race":
                await step.race(name, **_branches(parts))


def _returning(value: str) -> Callable[[], str]:
    return lambda: value


def _branches(programs: list[Program]) -> dict[str, Callable[[Step], Any]]:
    return {
        letter: (lambda step, program=program: play(program, step))
        for letter, program in zip("ab", programs, strict=True)
    }


async def _loop(step: Step, name: str, times: int, program: Program) -> None:
    async def body(inner: Step, state: int) -> Continue[int] | Break[int]:
        await play(program, inner)
        return Continue(state + 1) if state + 1 < times else Break(state)

    await step.loop(name, body, state=0, commit_interval=2)


# -- runs


async def act(random: Random, test: WorkflowTest, instance: Instance) -> None:
    """Let time pass, send what a wait takes, or crash."""
    match random.randrange(4):
        case 0:
            await test.advance("1 minute")
        case 1:
            await test.crash()
            await test.run_until_idle()
        case _:
            if not (await instance.status()).ended:
                await instance.send_event("go")
            await test.run_until_idle()


def history_of(test: WorkflowTest, name: str, instance_id: str) -> RunHistory:
    """The history of the current run of an instance."""
    records = test.records(name, instance_id)
    return files.history_of(records, max(record.run_number for record in records))


def checked(history: RunHistory, *workflows: Workflow) -> ReplayedRun:
    """The result of a replay against workflows."""
    code = CheckedCode.of_app(App({one.name: one for one in workflows}))
    result = check_run(code, history)
    assert result is not None
    return result
