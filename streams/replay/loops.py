"""Entries with iterations: loop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias

from headwater.processors.code.errors import LoopError
from headwater.processors.code.host_messages import Advance, Close, Fail
from headwater.processors.code.state import Entry, iteration_scope
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.failures import failure_of
from headwater.streams.authoring.values import decode, encode
from headwater.streams.authoring.workflow_values import Break, Continue
from headwater.streams.replay.branches import S, UntilDue, is_replayed, only_replays

#: Consecutive iterations without an entry. A commit of a loop is an append, so a loop that waits
#: for nothing would append without end.
IDLE_MAX: Final = 10_000

#: An async function that takes the iteration's scope and the loop's state.
Body: TypeAlias = Callable[[S, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a loop commits its state, and how much of its history is kept."""

    commit_interval: int
    history_every: int
    history_keep: int

    def __post_init__(self) -> None:
        for name in ("commit_interval", "history_every", "history_keep"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"expected {name} to be a whole number from 1, found {value!r}")

    def trims(self, iteration: int) -> bool:
        """Whether old iterations are trimmed after this iteration."""
        return iteration % self.history_every == 0 and iteration > self.history_keep

    def commits(self, iteration: int) -> bool:
        """Whether the state is committed: also where a later trim will begin what is kept."""
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
        scope.abandon(key)
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
        self._cancel_delivered_before = scope.run.cancel_delivered
        self._cancelled_before = self._task.cancelling()
        #: Progress of the code (see `LoggedLines`) when its first iteration here begins.
        self._since = scope.since
        #: Consecutive iterations that have called no entry and waited for no other code.
        self._idle = 0

    async def result(self, entry: Entry | None) -> Entry:
        """Run the rest of the loop and return its entry with the result."""
        if entry is not None and entry.status is EntryStatus.CANCELLED and not self._scope.past:
            return await self._replay_cancelled()
        if only_replays(self._scope, entry):
            return await self._replay(entry)
        await self._iterate()
        entry = await self._scope.result(self._key)
        self._run.journal.finished.add(self._key)
        return entry

    # -- a loop that continues

    async def _iterate(self) -> None:
        run, key = self._run, self._key
        states = run.entries[key].commits
        at = max(states)
        run.journal.skip_iterations(key, at)
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
        results_before = self._run.results_delivered
        iteration = scope.child_scope(iteration_scope(self._key, at))
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
        waited = iteration.has_entries or self._run.results_delivered != results_before
        self._idle = 0 if waited else self._idle + 1
        if self._idle > IDLE_MAX:
            raise LoopError(
                f'expected the body of the loop "{self._key}" to call an entry, found '
                f"{IDLE_MAX:,} iterations in a row without one, which would continue forever: wait "
                "in the body by step.sleep or step.wait_for_event, or compute in a step"
            )
        return outcome

    def _end_if_cancelled(self, error: Exception | None = None) -> None:
        """End a loop after its task or the run was cancelled, even if its body ignored that.

        A replay must begin at a commit from before the cancellation, and waits only for the result
        of the loop if it has one.
        """
        delivered = self._run.cancel_delivered and not self._cancel_delivered_before
        if delivered or self._task.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError from error

    def _state(self, outcome: Continue) -> str:
        return self._encoded(outcome.state, "state")

    def _encoded(self, value: Any, what: str) -> str:  # noqa: ANN401
        most = self._run.limits.max_result_bytes
        return encode(value, f'the {what} of the loop "{self._key}"', most, "max_result_bytes")

    async def _commit(self, at: int, states: dict[int, str]) -> None:
        run, key = self._run, self._key
        before = at - self._pace.history_keep if self._pace.trims(at) else 0
        durable = run.results.commit_future(key)
        run.log_failed(run.loop.leave_iterations(key))
        run.send(Advance(key, at, states[at], before, run.cancel_delivered), awaits=key)
        try:
            await durable
        except asyncio.CancelledError:
            # The owner refuses the commit if it knew earlier that the run is cancelled.
            run.pending.discard(key)
            raise

    def _trim_at_end(self, states: dict[int, str], before: int) -> None:
        """Trim old iterations at the end, keeping a state from which the rest can be replayed.

        If a replay began after a commit, states between commits are not known, and an earlier one
        is used.
        """
        run, key = self._run, self._key
        known = max((number for number in states if number <= before), default=None)
        if known is not None and before > run.entries[key].trimmed:
            run.send(Advance(key, known, states[known], before, run.cancel_delivered))

    # -- a loop that only replays

    async def _replay_cancelled(self) -> Entry:
        """Replay a loop that was cancelled with its task.

        It has no result that could be due before the cancellation, and its body may clean up.
        """
        await self._replay_iterations(self._scope.child_scope(self._key, past=True))
        return await self._scope.result(self._key)

    async def _replay(self, entry: Entry | None) -> Entry:
        """Return the recorded result of a loop, or replay its body to raise its error again.

        A completed loop is not entered again, because replays begin at commits, and its end is the
        last of them. It is only replayed to collect rollback handlers.
        """
        run, key = self._run, self._key
        completed = entry is not None and entry.status is EntryStatus.COMPLETED
        if completed and not run.rolling_back:
            run.journal.skip(key)
            return await self._scope.result(key)
        due = self._scope.result(key)
        if not is_replayed(self._scope, key):
            return await due
        past = self._scope.child_scope(key, past=True)
        try:
            await UntilDue(run.loop, self._replay_iterations(past), due, self._task)
        except Exception:
            if not completed:
                raise
        entry = await due
        past.lost = True
        run.journal.finished.add(key)
        return entry

    async def _replay_iterations(self, past: S) -> None:
        """Replay iterations from the latest commit, or from the earliest during a rollback.

        A commit that is not recorded, after the last recorded iteration, stays pending, so that a
        body that does not end where it did originally cannot loop forever.
        """
        run, key = self._run, self._key
        states = run.entries[key].commits
        at = min(states) if run.rolling_back else max(states)
        last = max(run.journal.last_iteration(key), *states)
        run.journal.skip_iterations(key, at)
        state = states[at]
        while isinstance(outcome := await self._call_body(past, at, state), Continue):
            at += 1
            state = states.get(at) or self._state(outcome)
            if at > last and self._pace.commits(at):
                await run.loop.create_future()
