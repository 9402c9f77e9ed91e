"""Entries with iterations: loop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias

from headwater.processors.replay.commands import Advance, Close, Fail
from headwater.processors.replay.entry_keys import iteration_scope
from headwater.processors.replay.errors import LoopError
from headwater.processors.replay.state import Entry
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.values import decode, encode
from headwater.streams.authoring.workflow_values import Break, Continue
from headwater.streams.replay.branches import S
from headwater.streams.replay.finished_entries import UntilDue, is_replayed, only_replays

#: Iterations in a row without an entry. Each commit of a loop is an append: a loop that waits for
#: nothing would make them without end.
IDLE_MAX: Final = 10_000

#: An async function of an iteration's scope and of the loop's state.
Body: TypeAlias = Callable[[S, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a loop commits its state, and how much of its history it keeps."""

    commit_interval: int
    history_every: int
    history_keep: int

    def __post_init__(self) -> None:
        for name in ("commit_interval", "history_every", "history_keep"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
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
    scope: S,
    ticket: int,
    name: str,
    body: Body[S],
    state: Any,  # noqa: ANN401
    pace: Pace,
) -> Any:  # noqa: ANN401
    """See `Step.loop`."""
    key, entry = scope.enter(ticket, name, EntryKind.LOOP)
    try:
        if entry is None:
            most = scope.run.limits.max_result_bytes
            begun = encode(state, f'the state of the loop "{key}"', most, "max_result_bytes")
            scope.open(key, name, EntryKind.LOOP, value=begun)
            if not scope.only_replays:
                scope.run.entries[key].commits = {0: begun}
        entry = await _Loop(scope, key, body, pace).result(entry)
    except asyncio.CancelledError:
        scope.give_up(key)
        raise
    finally:
        scope.leave(key)
    if entry.failure is not None:
        raise LoopError(
            f'the loop "{key}" has failed: {entry.failure.name}: {entry.failure.message}'
        )
    return decode(entry.result or "null")


