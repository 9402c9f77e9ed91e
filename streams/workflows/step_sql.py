"""Runs the SQL of steps for a worker: beside its turns, because Postgres takes its time."""

import logging
from collections.abc import Callable

from headwater.processors.replay.commands import StepRaised, StepReturned
from headwater.processors.replay.step_commits import StepCommit
from headwater.schemas.errors import HeadwaterError, StoreUnavailable, Superseded
from headwater.schemas.history import Failure
from headwater.streams.engine.step_database import StepDatabase, failed, unavailable
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.ownership import OwnedPartition

log = logging.getLogger(__name__)


class StepSql:
    """The SQL of a worker's steps.

    Shape:  `settled` is called with a partition, an activation and what became of a step: it
            returned, and its SQL took effect, or it failed. `superseded` is called with a partition
            that somebody else has claimed in Postgres.
    """

    def __init__(
        self,
        database: StepDatabase | None,
        *,
        settled: Callable[[OwnedPartition, int, StepCommit, StepReturned | StepRaised], None],
        superseded: Callable[[OwnedPartition, str], None],
    ) -> None:
        self._database = database
        self._settled = settled
        self._superseded = superseded

    async def run(self, owned: OwnedPartition, activation: int, returned: StepReturned) -> None:
        """Commits a step that has returned, as long as its result is still wanted."""
        hand = owned.owner.activation(activation)
        if hand is None:
            return
        commit = StepCommit(hand.key, hand.run.run_number, returned)
        if not owned.owner.expects(commit):
            return
        owned.owner.attempt_returned(hand, returned.step.key)
        if self._database is None:
            self._settled(owned, activation, commit, failed(returned, unavailable()))
            return
        retrying = Retrying(log, "the SQL of steps has to wait")
        # A result that comes too late may take no effect: after its row was removed nobody would
        # know that the step took effect before.
        while owned.owner.expects(commit):
            try:
                done = await self._database.commit(owned.number, owned.epoch, commit)
            except StoreUnavailable as error:
                await retrying.failed(error)
                continue
            except Superseded as error:
                self._superseded(owned, error.message)
                return
            except HeadwaterError as error:
                done = Failure(error.code, error.message)
            said = failed(returned, done) if isinstance(done, Failure) else done
            self._settled(owned, activation, commit, said)
            return

    async def take_over(self, owned: OwnedPartition, now_ms: int) -> None:
        """Completes the steps whose SQL took effect and of which the log does not know.

        Errors: StoreUnavailable, Superseded.
        """
        if self._database is None:
            return
        for commit in await self._database.claim(owned.number, owned.epoch):
            owned.owner.recover(commit, now_ms)
            owned.step_rows.append((owned.owner.batch_number, commit.id))

    async def tidy(self, owned: OwnedPartition) -> None:
        """Removes the rows of steps that the log knows of; a row that stays does no harm."""
        if self._database is None:
            return
        known = [step for number, step in owned.step_rows if number <= owned.acknowledged]
        if not known:
            return
        owned.step_rows = [row for row in owned.step_rows if row[0] > owned.acknowledged]
        try:
            await self._database.forget(owned.number, known)
        except HeadwaterError as error:
            log.warning("rows of committed steps stay for now: %s", error)
