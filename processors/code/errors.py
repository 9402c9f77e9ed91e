"""Errors that workflow authors raise and catch.

They belong to the author's code and are not errors of Headwater. Suspension and eviction are not
errors: they derive from BaseException elsewhere, so that `except Exception` does not catch them.
"""

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from headwater.schemas.failures import MAX_STEPS_EXCEEDED
from headwater.schemas.history import Failure

#: The usual cause of code that does not match its history.
CODE_CHANGED: Final = (
    "the workflow's code changed while this run was under way, or it decides by something that "
    "differs on replay; keep old entries with step.removed, or give the changed workflow a new name"
)


class NonRetryableError(Exception):
    """Raised in a step: do not retry it."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name or type(self).__name__

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.name)


class RollbackError(Exception):
    """Raised in a step or a workflow: do not retry, roll back."""


class EventTimeoutError(Exception):
    """No event arrived before the end of a wait."""


class StepFailedError(Exception):
    """A step has failed finally.

    Attributes:
        name: Name of the step.
        attempts: Number of attempts made.
        error: Error of the last attempt, with `.name` and `.message`.
    """

    def __init__(self, name: str, attempts: int, error: Failure) -> None:
        times = "attempt" if attempts == 1 else "attempts"
        super().__init__(
            f'step "{name}" failed after {attempts} {times}: {error.name}: {error.message}'
        )
        self.name = name
        self.attempts = attempts
        self.error = error

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.attempts, self.error)


class UniqueConstraintError(StepFailedError):
    """The SQL of a step violated a unique constraint; the step is not retried."""


class _BranchesError(Exception):
    def __init__(self, message: str, errors: Mapping[str, Failure]) -> None:
        super().__init__(message)
        self.errors = dict(errors)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.errors)


class JoinError(_BranchesError):
    """Branches of a join failed: `.errors` has `.name` and `.message` by branch."""


class RaceError(_BranchesError):
    """All branches of a race failed: `.errors` has `.name` and `.message` by branch."""


class ChildWorkflowError(Exception):
    """A child workflow failed, was terminated or timed out."""


class RollbackCheckpointError(Exception):
    """A step has a rollback handler but no checkpoint precedes it."""


class DuplicateStepError(Exception):
    """The same name is in use twice at the same time in one scope."""


class NotAwaitedError(Exception):
    """The workflow returned while entries that it had started were still open."""


class NonDeterministicError(Exception):
    """The workflow's own code called something that returns another result on replay."""


class UnserialisableError(Exception):
    """A value that is not JSON, or too large."""


class TooManyEntriesError(Exception):
    """A run has reached its maximum number of entries."""

    name = MAX_STEPS_EXCEEDED


class LoopError(Exception):
    """The body of a loop returned neither Continue nor Break."""


class HistoryDivergedError(Exception):
    """The code does not match the recorded history of its run.

    Attributes:
        key: Key of the entry.
        recorded: Recorded kind, named as in `history.steps[i].type`.
        requested: Kind that the code requested.
        cause: Usual cause of the difference.
    """

    def __init__(self, key: str, recorded: str, requested: str, cause: str = CODE_CHANGED) -> None:
        super().__init__(
            f"at {key}: recorded {recorded}, requested {requested}; usual cause: {cause}"
        )
        self.key = key
        self.recorded = recorded
        self.requested = requested
        self.cause = cause

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.recorded, self.requested, self.cause)
