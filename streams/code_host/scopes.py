"""Entries that hold others: join, race and loop.

While a run is rolled back they run their branches and kept iterations again, although they have
their results, because only so the handlers of the steps inside are found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from processors.replay.commands import Advance, Close, Fail, Losers
from processors.replay.errors import HistoryDivergedError, JoinError, LoopError, RaceError
from processors.replay.state import OPEN, Entry, EntryStatus
from schemas.history import EntryKind, Failure
from streams.code_host.definition import Break, Continue, Won
from streams.code_host.outside import failure_of
from streams.code_host.values import decode, encode

if TYPE_CHECKING:
    from streams.code_host.step import Step

    Branch = Callable[[Step], Awaitable[Any]]


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


class _Branches:
    """Branches that run at the same time."""

    def __init__(self, step: "Step", key: str, branches: Mapping[str, "Branch"]) -> None:
        self._run = step.run
        self._moved = step.run.loop.create_future()
        #: Outcomes in the order in which branches settled.
        self.settled: dict[str, tuple[Any, Exception | None]] = {}
        self.steps = {name: type(step)(step.run, f"{key}/{name}", above=step) for name in branches}
        self._tasks = {
            name: step.run.loop.create_task(self._settle(name, branch))
            for name, branch in branches.items()
        }

    async def _settle(self, name: str, branch: "Branch") -> None:
        value: Any = None
        error: Exception | None = None
        try:
            value = await branch(self.steps[name])
        except asyncio.CancelledError:
            if self.steps[name].lost:
                raise
            error = RuntimeError("the branch cancelled itself")
        except Exception as raised:  # noqa: BLE001, whatever a branch raises is its outcome
            error = raised
        except BaseException as raised:
            if self._run.closed:
                raise
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        self.settled[name] = (value, error)
        if not self._moved.done():
            self._moved.set_result(None)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Waits until what has settled is enough; ends all branches when it is cancelled."""
        try:
            while not enough():
                await self._moved
                self._moved = self._run.loop.create_future()
        except BaseException:
            self.end_others()
            raise

    def end_others(self) -> list[str]:
        """Cancels the branches that have not settled, and names them."""
        others = [name for name in self._tasks if name not in self.settled]
        for name in others:
            self.steps[name].lost = True
            self._tasks[name].cancel()
        return others

    def failures(self) -> dict[str, Failure]:
        """What failed, by branch in the order of the arguments.

        Errors: HistoryDivergedError, if a branch raised it: that is no failure of a branch alone.
        """
        for _, error in self.settled.values():
            if isinstance(error, HistoryDivergedError):
                raise error
        return {
            name: failure_of(error)
            for name, error in ((name, self.settled[name][1]) for name in self._tasks)
            if error is not None
        }


def _check(what: str, branches: Mapping[str, "Branch"]) -> None:
    if not branches or not all(callable(branch) for branch in branches.values()):
        raise ValueError(
            f"expected {what} to have branches, each an async function of a step, "
            f"found {dict(branches)!r}"
        )


def _detail(failures: Mapping[str, Failure]) -> str:
    plain = {n: {"name": f.name, "message": f.message} for n, f in failures.items()}
    return encode(plain, "the failures of branches")


def _errors(entry: Entry) -> dict[str, Failure]:
    failure = entry.failure
    plain = decode(failure.detail) if failure and failure.detail else {}
    return {name: Failure(each["name"], each["message"]) for name, each in plain.items()}


async def _begin(
    step: "Step", ticket: int, name: str, kind: EntryKind
) -> tuple[str, Entry | None, bool]:
    """Enters a join or race.

    Shape:  (key, what is recorded, whether its branches have to run).
    """
    run = step.run
    key, entry = step.enter(ticket, name, kind)
    if entry is None:
        step.open(key, name, kind)
    else:
        run.next_ordinal(entry)
    return key, entry, run.rolling_back or entry is None or entry.status in OPEN


async def join(step: "Step", ticket: int, name: str, branches: Mapping[str, "Branch"]) -> Any:  # noqa: ANN401
    """See `Step.join`."""
    run = step.run
    try:
        _check("a join", branches)
    except ValueError:
        run.unawaited.pop(ticket, None)
        raise
    key, entry, runs = await _begin(step, ticket, name, EntryKind.JOIN)
    try:
        if runs:
            running = _Branches(step, key, branches)
            await running.until(lambda: len(running.settled) == len(branches))
            if entry is None or entry.status in OPEN:
                _joined(step, key, running)
        else:
            run.covered.append(key)
        entry = await run.result(key)
    finally:
        run.busy.discard(key)
    if entry.failure is not None:
        raise JoinError(entry.failure.message, _errors(entry))
    return decode(entry.result or "null")


def _joined(step: "Step", key: str, running: _Branches) -> None:
    failures = running.failures()
    if failures:
        found = "; ".join(f"{n}: {f.name}: {f.message}" for n, f in failures.items())
        failure = Failure("JoinError", f'branches of "{key}" failed: {found}', _detail(failures))
        step.run.say(Fail(key, failure), owed=key)
        return
    values = {name: running.settled[name][0] for name in running.steps}
    step.run.say(Close(key, encode(values, f'the values of the join "{key}"')), owed=key)