class _Loop(Generic[S]):
    """A loop that the code has entered."""

    def __init__(self, scope: S, key: str, body: Body[S], pace: Pace) -> None:
        self._scope = scope
        self._run = scope.run
        self._key = key
        self._body = body
        self._pace = pace
        self._task = scope.current_task()
        self._told_before = scope.run.told
        self._cancelled_before = self._task.cancelling()
        #: The event since which its first iteration goes on here.
        self._since = scope.since
        #: Iterations in a row that have called no entry, and waited for no other code.
        self._idle = 0

    async def result(self, entry: Entry | None) -> Entry:
        """Runs the loop, or what is left of it, and gives its entry with the result."""
        if entry is not None and entry.status is EntryStatus.CANCELLED and not self._scope.past:
            return await self._replay_cancelled()
        if only_replays(self._scope, entry):
            return await self._replay(entry)
        await self._iterate()
        entry = await self._scope.result(self._key)
        self._run.journal.finished.add(self._key)
        return entry

    # -- a loop that goes on

    async def _iterate(self) -> None:
        run, key = self._run, self._key
        states = run.entries[key].commits
        at = max(states)
        run.journal.pass_over_iterations(key, at)
        if at:
            self._since = max(self._since, run.entries[key].sequence)
        try:
            while isinstance(
                outcome := await self._call_body(self._scope, at, states[at]), Continue
            ):
                at += 1
                states[at] = self._state(outcome)
                if self._pace.commits(at):
                    await self._commit(at, states)
            result = self._encoded(outcome.value, "value")
            self._trim_at_end(states, at + 1 - self._pace.history_keep)
            run.log_failed(run.loop.leave_iterations(key))
            run.send(Close(key, result), awaits=key)
        except Exception as error:
            run.send(Fail(key, failure_of(error)))
            raise

    async def _call_body(self, scope: S, at: int, state: str) -> Break | Continue:
        given = self._run.results_given
        iteration = scope.beneath(iteration_scope(self._key, at))
        iteration.since = max(iteration.since, self._since)
        before = self._run.loop.enter_iteration(self._task, iteration.scope)
        try:
            outcome = await self._body(iteration, decode(state))
        except Exception as error:
            iteration.end(error)
            self._end_if_cancelled(error)
            raise
        finally:
            self._run.loop.enter_iteration(self._task, before)
        self._end_if_cancelled()
        not_awaited = iteration.end(None)
        if not_awaited is not None:
            raise not_awaited
        if not isinstance(outcome, Break | Continue):
            raise LoopError(
                f'expected the body of the loop "{self._key}" to return Continue(state) or '
                f"Break(value), found {type(outcome).__name__}"
            )
        waited = iteration.has_entries or self._run.results_given != given
        self._idle = 0 if waited else self._idle + 1
        if self._idle > IDLE_MAX:
            raise LoopError(
                f'expected the body of the loop "{self._key}" to call an entry, found '
                f"{IDLE_MAX:,} iterations in a row without one, which would go on for ever: wait "
                "in the body by step.sleep or step.wait_for_event, or compute in a step"
            )
        return outcome

    def _end_if_cancelled(self, error: Exception | None = None) -> None:
        """Ends a loop whose body was cancelled with its task or the run, whatever it makes of that.

        A replay begins at a commit, which has to be one before that, and waits for nothing but the
        result of a loop that has one.
        """
        told = self._run.told and not self._told_before
        if told or self._task.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError from error

    def _state(self, outcome: Continue) -> str:
        return self._encoded(outcome.state, "state")

    def _encoded(self, value: Any, what: str) -> str:  # noqa: ANN401
        most = self._run.limits.max_result_bytes
        return encode(value, f'the {what} of the loop "{self._key}"', most, "max_result_bytes")

    async def _commit(self, at: int, states: dict[int, str]) -> None:
        run, key = self._run, self._key
        before = at - self._pace.history_keep if self._pace.trims(at) else 0
        durable = run.results.of_commit(key)
        run.log_failed(run.loop.leave_iterations(key))
        run.send(Advance(key, at, states[at], before, run.told), awaits=key)
        try:
            await durable
        except asyncio.CancelledError:
            # An owner who knew before that the run is cancelled has refused it.
            run.pending.discard(key)
            raise

    def _trim_at_end(self, states: dict[int, str], before: int) -> None:
        """Forgets old iterations at the end, with the state from which the rest goes on.

        States between commits are not known if a replay began after them: then it is an earlier
        one.
        """
        run, key = self._run, self._key
        known = max((number for number in states if number <= before), default=None)
        if known is not None and before > run.entries[key].trimmed:
            run.send(Advance(key, known, states[known], before, run.told))

    # -- a loop that only replays

    async def _replay_cancelled(self) -> Entry:
        """Runs a loop again whose task the author's code has cancelled, and cancels again.

        It has no result that could be due before that, and its body may have cleaned up.
        """
        await self._iterate_again(self._scope.beneath(self._key, past=True))
        return await self._scope.result(self._key)

    async def _replay(self, entry: Entry | None) -> Entry:
        """Gives what is recorded of a loop, and an error as it was: only its body can make that.

        What is complete is not entered again, because replays begin at commits, and its end is the
        last of them. Only its rollback handlers are found by running it.
        """
        run, key = self._run, self._key
        completed = entry is not None and entry.status is EntryStatus.COMPLETED
        if completed and not run.rolling_back:
            run.journal.pass_over(key)
            return await self._scope.result(key)
        due = self._scope.result(key)
        if not is_replayed(self._scope, key):
            return await due
        past = self._scope.beneath(key, past=True)
        try:
            await UntilDue(run.loop, self._iterate_again(past), due, self._task)
        except Exception:
            if not completed:
                raise
        entry = await due
        past.lost = True
        run.journal.finished.add(key)
        return entry

    async def _iterate_again(self, past: S) -> None:
        """Iterations from the latest commit on, where replays begin; rolling back, the earliest.

        A commit without a record, after the last iteration that has any, stays without: so a body
        that does not end where it did cannot go on for ever.
        """
        run, key = self._run, self._key
        states = run.entries[key].commits
        at = min(states) if run.rolling_back else max(states)
        last = max(run.journal.last_iteration(key), *states)
        run.journal.pass_over_iterations(key, at)
        state = states[at]
        while isinstance(outcome := await self._call_body(past, at, state), Continue):
            at += 1
            state = states.get(at) or self._state(outcome)
            if at > last and self._pace.commits(at):
                await run.loop.create_future()
