"""SQL of steps: it takes effect together with the step's result, once.

The statements of a step run in one Postgres transaction with a commit row that names the step and
holds its result. The record in the log follows. After a crash between the two, the row is found and
the step is completed from it; its callback does not run again.
"""

from collections.abc import Callable

from processors.replay.commands import StepRaised, StepReturned
from schemas.history import Failure
from streams.code_host.protocol import FromHost, Said

#: Runs the statements of a step in one transaction; gives what went wrong, if anything.
Commit = Callable[[StepReturned], Failure | None]


def commit_steps(commit: Commit, messages: list[FromHost]) -> list[FromHost]:
    """Runs the SQL of the steps among these messages; one whose SQL fails has failed itself."""
    return [_committed(commit, message) for message in messages]


def _committed(commit: Commit, message: FromHost) -> FromHost:
    if not isinstance(message, Said) or not isinstance(message.asked, StepReturned):
        return message
    returned = message.asked
    if not returned.statements:
        return message
    failure = commit(returned)
    if failure is None:
        return message
    return Said(message.activation, failed(returned, failure))


def failed(returned: StepReturned, failure: Failure) -> StepRaised:
    """The failure of a step whose SQL failed; a unique violation is not tried again."""
    again = failure.name != "UniqueConstraintError"
    return StepRaised(returned.step, returned.attempt, failure, returned.policy, again)


__all__ = ["Commit", "commit_steps", "failed"]
