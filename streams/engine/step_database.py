"""The SQL of steps. It takes effect together with the step's result, exactly once.

The statements of a step run in one Postgres transaction with a commit row that has the step and its
result. The record in the log follows. After a crash between the two, the new owner finds the row
and completes the step from it; the callback does not run again. Owners also claim their partition
in Postgres, which refuses transactions of older epochs. A superseded owner thus cannot commit a
transaction after the new owner has read the rows.
"""

from collections.abc import Collection
from typing import Final, Protocol

from headwater.processors.runs.limits import bounded
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.processors.runs.step_commits import StepCommit, StepId
from headwater.schemas.failures import STATEMENT_REFUSED, UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure

_FINAL: Final = (UNIQUE_CONSTRAINT, STATEMENT_REFUSED)


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
        """Delete the rows of steps whose results are durable in the log.

        Raises:
            StoreUnavailable: Postgres is not available.
        """


def failed(returned: StepReturned, failure: Failure) -> StepRaised:
    """Return the failure of a step whose SQL failed. Permanent errors are not retried."""
    retryable = failure.name not in _FINAL
    # A database may include the whole of a value that it rejects.
    truncated = Failure(failure.name, bounded(failure.message))
    return StepRaised(returned.step, returned.attempt, truncated, returned.policy, retryable)
