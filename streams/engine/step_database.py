"""SQL of steps: it takes effect together with the step's result, once.

The statements of a step run in one Postgres transaction with a commit row that names the step and
holds what it returned. The record in the log follows. After a crash between the two, the new owner
finds the row and completes the step from it; the callback does not run again. So that a superseded
owner cannot slip a transaction in behind that, owners claim their partition in Postgres too, and a
transaction of an older epoch is refused there.
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
    """Where the SQL of steps runs."""

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Shuts out older epochs; gives what was committed and may not be in the log.

        Waits for transactions of older epochs that are under way.

        Errors: StoreUnavailable; Superseded, if a newer epoch has claimed the partition.
        """

    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        """Runs the statements of a step in one transaction with its commit row.

        Shape:  what is to be recorded of the step, when it took effect now or before (then it is
                what was returned before); otherwise why the step has failed.
        Errors: StoreUnavailable, when it did not take effect, and EffectUnknown, when nobody knows:
                ask again, it happens once; Superseded, when this epoch does not hold the partition.
        """

    async def forget(self, partition: int, steps: Collection[StepId]) -> None:
        """Removes the rows of steps whose end is acknowledged by the log.

        Errors: StoreUnavailable.
        """


def failed(returned: StepReturned, failure: Failure) -> StepRaised:
    """The failure of a step whose SQL failed; what would only fail again is not tried again."""
    again = failure.name not in _FINAL
    # A database may show the whole of a value that it does not take.
    cut = Failure(failure.name, bounded(failure.message))
    return StepRaised(returned.step, returned.attempt, cut, returned.policy, again)
