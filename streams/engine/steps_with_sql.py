"""Steps with SQL: their commit, from the return of an attempt to the record of its outcome.

The statements of a step run in one Postgres transaction with a commit row that has the step and its
result. The record in the log follows. After a crash between the two, the new owner finds the row
and completes the step from it; the callback does not run again. Owners also claim their partition
in Postgres, which refuses transactions of older epochs. A superseded owner thus cannot commit a
transaction after the new owner has read the rows.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

import msgspec

from headwater.processors.runs.decisions import Rejection, Request, StepRaised, StepReturned
from headwater.processors.runs.host_messages import HostMessage, Requested
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.step_commits import StepCommit, StepId
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import STATEMENT_REFUSED, UNIQUE_CONSTRAINT
from headwater.schemas.history import (
    EntriesCancelled,
    Failure,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
)
from headwater.streams.engine.activations import Activations, Priority
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances

log = logging.getLogger(__name__)

#: Failures that another attempt would have, too: names of Headwater, and of errors of psycopg for a
#: statement that does not fit the schema.
_FINAL: Final = frozenset(
    {
        *(UNIQUE_CONSTRAINT, STATEMENT_REFUSED),
        *("SyntaxError", "UndefinedTable", "UndefinedColumn", "UndefinedFunction"),
    }
)


class StepDatabase(Protocol):
    """The database in which the SQL of steps runs."""

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Fence older epochs. Return commits that may not be in the log.

        Waits for transactions of older epochs that are in progress.

        Raises:
            StoreUnavailable: Postgres is not available.
            Superseded: A newer epoch has claimed the partition.
        """

    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        """Run the statements of a step in one transaction with its commit row.

        Returns:
            The result to record, if the SQL took effect now or before; in the latter case it is
            the earlier result. Otherwise the failure of the step.

        Raises:
            StoreUnavailable: It did not take effect.
            EffectUnknown: It is not known whether it took effect. Call again; it happens once.
            Superseded: This epoch does not own the partition.
        """

    async def forget(self, partition: int, steps: Collection[StepId]) -> None:
        """Delete the rows of steps with results that are durable in the log.

        Raises:
            StoreUnavailable: Postgres is not available.
        """


def failed(commit: StepCommit, failure: Failure) -> StepRaised:
    """Return the failure of a step with failed SQL, and log it. Some errors are not retried."""
    returned = commit.returned
    where = (commit.key, returned.step.key, returned.attempt)
    log.warning('%s: step "%s", attempt %d failed: %s: %s', *where, failure.name, failure.message)
    retryable = failure.name not in _FINAL
    # A database may include the whole of a value that it rejects.
    truncated = Failure(failure.name, bounded(failure.message))
    return StepRaised(returned.step, returned.attempt, truncated, returned.policy, retryable)


# -- steps


class StepsWithSql:
    """The steps with SQL of one owner, which decides their requests.

    The owner continues while Postgres executes the SQL. Requests that would undo such a step
    meanwhile are held back: if the step were cancelled, or its run ended, before the outcome is
    known, the log would not record an effect that exists, and it would not be rolled back.
    """

    def __init__(
        self,
        instances: LiveInstances,
        activations: Activations,
        request: Callable[[LiveInstance, Request, int], None],
    ) -> None:
        self._instances = instances
        self._activations = activations
        self._request = request

    def begin(self, activation: int, returned: StepReturned) -> StepCommit | None:
        """Record an attempt that returned with SQL. Return None if its result is not needed.

        Until it has `ended`, its step is not started again, even if its host is lost. The timeout
        of the attempt stops.
        """
        if (live := self._activations.find(activation)) is None:
            return None
        commit = StepCommit(live.key, live.run.run_number, returned)
        if not self._expects(commit):
            return None
        key = returned.step.key
        self._activations.attempts_ended(live, key)
        live.attempts[key] = None
        live.committing.add(commit.id)
        return commit

    def mark_sent(self, commit: StepCommit) -> bool:
        """Record that the SQL is sent to Postgres now. Return False if it is not needed.

        Raises:
            StoreUnavailable: The state of the instance is being restored; call again later.
        """
        instance = self._instances.in_memory(commit.key)
        if instance is not None and instance.damaged:
            raise StoreUnavailable(f"the state of {commit.key} is being restored from the log")
        if not self._expects(commit) or (live := self._instances.find(commit.key)) is None:
            return False
        live.trying.add(commit.id)
        return True

    def mark_waiting(self, commit: StepCommit) -> list[HostMessage]:
        """Record that Postgres was unavailable and is retried. Return the messages held back."""
        live = self._instances.find(commit.key)
        return [] if live is None else _release(live, commit)

    def ended(self, commit: StepCommit, now_ms: int) -> list[HostMessage]:
        """Record that SQL has taken effect and was recorded, or will not take effect.

        Continues an instance that waited for it.

        Returns:
            The messages held back.
        """
        live = self._instances.find(commit.key)
        if live is None:
            return []
        live.committing.discard(commit.id)
        if live.activation is None and live.engine.is_runnable(live.run, now_ms):
            self._activations.make_ready(live, Priority.CONTINUE, now_ms)
        return _release(live, commit)

    def recover(self, commit: StepCommit, now_ms: int) -> None:
        """Complete a step after its SQL took effect, if the log does not have the result yet."""
        if (awaited := self._attempt_awaited(commit)) is not None:
            live, attempt = awaited
            self._request(live, msgspec.structs.replace(commit.returned, attempt=attempt), now_ms)

    def hold_back(self, live: LiveInstance, message: Requested[Request], now_ms: int) -> bool:
        """Hold back a request that would undo a step with SQL in progress, and all after it."""
        if not live.held_behind_sql:
            if not live.trying:
                return False
            decision = live.engine.decide(live.run, message.request, now_ms)
            steps = {step.step for step in live.trying}
            if isinstance(decision, Rejection) or not any(_undoes(e, steps) for e in decision):
                return False
        live.held_behind_sql.append(message)
        return True

    def _expects(self, commit: StepCommit) -> bool:
        """Whether the result of this attempt is still needed."""
        awaited = self._attempt_awaited(commit)
        return awaited is not None and awaited[1] == commit.returned.attempt

    def _attempt_awaited(self, commit: StepCommit) -> tuple[LiveInstance, int] | None:
        live = self._instances.find(commit.key)
        if live is None or live.run.ended or live.run.run_number != commit.run_number:
            return None
        attempt = live.engine.expected_attempt(live.run, commit.returned.step.key)
        return None if attempt is None else (live, attempt)


def _release(live: LiveInstance, commit: StepCommit) -> list[HostMessage]:
    live.trying.discard(commit.id)
    messages, live.held_behind_sql = live.held_behind_sql, []
    return messages


def _undoes(event: RunEvent, steps: set[str]) -> bool:
    """Whether an event ends one of these steps."""
    if isinstance(event, EntriesCancelled):
        return not steps.isdisjoint(event.keys)
    return isinstance(event, RunCompleted | RunErrored | RollbackStarted)
