"""Runs the SQL of steps for a worker, concurrently with its turns."""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable

from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.step_commits import EffectUnknown, StepCommit, StepId
from headwater.schemas.errors import HeadwaterError, StoreUnavailable, Superseded
from headwater.schemas.history import Failure
from headwater.streams.engine.driver import recover
from headwater.streams.engine.steps_with_sql import StepDatabase, failed
from headwater.streams.engine.turns import Partition, StepOutcome, StepTransaction
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)


class StepSql:
    """The SQL of a worker's steps.

    Args:
        database: The database, if there is one.
        settled: Called with the outcome of a step.
        waits: Called with a step that waits for Postgres.
        superseded: Called with a partition that another worker has claimed in Postgres.
        confirmed: Waits until a partition is certainly owned. Returns False if it is released.
    """

    def __init__(
        self,
        database: StepDatabase | None,
        *,
        settled: Callable[[StepTransaction, StepOutcome], None],
        waits: Callable[[StepTransaction], None],
        superseded: Callable[[Partition, str], None],
        confirmed: Callable[[Partition], Awaitable[bool]],
    ) -> None:
        self._confirmed = confirmed
        self._database = database
        self._settled = settled
        self._waits = waits
        self._superseded = superseded
        self._recorded: dict[Partition, list[StepId]] = defaultdict(list)

    async def run(self, step: StepTransaction) -> None:
        """Commit a step that has returned, while its result is still needed."""
        partition, commit = step.partition, step.commit
        what = f'the SQL of step "{commit.returned.step.name}" of {commit.key}'
        retrying = Retrying(log, f"{what} has to wait")
        is_unknown = False
        # A result that arrives too late must not take effect: after its row is deleted, it would
        # not be known that the step took effect before.
        while True:
            if not await self._confirmed(partition):
                return
            try:
                if not partition.owner.sql.mark_sent(commit):
                    break
                done = await self._commit(partition, commit)
            except StoreUnavailable as error:
                # Requests that would undo it are held back until its outcome is known.
                is_unknown = is_unknown or isinstance(error, EffectUnknown)
                if not is_unknown:
                    self._waits(step)
                await retrying.failed(error)
                continue
            except Superseded as error:
                self._superseded(partition, error.message)
                return
            except HeadwaterError as error:
                done = Failure(error.code, error.message)
            except Exception as error:
                # A bug, or an error specific to this SQL. The step fails, and its retry finds the
                # row if the SQL did take effect. Acquiring the partition again would only repeat
                # the error and delay the whole partition.
                log.exception("%s could not be run", what)
                done = Failure(type(error).__name__, f"expected to run {what}, found: {error!r}")
            if isinstance(done, Failure):
                self._settled(step, failed(commit, done))
            else:
                self._settled(step, done)
            return
        self._settled(step, None)

    async def _commit(self, partition: Partition, commit: StepCommit) -> StepReturned | Failure:
        if self._database is None:
            raise StoreUnavailable(
                "expected a Postgres database for tx.execute, found none: start the worker with "
                "HEADWATER_POSTGRES set"
            )
        return await self._database.commit(partition.number, partition.epoch, commit)

    async def recover_steps(self, partition: Partition, now_ms: int) -> None:
        """Complete the steps whose SQL took effect and whose result is not in the log.

        Raises:
            StoreUnavailable: Postgres is not available.
            Superseded: Another worker has claimed the partition.
        """
        if self._database is None:
            return
        for commit in await self._database.claim(partition.number, partition.epoch):
            recover(partition, commit, now_ms)

    def recorded(self, partition: Partition, step: StepId) -> None:
        """Record that the result of a step is in the log."""
        self._recorded[partition].append(step)

    def forget(self, partition: Partition) -> None:
        """Forget a partition that was released. Its next owner finds the rows."""
        self._recorded.pop(partition, None)

    async def tidy(self, partition: Partition) -> None:
        """Delete the rows of steps whose results are in the log. A row that stays is harmless."""
        known = self._recorded.pop(partition, [])
        if self._database is None or not known:
            return
        try:
            await self._database.forget(partition.number, known)
        except HeadwaterError as error:
            log.warning("rows of committed steps stay for now: %s", error)
