"""Steps whose SQL takes effect: from the return of an attempt to the record of what it came to.

Their SQL is with Postgres while the owner goes on. What would undo such a step meanwhile is held:
what is cancelled, or ends before it is known, would have no record of an effect that is there, and
nothing would roll it back.
"""

from collections.abc import Callable

import msgspec

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.host_messages import HostMessage, Requested
from headwater.processors.runs.requests import Request, StepReturned
from headwater.processors.runs.step_commits import StepCommit
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.history import (
    EntriesCancelled,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
)
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.ready import Priority


class StepsWithSql:
    """Those of one owner, which decides what is requested."""

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
        """Takes note of an attempt that returned with SQL; None if nobody wants its result.

        Until it has `ended` its step is not begun again, though its host may go. It no longer takes
        too long.
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

    def tries(self, commit: StepCommit) -> bool:
        """Record that Postgres is asked now to let SQL take effect; False if nothing needs it.

        Raises:
            StoreUnavailable: The state of the instance is being restored; ask again later.
        """
        found = self._instances.at_work(commit.key)
        if found is not None and found.damaged:
            raise StoreUnavailable(f"the state of {commit.key} is being restored from the log")
        if not self._expects(commit) or (live := self._instances.find(commit.key)) is None:
            return False
        live.trying.add(commit.id)
        return True

    def waits(self, commit: StepCommit) -> list[HostMessage]:
        """Takes note that Postgres could not be asked, and will be again; gives what was held."""
        live = self._instances.find(commit.key)
        return [] if live is None else _release(live, commit)

    def ended(self, commit: StepCommit, now_ms: int) -> list[HostMessage]:
        """Takes note that SQL has taken effect and was recorded, or will not; gives what was held.

        Who waited for that goes on.
        """
        live = self._instances.find(commit.key)
        if live is None:
            return []
        live.committing.discard(commit.id)
        if live.activation is None and live.engine.is_runnable(live.run, now_ms):
            self._activations.make_ready(live, Priority.CONTINUE, now_ms)
        return _release(live, commit)

    def recover(self, commit: StepCommit, now_ms: int) -> None:
        """Completes a step whose SQL took effect, if the log does not say so yet."""
        if (awaited := self._attempt_awaited(commit)) is not None:
            live, attempt = awaited
            self._request(live, msgspec.structs.replace(commit.returned, attempt=attempt), now_ms)

    def holds(self, live: LiveInstance, message: Requested[Request], now_ms: int) -> bool:
        """Holds what would undo a step whose SQL may have taken effect, and all that follows it."""
        if not live.behind_sql:
            if not live.trying:
                return False
            decision = live.engine.decide(live.run, message.request, now_ms)
            steps = {each.step for each in live.trying}
            if isinstance(decision, Rejection) or not any(_undoes(e, steps) for e in decision):
                return False
        live.behind_sql.append(message)
        return True

    def _expects(self, commit: StepCommit) -> bool:
        """Whether the result of this attempt is still wanted."""
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
    behind, live.behind_sql = live.behind_sql, []
    return behind


def _undoes(event: RunEvent, steps: set[str]) -> bool:
    """Whether an event gives up one of these steps."""
    if isinstance(event, EntriesCancelled):
        return not steps.isdisjoint(event.keys)
    return isinstance(event, RunCompleted | RunErrored | RollbackStarted)
