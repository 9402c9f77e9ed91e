"""SQL of steps: it takes effect together with the step's result, once.

The statements of a step run in one Postgres transaction with a commit row that names the step and
holds what it returned. The record in the log follows. After a crash between the two, the new owner
finds the row and completes the step from it; the callback does not run again. So that a superseded
owner cannot slip a transaction in behind that, owners claim their partition in Postgres too, and a
transaction of an older epoch is refused there.
"""

from typing import Protocol

import msgspec

from processors.replay.commands import StepRaised, StepReturned
from schemas.history import Failure


class StepCommit(msgspec.Struct, frozen=True, array_like=True):
    """A step whose SQL is to take effect, or has."""

    key: str
    run_number: int
    returned: StepReturned


class StepDatabase(Protocol):
    """Where the SQL of steps runs."""

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Shuts out older epochs; gives what was committed and may not be in the log.

        Errors: StoreUnavailable.
        """

    async def commit(self, partition: int, epoch: int, commit: StepCommit) -> Failure | None:
        """Runs the statements of a step in one transaction with its commit row.

        Shape:  None when it took effect, now or before; otherwise why the step has failed.
        Errors: StoreUnavailable, when it is not known whether it did; OwnershipLost.
        """

    async def forget(self, partition: int, before_epoch: int) -> None:
        """Removes rows of older epochs, all of which are in the log."""


def failed(returned: StepReturned, failure: Failure) -> StepRaised:
    """The failure of a step whose SQL failed; a unique violation is not tried again."""
    again = failure.name not in ("UniqueConstraintError", "STEP_TX_UNAVAILABLE")
    return StepRaised(returned.step, returned.attempt, failure, returned.policy, again)


def unavailable() -> Failure:
    """What a step is told that wants SQL where there is no database."""
    return Failure(
        "STEP_TX_UNAVAILABLE",
        "expected a Postgres database for tx.execute, found none; start the worker with "
        "HEADWATER_DATABASE_URL set",
    )
