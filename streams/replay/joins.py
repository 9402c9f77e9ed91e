"""Entries with branches: join and race."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from headwater.processors.code.errors import JoinError, RaceError, UnserialisableError
from headwater.processors.code.host_messages import Close, CodeCommand, Fail, Losers
from headwater.processors.code.state import Entry, entry_key
from headwater.processors.runs.limits import FAILURE_MESSAGE_MAX, bounded
from headwater.schemas.failures import JOIN, RACE
from headwater.schemas.history import Failure
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.arguments import check_length, check_name
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.values import decode, encode
from headwater.streams.authoring.workflow_values import Won
from headwater.streams.replay.branches import Branch, Branches, S, only_replays, replay_within
from headwater.streams.replay.scope import Scope

#: Characters of the messages of all failed branches together, so that they fit into a result.
_MESSAGES_MAX: Final = 240 * 1024


async def join(scope: S, ticket: int, name: str, branches: Mapping[str, Branch[S]]) -> Any:  # noqa: ANN401
    """See `Step.join`."""
    entry = await _run_entry(scope, ticket, name, EntryKind.JOIN, branches)
    if entry.failure is not None:
        raise _error(entry.failure, JoinError)
    return decode(entry.result or "null")


async def race(scope: S, ticket: int, name: str, branches: Mapping[str, Branch[S]]) -> Won:
    """See `Step.race`."""
    entry = await _run_entry(scope, ticket, name, EntryKind.RACE, branches)
    if entry.failure is not None:
        raise _error(entry.failure, RaceError)
    won = decode(entry.result or "null")
    return Won(won["winner"], won["value"])


async def _run_entry(
    scope: S, ticket: int, name: str, kind: EntryKind, branches: Mapping[str, Branch[S]]
) -> Entry:
    """Run the branches of an entry and return the entry with its result."""
    key, entry = _enter(scope, ticket, name, kind, branches)
    is_race = kind is EntryKind.RACE
    try:
        if only_replays(scope, entry):
            replay = _replay_race if is_race else _replay_join
            entry = await replay(scope, key, branches)
        else:
            running = _begin(scope, key, branches)
            await running.until(
                lambda: running.all_settled() or (is_race and running.winner() is not None)
            )
            scope.run.send((_raced if is_race else _joined)(scope, key, running), awaits=key)
            entry = await scope.result(key)
            scope.run.journal.finished.add(key)
    except asyncio.CancelledError:
        scope.abandon(key)
        raise
    finally:
        scope.leave(key)
    return entry


def _enter(
    scope: S, ticket: int, name: str, kind: EntryKind, branches: Mapping[str, Branch[S]]
) -> tuple[str, Entry | None]:
    scope.run.unawaited.pop(ticket, None)
    if not branches or not all(callable(branch) for branch in branches.values()):
        raise ValueError(
            f"expected a {kind.value} to have branches, each an async function of a step, "
            f"found {dict(branches)!r}"
        )
    for branch in branches:
        what = f'the name of a branch of "{name}"'
        check_name(branch, what)
        check_length(branch, scope.run.limits, what)
    key, entry = scope.enter(ticket, name, kind)
    if entry is None:
        scope.open(key, name, kind)
    return key, entry


def _begin(
    scope: S, key: str, branches: Mapping[str, Branch[S]], *, past: bool = False
) -> Branches[S]:
    scopes = {name: scope.child_scope(entry_key(key, name), past=past) for name in branches}
    return Branches(scopes, branches)


def _joined(scope: Scope, key: str, running: Branches[Any]) -> CodeCommand:
    failures = running.failures()
    try:
        if failures:
            message = f'branches of "{key}" failed: {_listed(failures)}'
            return Fail(key, Failure(JOIN, message, _detail(failures)))
        values = {name: running.settled[name][0] for name in running.scopes}
        most = scope.run.limits.max_result_bytes
        what = f'the values of the join "{key}"'
        return Close(key, encode(values, what, most, "max_result_bytes"))
    except UnserialisableError as error:
        return Fail(key, failure_of(error))


def _raced(scope: Scope, key: str, running: Branches[Any]) -> CodeCommand:
    winner = running.winner()
    lost = [running.scopes[name].scope for name in running.cancel_others()]
    losers = Losers(tuple(lost), scope.run.discard(lost))
    try:
        if winner is None:
            failures = running.failures()
            message = f'no branch of "{key}" completed: {_listed(failures)}'
            return Fail(key, Failure(RACE, message, _detail(failures)))
        value = {"winner": winner, "value": running.settled[winner][0]}
        most = scope.run.limits.max_result_bytes
        what = f'the value of the race "{key}"'
        return Close(key, encode(value, what, most, "max_result_bytes"), losers)
    except UnserialisableError as error:
        return Fail(key, failure_of(error), losers)


async def _replay_join(scope: S, key: str, branches: Mapping[str, Branch[S]]) -> Entry:
    return await replay_within(scope, key, lambda: _begin(scope, key, branches, past=True))


async def _replay_race(scope: S, key: str, branches: Mapping[str, Branch[S]]) -> Entry:
    """Replay branches, the losers only as far as they ran.

    A result of a loser may be recorded between the winner's last result and the end of the race,
    although its code never saw it. If the winner's code has become shorter, however, a loser may
    not be as far as it was when the winner settles.
    """
    entry = scope.run.entries.get(key)
    completed = entry is not None and entry.status is EntryStatus.COMPLETED
    winner = decode(entry.result or "null")["winner"] if entry and completed else None
    failure = entry.failure if entry else None
    unserialisable = failure is not None and _is_unserialisable(failure)

    def is_won(running: Branches[Any]) -> bool:
        return winner in running.settled or (unserialisable and running.winner() is not None)

    def end_losers(running: Branches[Any]) -> None:
        for name in running.others():
            if not any(scope.run.journal.unvisited(running.scopes[name].scope)):
                running.cancel(name)

    return await replay_within(
        scope,
        key,
        lambda: _begin(scope, key, branches, past=True),
        settles=is_won,
        settled=end_losers,
    )


def _listed(failures: Mapping[str, Failure]) -> str:
    shown = (f"{name}: {failure.name}: {failure.message}" for name, failure in failures.items())
    return bounded("; ".join(shown))


def _detail(failures: Mapping[str, Failure]) -> str:
    longest = min(FAILURE_MESSAGE_MAX, _MESSAGES_MAX // len(failures))
    plain = {
        n: {"name": f.name, "message": bounded(f.message, longest)} for n, f in failures.items()
    }
    return encode(plain, "the failures of branches")


def _error(failure: Failure, kind: type[JoinError | RaceError]) -> Exception:
    """Return the error of an entry: of its kind, unless a value could not be encoded."""
    if _is_unserialisable(failure):
        return UnserialisableError(failure.message)
    plain = decode(failure.detail) if failure.detail else {}
    errors = {name: Failure(detail["name"], detail["message"]) for name, detail in plain.items()}
    return kind(failure.message, errors)


def _is_unserialisable(failure: Failure) -> bool:
    return failure.name == UnserialisableError.__name__
