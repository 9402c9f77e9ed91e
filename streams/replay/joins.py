"""Entries with branches: join and race."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.replay.commands import Close, CodeCommand, Fail, Losers
from headwater.processors.replay.errors import JoinError, RaceError, UnserialisableError
from headwater.processors.replay.state import Entry, EntryStatus
from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX, bounded
from headwater.schemas.history import EntryKind, Failure
from headwater.streams.authoring.values import decode, encode
from headwater.streams.replay.branches import Branch, Branches
from headwater.streams.replay.giving_up import give_up
from headwater.streams.replay.host_port import failure_of
from headwater.streams.replay.retelling import is_over, retell
from headwater.streams.replay.scope import escaped
from headwater.streams.replay.workflow import Won

if TYPE_CHECKING:
    from headwater.streams.replay.step import Step

#: Characters of the messages of all branches that have failed, so that they are a result that fits.
_MESSAGES_MAX: Final = 240 * 1024


async def join(step: "Step", ticket: int, name: str, branches: Mapping[str, Branch]) -> Any:  # noqa: ANN401
    """See `Step.join`."""
    run = step.run
    key, entry = _enter(step, ticket, name, EntryKind.JOIN, branches)
    try:
        if is_over(step, entry):
            entry = await retell(step, key, lambda: _begin(step, key, branches, past=True))
        else:
            running = _begin(step, key, branches)
            await running.until(running.all_settled)
            run.say(_joined(key, running), owed=key)
            entry = await run.result(key)
            run.record.through.add(key)
    except asyncio.CancelledError:
        give_up(step, key)
        raise
    finally:
        step.leave(key)
    if entry.failure is not None:
        raise _error(entry.failure, JoinError)
    return decode(entry.result or "null")


async def race(step: "Step", ticket: int, name: str, branches: Mapping[str, Branch]) -> Won:
    """See `Step.race`."""
    run = step.run
    key, entry = _enter(step, ticket, name, EntryKind.RACE, branches)
    try:
        if is_over(step, entry):
            entry = await _retell_race(step, key, branches)
        else:
            running = _begin(step, key, branches)
            await running.until(lambda: running.all_settled() or _winner(running) is not None)
            run.say(_raced(step, key, running), owed=key)
            entry = await run.result(key)
            run.record.through.add(key)
    except asyncio.CancelledError:
        give_up(step, key)
        raise
    finally:
        step.leave(key)
    if entry.failure is not None:
        raise _error(entry.failure, RaceError)
    won = decode(entry.result or "null")
    return Won(won["winner"], won["value"])


def _enter(
    step: "Step", ticket: int, name: str, kind: EntryKind, branches: Mapping[str, Branch]
) -> tuple[str, Entry | None]:
    if not branches or not all(callable(branch) for branch in branches.values()):
        step.run.unawaited.pop(ticket, None)
        raise ValueError(
            f"expected a {kind.value} to have branches, each an async function of a step, "
            f"found {dict(branches)!r}"
        )
    key, entry = step.enter(ticket, name, kind)
    if entry is None:
        step.open(key, name, kind)
    return key, entry


def _begin(
    step: "Step", key: str, branches: Mapping[str, Branch], *, past: bool = False
) -> Branches:
    steps = {name: step.beneath(f"{key}/{escaped(name)}", past=past) for name in branches}
    return Branches(steps, branches)


def _joined(key: str, running: Branches) -> CodeCommand:
    failures = running.failures()
    try:
        if failures:
            message = f'branches of "{key}" failed: {_listed(failures)}'
            return Fail(key, Failure("JoinError", message, _detail(failures)))
        values = {name: running.settled[name][0] for name in running.steps}
        return Close(key, encode(values, f'the values of the join "{key}"'))
    except UnserialisableError as error:
        return Fail(key, failure_of(error))


def _winner(running: Branches) -> str | None:
    return next((name for name, (_, error) in running.settled.items() if error is None), None)


def _raced(step: "Step", key: str, running: Branches) -> CodeCommand:
    winner = _winner(running)
    lost = [running.steps[name].scope for name in running.end_others()]
    losers = Losers(tuple(lost), tuple(step.run.abandon(lost)))
    try:
        if winner is None:
            failures = running.failures()
            message = f'no branch of "{key}" completed: {_listed(failures)}'
            return Fail(key, Failure("RaceError", message, _detail(failures)))
        value = {"winner": winner, "value": running.settled[winner][0]}
        return Close(key, encode(value, f'the value of the race "{key}"'), losers)
    except UnserialisableError as error:
        return Fail(key, failure_of(error), losers)


async def _retell_race(step: "Step", key: str, branches: Mapping[str, Branch]) -> Entry:
    """Runs branches again; the losers for as long as they ran, and no longer.

    A result of a loser's may be recorded between the last one of the winner's and the end of the
    race. Its code never saw it; but if the winner's code has become shorter, a loser may have been
    further than it is when the winner settles.
    """
    entry = step.run.entries.get(key)
    completed = entry is not None and entry.status is EntryStatus.COMPLETED
    winner = decode(entry.result or "null")["winner"] if entry and completed else None
    failure = entry.failure if entry else None
    unserialisable = failure is not None and _is_unserialisable(failure)

    def is_won(running: Branches) -> bool:
        return winner in running.settled or (unserialisable and _winner(running) is not None)

    def end_losers(running: Branches) -> None:
        for name in running.others():
            if not any(step.run.record.unvisited(running.steps[name].scope)):
                running.cancel(name)

    return await retell(
        step,
        key,
        lambda: _begin(step, key, branches, past=True),
        settles=is_won,
        settled=end_losers,
    )


def _listed(failures: Mapping[str, Failure]) -> str:
    shown = (f"{name}: {each.name}: {each.message}" for name, each in failures.items())
    return bounded("; ".join(shown))


def _detail(failures: Mapping[str, Failure]) -> str:
    longest = min(FAILURE_MESSAGE_MAX, _MESSAGES_MAX // len(failures))
    plain = {
        n: {"name": f.name, "message": bounded(f.message, longest)} for n, f in failures.items()
    }
    return encode(plain, "the failures of branches")


def _error(failure: Failure, kind: type[JoinError | RaceError]) -> Exception:
    """The error of an entry, which is of its kind unless a value is why."""
    if _is_unserialisable(failure):
        return UnserialisableError(failure.message)
    plain = decode(failure.detail) if failure.detail else {}
    errors = {name: Failure(each["name"], each["message"]) for name, each in plain.items()}
    return kind(failure.message, errors)


def _is_unserialisable(failure: Failure) -> bool:
    return failure.name == UnserialisableError.__name__
