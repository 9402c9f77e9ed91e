"""Entries with iterations: loop."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.processors.replay.commands import Advance, Close, Fail
from headwater.processors.replay.errors import LoopError
from headwater.processors.replay.state import Entry, EntryStatus
from headwater.schemas.history import EntryKind
from headwater.streams.authoring.values import decode, encode
from headwater.streams.replay.branches import Branches
from headwater.streams.replay.giving_up import come_to_end, give_up
from headwater.streams.replay.host_port import failure_of
from headwater.streams.replay.retelling import is_over, retell
from headwater.streams.replay.workflow import Break, Continue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.streams.replay.step import Step

Body: TypeAlias = "Callable[[Step, Any], Awaitable[Any]]"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a loop commits its state, and how much of its history it keeps."""

    commit_interval: int
    history_every: int
    history_keep: int

    def __post_init__(self) -> None:
        for name in ("commit_interval", "history_every", "history_keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"expected {name} to be a whole number from 1, found {value!r}")

    def trims(self, iteration: int) -> bool:
        """Whether old iterations are forgotten here."""
        return iteration % self.history_every == 0 and iteration > self.history_keep

    def commits(self, iteration: int) -> bool:
        """Whether the state is recorded here: also where a later trim will begin what is kept."""
        return (
            iteration % self.commit_interval == 0
            or (iteration + self.history_keep) % self.history_every == 0
            or self.trims(iteration)
        )


async def loop(
    step: "Step",
    ticket: int,
    name: str,
    body: Body,
    state: Any,  # noqa: ANN401
    pace: Pace,
) -> Any:  # noqa: ANN401
    """See `Step.loop`."""
    run = step.run
    key, entry = step.enter(ticket, name, EntryKind.LOOP)
    try:
        if entry is None:
            begun = encode(state, f'the state of the loop "{key}"')
            step.open(key, name, EntryKind.LOOP, value=begun)
            if not step.retold:
                run.entries[key].commits = {0: begun}
        if entry is not None and entry.status is EntryStatus.CANCELLED and not step.past:
            entry = await _run_into_its_end(step, key, body, pace)
        elif is_over(step, entry):
            entry = await _retell_loop(step, key, body, pace)
        else:
            await _run(step, key, body, pace)
            entry = await run.result(key)
            run.record.through.add(key)
    except asyncio.CancelledError:
        give_up(step, key)
        raise
    finally:
        step.leave(key)
    if entry.failure is not None:
        raise LoopError(
            f'the loop "{key}" has failed: {entry.failure.name}: {entry.failure.message}'
        )
    return decode(entry.result or "null")


async def _run(step: "Step", key: str, body: Body, pace: Pace) -> None:
    run = step.run
    states = run.entries[key].commits
    at = max(states)
    run.record.pass_over_iterations(key, at)
    run.come_by(run.entries[key])
    try:
        while isinstance(outcome := await _iterate(step, key, body, at, states[at]), Continue):
            at += 1
            states[at] = _state(key, outcome)
            if pace.commits(at):
                await _commit(step, key, at, states, pace)
        result = encode(outcome.value, f'the value of the loop "{key}"')
        _trim(step, key, states, at + 1 - pace.history_keep)
        run.say(Close(key, result), owed=key)
    except Exception as error:
        run.say(Fail(key, failure_of(error)))
        raise


async def _iterate(
    step: "Step",
    key: str,
    body: Body,
    at: int,
    state: str,
) -> Break | Continue:
    iteration = step.beneath(f"{key}/~{at}")
    try:
        outcome = await body(iteration, decode(state))
    except Exception as error:
        come_to_end(iteration, error)
        raise
    undone = come_to_end(iteration, None)
    if undone is not None:
        raise undone
    if not isinstance(outcome, Break | Continue):
        raise LoopError(
            f'expected the body of the loop "{key}" to return Continue(state) or Break(value), '
            f"found {type(outcome).__name__}"
        )
    return outcome


def _state(key: str, outcome: Continue) -> str:
    return encode(outcome.state, f'the state of the loop "{key}"')


async def _commit(step: "Step", key: str, at: int, states: dict[int, str], pace: Pace) -> None:
    run = step.run
    before = at - pace.history_keep if pace.trims(at) else 0
    future = run.commits[key] = run.loop.create_future()
    run.say(Advance(key, at, states[at], before), owed=key)
    if before:
        run.forget_iterations(key, before)
    await future


def _trim(step: "Step", key: str, states: dict[int, str], before: int) -> None:
    """Forgets old iterations at the end of a loop, with the state from which the rest goes on.

    States between commits are not known if a replay began behind them: then it is an earlier one.
    """
    known = max((number for number in states if number <= before), default=None)
    if known is not None and before > step.run.entries[key].trimmed:
        step.run.say(Advance(key, known, states[known], before))
        step.run.forget_iterations(key, before)


async def _run_into_its_end(step: "Step", key: str, body: Body, pace: Pace) -> Entry:
    """Runs a loop again whose task the author's code has cancelled, and cancels again.

    It has no result that could be due before that, and its body may have cleaned up.
    """
    await _run_again(step.beneath(key, past=True), key, body, pace)
    return await step.run.result(key)


async def _retell_loop(step: "Step", key: str, body: Body, pace: Pace) -> Entry:
    """Gives what is recorded of a loop, and an error as it was: only its body can make that.

    What is complete is not entered again, because replays begin at commits, and its end is the last
    of them. Only its rollback handlers are found by running it.
    """
    run = step.run
    entry = run.entries.get(key)
    completed = entry is not None and entry.status is EntryStatus.COMPLETED
    if completed and not run.rolling_back:
        run.record.pass_over(key)
        return await run.result(key)

    async def iterations(past: "Step") -> None:
        await _run_again(past, key, body, pace)

    def raise_again(running: Branches) -> None:
        _, error = running.settled[""]
        if error is not None and not completed:
            raise error

    return await retell(
        step,
        key,
        lambda: Branches({"": step.beneath(key, past=True)}, {"": iterations}),
        settles=Branches.all_settled,
        settled=raise_again,
    )


async def _run_again(step: "Step", key: str, body: Body, pace: Pace) -> None:
    """Iterations from the latest commit on, where replays begin; rolling back, from the earliest.

    A commit without a record, after the last iteration that has any, stays without: so a body that
    does not end where it did cannot go on for ever.
    """
    run = step.run
    states = run.entries[key].commits
    at = min(states) if run.rolling_back else max(states)
    last = max(run.record.last_iteration(key), *states)
    run.record.pass_over_iterations(key, at)
    state = states[at]
    while isinstance(outcome := await _iterate(step, key, body, at, state), Continue):
        at += 1
        state = states.get(at) or _state(key, outcome)
        if at > last and pace.commits(at):
            await run.loop.create_future()