async def race(step: "Step", ticket: int, name: str, branches: Mapping[str, "Branch"]) -> Won:
    """See `Step.race`."""
    run = step.run
    try:
        _check("a race", branches)
    except ValueError:
        run.unawaited.pop(ticket, None)
        raise
    key, entry, runs = await _begin(step, ticket, name, EntryKind.RACE)
    try:
        if runs:
            running = _Branches(step, key, branches)
            if run.rolling_back and entry is not None and entry.status not in OPEN:
                # All branches have begun: what they have recorded is found before the run rests.
                entry = await run.result(key)
            else:
                await running.until(
                    lambda: len(running.settled) == len(branches) or _winner(running) is not None
                )
                _raced(step, key, running)
        else:
            run.covered.append(key)
        entry = await run.result(key)
    finally:
        run.busy.discard(key)
    if entry.failure is not None:
        raise RaceError(entry.failure.message, _errors(entry))
    won = decode(entry.result or "null")
    return Won(won["winner"], won["value"])


def _winner(running: _Branches) -> str | None:
    return next((name for name, (_, error) in running.settled.items() if error is None), None)


def _raced(step: "Step", key: str, running: _Branches) -> None:
    run = step.run
    winner = _winner(running)
    if winner is None:
        failures = running.failures()
        found = "; ".join(f"{n}: {f.name}: {f.message}" for n, f in failures.items())
        failure = Failure(
            "RaceError", f'no branch of "{key}" completed: {found}', _detail(failures)
        )
        run.say(Fail(key, failure), owed=key)
        return
    value = {"winner": winner, "value": running.settled[winner][0]}
    result = encode(value, f'the value of the race "{key}"')
    lost = [f"{key}/{name}" for name in running.end_others()]
    steps = run.abandon(lost)
    run.say(Close(key, result, Losers(tuple(lost), tuple(steps))), owed=key)


async def loop(
    step: "Step",
    ticket: int,
    name: str,
    body: Callable[["Step", Any], Awaitable[Any]],
    state: Any,  # noqa: ANN401
    pace: Pace,
) -> Any:  # noqa: ANN401
    """See `Step.loop`."""
    run = step.run
    key, entry = step.enter(ticket, name, EntryKind.LOOP)
    try:
        if entry is None:
            states = {0: encode(state, f'the state of the loop "{key}"')}
            step.open(key, name, EntryKind.LOOP, value=states[0])
            run.entries[key].commits = states
        else:
            run.next_ordinal(entry)
            states = entry.commits
        if entry is None or entry.status is not EntryStatus.COMPLETED or run.rolling_back:
            try:
                await _iterate(step, key, body, states, pace)
            except Exception as error:
                run.say(Fail(key, failure_of(error)))
                raise
        else:
            run.covered.append(key)
        entry = await run.result(key)
    finally:
        run.busy.discard(key)
    return decode(entry.result or "null")


async def _iterate(
    step: "Step",
    key: str,
    body: Callable[["Step", Any], Awaitable[Any]],
    states: dict[int, str],
    pace: Pace,
) -> None:
    run = step.run
    at = min(states) if run.rolling_back else max(states)
    while True:
        scope = type(step)(run, f"{key}/~{at}", above=step)
        outcome = await body(scope, decode(states[at]))
        at += 1
        if isinstance(outcome, Break):
            result = encode(outcome.value, f'the value of the loop "{key}"')
            _trim(step, key, states, at - pace.history_keep)
            run.say(Close(key, result), owed=key)
            return
        if not isinstance(outcome, Continue):
            raise LoopError(
                f'expected the body of the loop "{key}" to return Continue(state) or Break(value), '
                f"found {type(outcome).__name__}"
            )
        states[at] = encode(outcome.state, f'the state of the loop "{key}"')
        if pace.commits(at) and not run.rolling_back:
            await _commit(step, key, at, states, pace)


async def _commit(step: "Step", key: str, at: int, states: dict[int, str], pace: Pace) -> None:
    run = step.run
    before = at - pace.history_keep if pace.trims(at) else 0
    future = run.commits[key] = run.loop.create_future()
    run.say(Advance(key, at, states[at], before), owed=key)
    _forget(run, key, states, before)
    await future


def _trim(step: "Step", key: str, states: dict[int, str], before: int) -> None:
    known = max((number for number in states if number <= before), default=0)
    if known > 0 and known > min(states):
        step.run.say(Advance(key, known, states[known], known))
        _forget(step.run, key, states, known)


def _forget(run: Any, key: str, states: dict[int, str], before: int) -> None:  # noqa: ANN401
    """Forgets iterations, as the owner does when it is told."""
    if not before or run.rolling_back:
        return
    for number in [n for n in states if n < before]:
        del states[number]
    run.forget_iterations(key, before)
