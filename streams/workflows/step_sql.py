"""Runs the SQL of steps for a worker: beside its turns, because Postgres takes its time."""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable

from headwater.processors.runs.requests import StepReturned
from headwater.processors.runs.step_commits import EffectUnknown, StepCommit, StepId
from headwater.schemas.errors import HeadwaterError, StoreUnavailable, Superseded
from headwater.schemas.history import Failure
from headwater.streams.engine.driver import recover
from headwater.streams.engine.step_database import StepDatabase, failed
from headwater.streams.engine.turns import Partition, StepOutcome, StepTransaction
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)


class StepSql:
    """The SQL of a worker's steps.

    Shape:  `settled` is called with what became of a step; `superseded` with a partition that
            somebody else has claimed in Postgres; `confirmed` waits until a partition is surely
            owned, and gives False once it is given up.
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
        """Commits a step that has returned, as long as its result is still wanted."""
        partition, commit = step.partition, step.commit
        what = f'the SQL of step "{commit.returned.step.name}" of {commit.key}'
        retrying = Retrying(log, f"{what} has to wait")
        is_unknown = False
        # A result that comes too late may take no effect: after its row was removed nobody would
        # know that the step took effect before.
        while True:
            if not await self._confirmed(partition):
                return
            try:
                if not partition.owner.sql.tries(commit):
                    break
                done = await self._commit(partition, commit)
            except StoreUnavailable as error:
                # What would undo it is held until it is known whether it took effect.
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
                # A fault of ours, or of what this SQL meets: it costs its step, which is tried
                # again as its policy says and then finds its row if the SQL did take effect. A
                # takeover would meet it again, and hold up the whole partition.
                log.exception("%s could not be run", what)
                done = Failure(type(error).__name__, f"expected to run {what}, found: {error!r}")
            outcome = failed(commit.returned, done) if isinstance(done, Failure) else done
            self._settled(step, outcome)
            return
        self._settled(step, None)

    async def _commit(self, partition: Partition, commit: StepCommit) -> StepReturned | Failure:
        if self._database is None:
            raise StoreUnavailable(
                "expected a Postgres database for tx.execute, found none: start the worker with "
                "HEADWATER_POSTGRES set"
            )
        return await self._database.commit(partition.number, partition.epoch, commit)

    async def take_over(self, partition: Partition, now_ms: int) -> None:
        """Completes the steps whose SQL took effect and of which the log does not know.

        Errors: StoreUnavailable, Superseded.
        """
        if self._database is None:
            return
        for commit in await self._database.claim(partition.number, partition.epoch):
            recover(partition, commit, now_ms)

    def recorded(self, partition: Partition, step: StepId) -> None:
        """Takes note that the log knows of a step."""
        self._recorded[partition].append(step)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that was given up; whoever has it now finds its rows."""
        self._recorded.pop(partition, None)

    async def tidy(self, partition: Partition) -> None:
        """Removes the rows of steps that the log knows of; a row that stays does no harm."""
        known = self._recorded.pop(partition, [])
        if self._database is None or not known:
            return
        try:
            await self._database.forget(partition.number, known)
        except HeadwaterError as error:
            log.warning("rows of committed steps stay for now: %s", error)
